"""Checksums of run folders: what is not the file that the run wrote is refused by its name, whoever asks for it."""

import json
import random
import shutil

import pytest
import torch

from lmctr.hub.checks import validate_run
from lmctr.runs import load, train
from lmctr.runs.folder import MANIFEST, open_run, rewriting
from lmctr.utils import integrity
from lmctr.utils.integrity import checksums, read_sealed, sealed, sha256_of

TABLE = {
    "data": {"name": "synthetic_table", "options": {"num_rows": 1200}},
    "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8]},
    "training": {"epochs": 2, "use_cpu": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished run. Read it only."""
    return train(TABLE, output_dir=tmp_path_factory.mktemp("trained") / "run").path


@pytest.fixture
def run(trained, tmp_path):
    return shutil.copytree(trained, tmp_path / "run")


def flip(path, place, bit=0):
    content = bytearray(path.read_bytes())
    content[place % len(content)] ^= 1 << bit
    path.write_bytes(content)


def test_the_manifest_lists_every_file_of_the_run(trained):
    listed = read_sealed(trained / MANIFEST)["files"]
    found = {path.relative_to(trained).as_posix() for path in trained.rglob("*") if path.is_file()}
    assert set(listed) == {name for name in found if not name.startswith("checkpoints/")} - {MANIFEST}
    assert {"model.safetensors", "config.json", "metrics.json", "data.json", "predictions/test.parquet"} <= set(listed)
    assert open_run(trained).verify() == len(listed)


def corruptions(folder, count, seed):
    """(file, place, bit) over all files of a run and its checkpoints, every file at least once."""
    generator = random.Random(seed)
    files = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    chosen = files + [generator.choice(files) for _ in range(count - len(files))]
    return [(name, generator.randrange((folder / name).stat().st_size), generator.randrange(8)) for name in chosen]


def verify_run(run):
    open_run(run, "model").verify()


def refuse_all(trained, run, count, seed):
    """Flip one bit at a time; what reads the file next must refuse it and name it. Returns how many were tried."""
    from lmctr.training.checkpoints import newest_complete_checkpoint, read_marker

    for name, place, bit in corruptions(trained, count, seed):
        flip(run / name, place, bit)
        if name.parts[0] == "checkpoints":
            checkpoint = run / name.parts[0] / name.parts[1]
            with pytest.raises(ValueError, match=name.name):
                read_marker(checkpoint)
            assert newest_complete_checkpoint(run / "checkpoints")[0] != checkpoint
        else:
            with pytest.raises((ValueError, OSError), match=str(run / name)):
                verify_run(run)
        shutil.copy2(trained / name, run / name)
    open_run(run).verify()
    return count


def test_one_wrong_bit_anywhere_is_refused_by_name(trained, run):
    assert refuse_all(trained, run, 120, seed=0) == 120


@pytest.mark.campaign
def test_one_wrong_bit_anywhere_is_refused_by_name_3000_times(trained, run):
    """Two minutes."""
    assert refuse_all(trained, run, 3000, seed=1) == 3000


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_every_way_to_load_refuses(run, name):
    loaded = load(run)
    flip(run / name, -3 if name == "model.safetensors" else (run / name).read_bytes().index(b'"dropout": 0.') + 13)
    for ask in (lambda: load(run), lambda: validate_run(run), lambda: loaded.model, lambda: loaded.evaluate()):
        with pytest.raises(
            ValueError, match=f"{name} is damaged: its .* do not have the checksum.*delete .*{MANIFEST}"
        ):
            ask()
    (run / MANIFEST).unlink()  # on purpose
    assert load(run).model is not None


def test_scores_are_compared_before_a_push(run):
    validate_run(run)
    flip(run / "predictions" / "test.parquet", 200)
    load(run)
    with pytest.raises(ValueError, match=r"predictions/test.parquet is damaged"):
        validate_run(run)


def test_a_folder_without_checksums_loads_with_a_note(run, caplog):
    (run / MANIFEST).unlink()
    with caplog.at_level("INFO", logger="lmctr"):
        load(run)
    assert f"{run} has no {MANIFEST}" in caplog.text
    assert validate_run(run).lines[0] == f"no {MANIFEST}: no file was compared with a checksum"


def test_what_only_the_run_needs_may_be_gone(run):
    shutil.rmtree(run / "predictions")
    load(run)
    (run / "model.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=rf"has no model.safetensors, which {MANIFEST} lists"):
        open_run(run).verify()
    with pytest.raises(FileNotFoundError, match=r"has no model.safetensors"):
        load(run)


def test_scores_written_again_keep_the_folder_sealed(run, trained):
    load(run).evaluate()
    path = run / "predictions" / "test.parquet"
    with rewriting(path):
        assert "predictions/test.parquet" not in read_sealed(run / MANIFEST)["files"]  # a kill here leaves it loadable
        path.write_bytes(b"other")
    assert open_run(run).verify() == open_run(trained).verify()
    with rewriting(run / "predictions" / "mine.parquet"):
        (run / "predictions" / "mine.parquet").write_bytes(b"mine")
    assert "predictions/mine.parquet" not in read_sealed(run / MANIFEST)["files"]


def test_scores_written_again_after_a_kill_are_sealed_again(run, trained):
    path = run / "predictions" / "test.parquet"
    whole, other = path.read_bytes(), run / "predictions" / "validation.parquet"
    for cut in (path, other):
        with pytest.raises(KeyboardInterrupt), rewriting(cut):
            raise KeyboardInterrupt
    assert read_sealed(run / MANIFEST)["rewriting"] == ["predictions/test.parquet", "predictions/validation.parquet"]
    for again in (path, other):
        with rewriting(again):
            again.write_bytes(again.read_bytes())
    assert path.read_bytes() == whole
    assert read_sealed(run / MANIFEST) == read_sealed(trained / MANIFEST)


def test_a_model_saved_into_a_run_keeps_it_sealed(run, trained):
    """Also in pieces; what was not written anew keeps its checksum, and a save that fails is refused."""
    model = load(run).model
    with torch.no_grad():
        model.head.weight.add_(1)
    for size in ("50GB", "1KB", "50GB"):
        model.save_pretrained(run, max_shard_size=size)
        assert torch.equal(load(run).model.head.weight, model.head.weight)
        listed = read_sealed(run / MANIFEST)["files"]
        assert {name for name in listed if name.startswith("model")} == {path.name for path in run.glob("model*")}
        assert listed["metrics.json"] == read_sealed(trained / MANIFEST)["files"]["metrics.json"]
    load(run).processor.save_pretrained(run)
    open_run(run).verify()
    flip(run / "config.json", 40)
    with pytest.raises(ValueError, match=r"config.json"):
        load(run)
    flip(run / "model.safetensors", -3)
    load(trained).processor.save_pretrained(run)  # does not make good what it did not write
    with pytest.raises(ValueError, match=r"config.json"):
        load(run)
    flip(run / "config.json", 40)  # back
    with pytest.raises(ValueError, match=r"model.safetensors"):
        load(run)
    model.save_pretrained(run)
    open_run(run).verify()
    with pytest.raises(AttributeError):
        model.save_pretrained(run, state_dict={"head.weight": 1})
    assert (run / MANIFEST).is_file()
    (run / MANIFEST).unlink()
    model.save_pretrained(run)
    assert not (run / MANIFEST).exists()  # a folder without checksums gets none


def test_what_is_shared_has_checksums_of_its_own(run):
    folder = open_run(run, "model")
    (run / MANIFEST).write_bytes(folder.shared_manifest({}))
    listed = read_sealed(run / MANIFEST)["files"]
    assert set(listed) == {path.as_posix() for path in folder.upload_files()} - {MANIFEST}
    load(run)


def test_the_list_itself_is_sealed(tmp_path):
    (tmp_path / "a.bin").write_bytes(b"a")
    path = tmp_path / "list.json"
    content = sealed({"files": checksums(tmp_path, ["a.bin"]), "global_batch_size": 8})
    path.write_text(json.dumps(content))
    assert read_sealed(path) == content
    for broken in ({**content, "global_batch_size": 9}, {key: content[key] for key in ("files", "global_batch_size")}):
        path.write_text(json.dumps(broken))
        with pytest.raises(ValueError, match=r"list.json is damaged"):
            read_sealed(path)
    path.write_text(json.dumps({"files": {"a.bin": 1}}))
    with pytest.raises(ValueError, match=r"lists 'a.bin' as 1; expected a file of the folder with size and sha256"):
        read_sealed(path)


def test_a_big_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    path = tmp_path / "big.bin"
    path.write_bytes(bytes(2 << 20))
    monkeypatch.setattr(integrity, "_SETTLED", -1.0)
    first, known = sha256_of(path), dict(integrity._known)
    assert first in known.values()
    monkeypatch.setattr(integrity.hashlib, "sha256", None)  # it is not read again
    assert sha256_of(path) == first
    monkeypatch.undo()
    flip(path, 1 << 20)
    assert sha256_of(path) != first
    assert sha256_of(path) not in known.values()  # and one that was changed just now is not remembered
