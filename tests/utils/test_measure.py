import inspect
import os
import platform
import shutil
import subprocess
import sys

import pytest
import torch

from lmctr.utils.measure import commit_here, keep_freed_memory, machine, machine_line, peak_memory, versions


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


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators keep memory as they like")
@pytest.mark.parametrize("own", [{}, {"MALLOC_ARENA_MAX": "2"}])
def test_freed_memory_is_kept_where_nobody_set_otherwise(own):
    """Blocks of 8 MiB, freed and taken again: next to no page is handed out anew."""
    code = f"""
import ctypes, importlib.util, resource

spec = importlib.util.spec_from_file_location("measure", {inspect.getfile(keep_freed_memory)!r})  # without the package, which takes seconds
spec.loader.exec_module(measure := importlib.util.module_from_spec(spec))
measure.keep_freed_memory()
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
for _ in range(4):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [libc.malloc(8 << 20) for _ in range(8)]
    for block in blocks:
        ctypes.memset(block, 1, 8 << 20)
    for block in blocks:
        libc.free(block)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")} | own
    found = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    first, *later = map(int, found.stdout.split())
    assert (max(later) < first / 10) == (not own)
