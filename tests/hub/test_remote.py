"""A pushed model for programs that do not import lmctr: with the package its classes come, without it the words how to get it."""

import json
import os
import re
import shutil

import pytest
import torch
from hub_server import HubServer, client
from tiny_run import make_batch

from lmctr.cli.main import main
from lmctr.hub.demo.running import write_space
from lmctr.hub.remote import REMOTE_FILE, _source
from lmctr.models.families import families
from lmctr.runs.folder import RunFolder

LOAD = """
import sys
if sys.argv[1] == "without":
    sys.modules["lmctr"] = None
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor
kinds = (AutoConfig, AutoModel, AutoModelForSequenceClassification, AutoProcessor)
found = [kind.from_pretrained("tester/tiny", trust_remote_code=True) for kind in kinds]
print([f"{type(one).__module__}.{type(one).__name__}" for one in found])
found[2].save_pretrained(sys.argv[2])
found[3].save_pretrained(sys.argv[2])
again = [kind.from_pretrained(sys.argv[2], trust_remote_code=True) for kind in kinds]
assert [type(one) for one in again] == [type(one) for one in found]

import torch
sys.path.insert(0, sys.argv[3])
from tiny_run import make_batch
with torch.no_grad():
    print(found[2](**make_batch(found[3])).logits.tolist())
"""
PUSH = "import sys; from lmctr.cli.main import main; sys.exit(main(['push', sys.argv[1], 'tester/tiny']))"
CHECK = "import sys; from lmctr.cli.main import main; sys.exit(main(['card', 'tester/tiny', '--check']))"


@pytest.fixture(scope="module")
def hub(finished_run, tmp_path_factory):
    """A Hub to which the run was pushed."""
    with HubServer() as server:
        home = tmp_path_factory.mktemp("home")
        pushed = shutil.copytree(finished_run[0], home / "tiny")  # push writes a card into the folder
        done = client(server.url, home, "-c", PUSH, str(pushed))
        assert done.returncode == 0, done.stderr
        yield server


def test_every_familys_file_imports_its_classes():
    for family in families():
        names = {}
        exec(_source(family), names)
        for value in (f"{family.stem}Config", f"{family.stem}Model", f"{family.stem}ForCTR"):
            assert names[value] is family.load(value.removeprefix(family.stem))


def test_with_lmctr_the_packages_classes_come(hub, finished_run, tmp_path):
    done = client(
        hub.url, tmp_path, "-c", LOAD, "with", str(tmp_path / "saved"), os.path.dirname(__file__), fresh=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    names = [
        "configuration_ctr_sink.CTRSinkConfig",
        "modeling_ctr_sink.CTRSinkModel",
        "modeling_ctr_sink.CTRSinkForCTR",
    ]
    expected = [f"lmctr.models.ctr_sink.{name}" for name in [*names, "processing_ctr_sink.CTRSinkProcessor"]]
    named, logits = map(eval, done.stdout.splitlines()[-2:])
    assert named == expected
    assert not list((tmp_path / "saved").glob("*.py"))  # the package's files are not copied
    assert not [path for path in (tmp_path / "saved").glob("*.json") if "auto_map" in path.read_text()]
    _, model, processor = finished_run
    with torch.no_grad():
        torch.testing.assert_close(torch.tensor(logits), model(**make_batch(processor)).logits)


def test_without_lmctr_it_says_how_to_get_it(hub, tmp_path):
    done = client(hub.url, tmp_path, "-c", LOAD, "without", str(tmp_path / "saved"), fresh=True)
    assert done.returncode != 0
    assert "this model needs the package lmctr: pip install lmctr" in done.stderr.splitlines()[-1]


def test_the_pushed_folder_is_whole_and_none_of_its_files_is_suspect(hub, tmp_path, finished_run, capsys):
    files = hub.files("tester/tiny")
    assert REMOTE_FILE in files
    for name, file in files.items():
        (tmp_path / name).write_bytes(file["data"])
    assert main(["card", str(tmp_path), "--check"]) == 0, capsys.readouterr().out
    (tmp_path / REMOTE_FILE).write_text("import os\n")
    assert main(["card", str(tmp_path), "--check"]) == 1
    assert f"{REMOTE_FILE} can run code" in capsys.readouterr().out
    config = json.loads((tmp_path / "config.json").read_text())
    config["auto_map"]["AutoModel"] = "evil.Evil"
    (tmp_path / REMOTE_FILE).unlink()
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert main(["card", str(tmp_path), "--check"]) == 1
    assert "config.json has an auto_map" in capsys.readouterr().out
    assert not (finished_run[0] / REMOTE_FILE).exists()  # what is pushed changes nothing here


def test_a_folder_of_an_earlier_version_is_shared_without_its_backbones_place(run_dir, tmp_path):
    config = json.loads((run_dir / "config.json").read_text())
    config["text_config"]["_name_or_path"] = "/home/bob/my_bert"
    (run_dir / "config.json").write_text(json.dumps(config))
    RunFolder(run_dir).seal()
    (tmp_path / "there").mkdir()
    with HubServer() as server:
        done = client(server.url, tmp_path, "-c", PUSH, str(run_dir))
        assert done.returncode == 0, done.stderr
        for name, file in server.files("tester/tiny").items():
            (tmp_path / "there" / name).write_bytes(file["data"])
    pytest.importorskip("gradio")
    write_space(str(run_dir), tmp_path / "space")
    for place in (tmp_path / "there", tmp_path / "space" / "model"):
        text = (place / "config.json").read_text()
        assert "home" not in text
        assert json.loads(text)["text_config"]["_name_or_path"] == "my_bert"
        assert RunFolder(place).verify() > 3


def test_the_cards_example_runs(hub, tmp_path):
    card = hub.files("tester/tiny")["README.md"]["data"].decode()
    (code,) = re.findall(r"```python\n(.*?)```", card, flags=re.S)
    assert '"tester/tiny"' in code
    done = client(hub.url, tmp_path, "-c", f"{code}\nprint('ended')", fresh=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "ended"


def checked(hub, tmp_path):
    done = client(hub.url, tmp_path, "-c", CHECK)
    return done.returncode, done.stdout + done.stderr


def test_a_repository_is_checked_by_all_its_files(hub, tmp_path, finished_run):
    """Also by those that nothing downloads, and where the download's files are links."""
    before = hub.files("tester/tiny")
    code, said = checked(hub, tmp_path)
    assert code == 0, said
    assert "files: 3 others, 5 shared by push" in said  # .gitattributes, the card, and the file for other programs
    config = json.loads(before["config.json"]["data"])
    config["auto_map"]["AutoModel"] = "evil.Evil"
    repo = hub.repos["tester/tiny"]
    evil = {"data": b"raise SystemExit('ran')", "lfs": False}
    foreign = {
        "config.json": {"data": json.dumps(config).encode(), "lfs": False},
        **dict.fromkeys(("evil.py", "inner/pytorch_model.bin"), evil),
    }
    try:
        repo["commits"]["c" * 40], repo["branches"]["main"] = {**before, **foreign}, "c" * 40
        code, said = checked(hub, tmp_path)
        assert code == 1
        for problem in ("config.json has an auto_map", "evil.py can run code", "inner/pytorch_model.bin can run code"):
            assert f"problem: {problem}" in said, said
        assert not list(tmp_path.rglob("evil.py"))  # it is known by its name
    finally:
        repo["branches"]["main"] = next(oid for oid, files in repo["commits"].items() if files is before)


def test_a_manifest_that_a_load_would_refuse_is_a_problem(run_dir, capsys):
    RunFolder(run_dir).seal()
    assert main(["card", str(run_dir), "--check"]) == 0
    assert re.search(r"checksums: \d+ files are those of lmctr_manifest.json", capsys.readouterr().out)
    config = json.loads((run_dir / "config.json").read_text())
    (run_dir / "config.json").write_text(json.dumps(config))
    assert main(["card", str(run_dir), "--check"]) == 1
    assert "problem: " in (said := capsys.readouterr().out)
    assert "config.json" in said.partition("problem: ")[2]
