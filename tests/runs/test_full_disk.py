"""A disk that is full while a run trains: one line says so, and the same command line ends as if nothing had been, once there is room."""

import os
import shutil
import signal
import subprocess
import time
from types import SimpleNamespace

import pytest
import warm
import yaml
from safetensors import SafetensorError
from test_same_folder import TABLE, files_of

from lmctr import DNNConfig, DNNForCTR
from lmctr.cli import card as card_verb
from lmctr.cli import demo as demo_verb
from lmctr.cli import predict as predict_verb
from lmctr.cli import scaling as scaling_verb
from lmctr.cli import train as train_verb
from lmctr.cli.main import main
from lmctr.studies.grids import run as grid_run
from lmctr.utils.files import replacing
from lmctr.utils.lock import owned

WORDS = ["train", "table.yaml", "--output-dir", "run", "--resume"]


@pytest.fixture
def disk(tmp_path):
    """A folder of its own on a file system of memory, and a function that sets the size of it in bytes."""
    folder = tmp_path / "disk"
    folder.mkdir()

    def resize(size):
        again = "remount," if folder.is_mount() else ""
        words = ["mount", "-t", "tmpfs", "-o", f"{again}size={size}", "tmpfs", str(folder)]
        if shutil.which("mount") is None or subprocess.run(words, capture_output=True).returncode:
            pytest.skip("needs the right to mount a file system")

    resize(100 << 20)
    yield folder, resize
    subprocess.run(["umount", "--lazy", str(folder)], check=True)  # a log of the run may still be open


def used(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    "shares", [(0.5, 0.9), pytest.param((0.02, 0.1, 0.25, 0.4, 0.6, 0.7, 0.8, 0.97), marks=pytest.mark.campaign)]
)
def test_a_full_disk_loses_nothing(disk, tmp_path, monkeypatch, capsys, shares):
    folder, resize = disk
    (tmp_path / "table.yaml").write_text(
        yaml.safe_dump({**TABLE, "data": {**TABLE["data"], "baselines": False}}, sort_keys=False)
    )
    (tmp_path / "whole").mkdir()
    shutil.copy(tmp_path / "table.yaml", tmp_path / "whole")
    monkeypatch.chdir(tmp_path / "whole")
    assert main(WORDS) == 0
    wanted, needed = files_of(tmp_path / "whole" / "run"), used(tmp_path / "whole")
    for share in shares:
        shutil.rmtree(folder / "run", ignore_errors=True)
        shutil.copy(tmp_path / "table.yaml", folder)
        monkeypatch.chdir(folder)
        resize(int(share * needed))
        capsys.readouterr()
        assert main(WORDS) == 2, share
        errors = [line for line in capsys.readouterr().err.splitlines() if "error: " in line]
        assert len(errors) == 1
        assert "error: run" in errors[0] or "'run/" in errors[0]
        assert "is the disk full? Free some and give the same command again" in errors[0]
        resize(100 << 20)
        assert main(WORDS) == 0
        assert files_of(folder / "run") == wanted, share


def test_an_export_to_a_full_disk_leaves_no_graph(disk, tmp_path):
    """Torch's own writer of files would end the process."""
    pytest.importorskip("onnxscript")
    folder, resize = disk
    model = DNNForCTR(
        DNNConfig(vocab_sizes=[500, 500], field_names=["user", "item"], embedding_dim=4, hidden_units=[8])
    )
    resize(8192)
    script = (
        "import sys; from lmctr import DNNForCTR; from lmctr.hub.export import export_model\n"
        "class Processor:\n    fields = ()\n    def save_pretrained(self, folder): pass\n"
        "for format in ('torch', 'onnx'):\n"
        "    try:\n        export_model(DNNForCTR.from_pretrained(sys.argv[1]), Processor(), sys.argv[2], format)\n"
        "    except OSError as error:\n        print(format, error)\n"
    )
    model.save_pretrained(tmp_path / "model")
    said = warm.run("-c", script, tmp_path / "model", folder / "exported").out.splitlines()
    assert [line.split()[0] for line in said] == ["torch", "onnx"]
    assert all("No space left on device" in line for line in said), said
    assert not list(folder.glob("exported/model*"))


def test_a_place_without_the_right_to_it_is_named(tmp_path, monkeypatch, capsys):
    def told_of(path):
        def run(args):
            raise PermissionError(13, "Permission denied", str(path))

        monkeypatch.setattr(train_verb, "run", run)
        assert main(["train", str(tmp_path / "x.yaml")]) == 2
        return capsys.readouterr().err

    assert told_of(tmp_path / "p.csv") == (
        f"error: {tmp_path / 'p.csv'}: may not be written (Permission denied); name another place by --output-dir\n"
    )
    monkeypatch.setattr("os.access", lambda path, mode: False)  # root may read everything
    assert told_of(tmp_path) == f"error: {tmp_path}: may not be read (Permission denied)\n"


def test_files_that_may_not_become_so_large_are_no_bug(monkeypatch, capsys):
    def run(args):
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    monkeypatch.setattr(train_verb, "run", run)
    assert main(["train", "x.yaml"]) == 2
    assert "is ulimit -f too low? Raise it and give the same" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 10.5 MiB for an array"),
        MemoryError(),
        OSError(12, "Cannot allocate memory"),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        RuntimeError("can't start new thread"),
        RuntimeError("Resource temporarily unavailable"),
        RuntimeError("CUDA out of memory. Tried to allocate 2 GiB.\nMore"),
    ],
    ids=str,
)
def test_too_little_memory_is_no_bug(error, monkeypatch, capsys):
    def run(args):
        raise error

    monkeypatch.setattr(train_verb, "run", run)
    assert main(["train", "x.yaml"]) == 2
    told = capsys.readouterr().err
    assert told.startswith("error: not enough memory (")
    assert told.endswith("smaller batches need less\n")
    assert str(error).split("\n")[0] in told
    assert "More" not in told


@pytest.mark.parametrize(("place", "named"), [("taken", "that"), ("taken/rows.csv", "taken"), ("taken/a/b", "taken")])
def test_a_file_where_a_folder_is_wanted_is_named(place, named, tmp_path, monkeypatch, capsys):
    def run(args):
        path = tmp_path / place
        if place == "taken":
            path.mkdir(exist_ok=True)
        path.touch()

    (tmp_path / "taken").touch()
    monkeypatch.setattr(train_verb, "run", run)
    assert main(["train", "x.yaml"]) == 2
    file = named if named == "that" else tmp_path / named
    told = f"error: {tmp_path / place}: {file} is a file, where a folder is wanted\n"
    assert capsys.readouterr().err == told


def test_a_link_to_a_disk_that_is_not_there_is_named(tmp_path, monkeypatch, capsys):
    runs = tmp_path / "runs"
    runs.symlink_to(tmp_path / "unmounted")
    monkeypatch.setattr(train_verb, "run", lambda args: (runs / "x").mkdir(parents=True, exist_ok=True))
    assert main(["train", "x.yaml"]) == 2
    told = f"error: {runs}: that is a link to what is not there, where a folder is wanted\n"
    assert capsys.readouterr().err == told


@pytest.mark.parametrize("ends", ["ctrl-c", "term"])
@pytest.mark.parametrize(("words", "goes_on"), [
    ("train x.yaml", "; the same command with --resume goes on"),
    ("scaling ladder x.yaml", "; the same command goes on"),
    ("scaling flops x", ""),
])  # fmt: skip
def test_what_goes_on_after_ctrl_c_or_sigterm_says_so(words, goes_on, ends, monkeypatch, capsys):
    if ends == "term" and not goes_on:
        pytest.skip("ends as the system ends it")
    before = signal.getsignal(signal.SIGTERM)

    def run(args):
        if ends == "ctrl-c":
            raise KeyboardInterrupt
        assert signal.getsignal(signal.SIGTERM) is not before  # else it would end these tests
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(5)

    for verb in (train_verb, scaling_verb):
        monkeypatch.setattr(verb, "run", run)
    assert main(words.split()) == (143 if ends == "term" else 130)  # as shells have it
    assert capsys.readouterr().err == f"interrupted{goes_on}\n"
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize(("error", "named"), [
    (SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)"), False),
    (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 1028992 vs 1028884"), False),
    (OSError(28, "No space left on device"), False),
    (OSError(122, "Disk quota exceeded", "run/metrics.json"), True),
])  # fmt: skip
def test_what_other_packages_say_of_a_full_disk_ends_in_one_line(error, named, tmp_path, monkeypatch, capsys):
    def run(*args):
        with owned(tmp_path / "grid", "`lmctr grid run`"), owned(tmp_path / "run", "`lmctr train`"):
            raise error

    monkeypatch.setattr(train_verb, "run", run)
    monkeypatch.setattr(grid_run, "train_recipe", run)
    monkeypatch.setattr(grid_run, "_redirect", lambda log: None)
    assert main(["train", str(tmp_path / "x.yaml")]) == 2
    place = "" if named else f"{tmp_path / 'run'}: "
    said = (
        f"error: {place}{error}; is the disk full? Free some and give the same command again (train: with --resume)\n"
    )
    assert capsys.readouterr().err == said
    grid_point = SimpleNamespace(log="", folder=SimpleNamespace(path=tmp_path / "run"))
    assert grid_run._train_here(None, grid_point, False, []) == 2
    assert capsys.readouterr().err == said


@pytest.mark.parametrize(("words", "hint"), [
    ("train x.yaml", "; name another place by --output-dir"),
    ("predict run --input x.csv", "; name another place by --output"),
    ("demo run", "; name another place by --space"),
    ("card run", "; --print prints the card and writes nothing"),
])  # fmt: skip
def test_what_is_told_to_name_another_place_are_the_options_of_the_command(words, hint, tmp_path, monkeypatch, capsys):
    def run(args):
        raise PermissionError(30, "Read-only file system", str(tmp_path))

    for verb in (train_verb, predict_verb, demo_verb, card_verb):
        monkeypatch.setattr(verb, "run", run)
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}: may not be written (Read-only file system){hint}\n"


def test_a_machine_without_a_temporary_folder_says_how_to_name_one(monkeypatch, capsys):
    def run(args):
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(train_verb, "run", run)
    assert main(["train", "x.yaml"]) == 2
    assert capsys.readouterr().err == (
        "error: No usable temporary directory found in ['/tmp']; set TMPDIR to a folder that may be written\n"
    )


def test_a_write_that_fails_names_its_file(tmp_path):
    with pytest.raises(OSError, match=r"No space left on device: .*here\.txt'"), replacing(tmp_path / "here.txt"):
        raise OSError(28, "No space left on device")
    assert list(tmp_path.iterdir()) == []
