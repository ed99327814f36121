"""`lmctr card` and `lmctr push --dry-run` through the command line; real pushes are in tests/hub."""

import json
import re
import sys
from pathlib import Path

import pytest

from lmctr.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "hub"))
from tiny_run import write_run


@pytest.fixture
def run_dir(tmp_path):
    path = tmp_path / "tiny"
    path.mkdir()
    write_run(path)
    return path


def test_card_is_written_and_printed(run_dir, capsys):
    assert main(["card", str(run_dir), "--repo-id", "tester/tiny", "--licence", "mit"]) == 0
    assert capsys.readouterr().out == f"wrote {run_dir / 'README.md'}\n"
    text = (run_dir / "README.md").read_text()
    assert "license: mit" in text
    (run_dir / "README.md").unlink()
    assert main(["card", str(run_dir), "--repo-id", "tester/tiny", "--license", "mit", "--print"]) == 0
    assert capsys.readouterr().out == text
    assert not (run_dir / "README.md").exists()


def test_edited_card_is_kept_unless_forced(run_dir, capsys):
    (run_dir / "README.md").write_text("# By hand\n")
    assert main(["card", str(run_dir)]) == 2
    assert "was edited by hand and is kept; --force replaces it" in capsys.readouterr().err
    assert (run_dir / "README.md").read_text() == "# By hand\n"
    assert main(["card", str(run_dir), "--force"]) == 0
    assert "CTR-Sink on MovieLens tiny" in (run_dir / "README.md").read_text()


def test_seeds_option(run_dir, tmp_path, capsys):
    other = tmp_path / "other"
    other.mkdir()
    write_run(other, seed=1)
    assert main(["card", str(run_dir), "--print", "--seeds", str(other)]) == 0
    assert "over 2 runs, seeds 0, 1" in capsys.readouterr().out


def test_dry_run_says_what_would_go(run_dir, capsys):
    assert main(["push", str(run_dir), "tester/tiny", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert "ok: AutoModelForCTR loads CTRSinkForCTR" in out
    assert "would upload 7 files to tester/tiny: config.json, model.safetensors, " in out
    assert not (run_dir / "README.md").exists()


def test_a_broken_run_ends_with_a_message(run_dir, capsys):
    (run_dir / "pytorch_model.bin").write_bytes(b"x")
    assert main(["push", str(run_dir), "tester/tiny", "--dry-run"]) == 2
    assert "error: " in (text := capsys.readouterr().err)
    assert "can run code when it is loaded: pytorch_model.bin" in text
    assert main(["push", str(run_dir / "nowhere"), "tester/tiny"]) == 2
    assert "does not exist; give the folder that `lmctr train` wrote" in capsys.readouterr().err
    assert main(["card", str(run_dir / "nowhere")]) == 2


def test_wrong_arguments(run_dir, capsys):
    assert main(["push", str(run_dir), "tester/tiny", "--data.path", "x"]) == 2
    assert "push takes no recipe overrides" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["push", str(run_dir)])
    with pytest.raises(SystemExit):
        main(["push", str(run_dir), "tester/tiny", "--priv"])


def test_check_says_what_a_folder_holds_without_loading_it(run_dir, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("lmctr.runs.loading.load_folder", None)
    assert main(["card", str(run_dir), "--check"]) == 0
    out = capsys.readouterr().out
    assert "model: 'ctr_sink' (CTR-Sink, reads text), text_config 'bert'" in out
    assert "processor: CTRSinkProcessor" in out
    assert re.search(r"weights: [0-9,]+ values in [0-9]+ tensors of model.safetensors", out)
    assert not (run_dir / "README.md").exists()
    config = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "evil.Evil"}}))
    (run_dir / "evil.py").write_text("")
    (run_dir / "extra.bin").write_bytes(b"x")
    (run_dir / "vocab.txt").unlink(missing_ok=True)
    (run_dir / "vocab.txt").symlink_to(tmp_path)
    (run_dir / "model.safetensors").write_bytes(bytes(20))
    assert main(["card", str(run_dir), "--check"]) == 1
    problems = [line for line in capsys.readouterr().out.splitlines() if line.startswith("problem: ")]
    for word in (
        "auto_map",
        "evil.py can run code",
        "extra.bin can run code",
        "vocab.txt is a link",
        "model.safetensors",
    ):
        assert sum(word in line for line in problems) == 1, (word, problems)
