import shutil
import subprocess
import sys

import pytest
import torch

from lmctr.utils.measure import commit_here, machine, machine_line, peak_memory, versions


def test_machine():
    found = machine()
    assert list(found) == ["system", "processor", "cores", "threads", "python", "torch", "transformers"]
    assert found["threads"] == torch.get_num_threads()
    assert found["torch"] == torch.__version__
    assert next(iter(machine(packages=["numpy"], with_platform=True))) == "platform"
    assert f"{torch.get_num_threads()} threads, {sys.platform}" in machine_line()


def test_versions():
    assert {"python", "lmctr", "torch", "scikit-learn"} <= versions().keys()


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commit(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    assert commit_here() is None
    (tmp_path / "family.py").write_text("old")
    name = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    for words in (["init", "-q"], ["add", "family.py"], [*name, "commit", "-q", "-m", "first"]):
        subprocess.run(["git", *words], check=True)
    head = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout.strip()
    (tmp_path / "runs").mkdir()  # what a run writes is no change of the code
    (tmp_path / "runs" / "metrics.json").write_text("{}")
    assert commit_here() == {"id": head, "is_changed": False}
    (tmp_path / "family.py").write_text("new")
    monkeypatch.chdir(tmp_path / "runs")
    assert commit_here() == {"id": head, "is_changed": True}
    monkeypatch.setenv("PATH", "")
    assert commit_here() is None


def test_peak_memory():
    assert peak_memory() > 1 << 24  # an interpreter with PyTorch
