"""One writer per folder."""

import contextlib
import errno
import json
import os
import signal
import socket
import time
from types import SimpleNamespace

import pytest
import warm

from lmctr.utils import lock
from lmctr.utils.lock import LOCK, owned

HOLD = """
import os, sys, time
from lmctr.utils.lock import owned
with owned(sys.argv[1], "`lmctr train`"):
    if sys.argv[2] == "fork" and os.fork() == 0:
        time.sleep(60)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def hasty(monkeypatch):
    """Waits a tenth as long for a holder that was just killed."""
    monkeypatch.setattr(lock, "_PATIENCE", lock._PATIENCE / 10)


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock of tmp_path / "run"."""
    started = []

    def start(how="plain"):
        started.append(warm.start("-c", HOLD, tmp_path / "run", how, own_group=True))
        assert started[-1].line() == "held"
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_second_one_hears_who_holds_the_folder(tmp_path, holder, hasty):
    process = holder()
    with (
        pytest.raises(
            ValueError, match=rf"another `lmctr train` is at work in .*run \(process {process.pid} on .*since"
        ),
        owned(tmp_path / "run", "`lmctr data prepare`"),
    ):
        pass


@pytest.mark.parametrize("how", ["plain", "fork"])
def test_a_killed_holder_is_in_nobodys_way(tmp_path, holder, how):
    """Nor is a child that it forked, such as a loader's worker, which lives on for a while."""
    process = holder(how)
    process.kill()
    process.wait()
    assert (tmp_path / "run" / LOCK).is_file()
    with owned(tmp_path / "run", "`lmctr train`"):
        assert json.loads((tmp_path / "run" / LOCK).read_text())["pid"] == os.getpid()
    assert list((tmp_path / "run").iterdir()) == []


def test_one_process_does_not_hold_a_folder_twice(tmp_path, hasty):
    twice = pytest.raises(ValueError, match="another `lmctr train`")
    with owned(tmp_path, "`lmctr train`"), twice, owned(tmp_path, "`lmctr train`"):
        pass
    with owned(tmp_path, "`lmctr train`"):
        pass


def test_a_folder_that_stays_empty_goes_again(tmp_path):
    with owned(tmp_path / "new" / "run", "`lmctr train`"):
        assert (tmp_path / "new" / "run" / LOCK).is_file()
    assert not (tmp_path / "new" / "run").exists()
    with owned(tmp_path / "kept", "`lmctr train`"):
        (tmp_path / "kept" / "recipe.yaml").touch()
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["recipe.yaml"]


@pytest.mark.parametrize("clock", ["goes on", "was set back"])
@pytest.mark.parametrize("host", ["elsewhere", "no such call", "no such locks"])
def test_signs_of_life_tell_of_holders_that_the_system_does_not_know(tmp_path, host, clock, monkeypatch):
    """Another machine, a platform or a file system without such locks: held while the file is touched, stale a minute later."""
    monkeypatch.setattr(lock, "_PATIENCE", 0.0)

    def refuses(*_):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    if host != "elsewhere":
        monkeypatch.setattr(
            lock, "fcntl", None if host == "no such call" else SimpleNamespace(LOCK_EX=2, LOCK_NB=4, flock=refuses)
        )
    name = "elsewhere" if host == "elsewhere" else socket.gethostname()
    facts = {"what": "`lmctr train`", "pid": 7, "host": name, "since": "2026-01-01 00:00:00"}
    (tmp_path / LOCK).write_text(json.dumps(facts))
    with pytest.raises(ValueError, match=rf"process 7 on {name}, since 2026"), owned(tmp_path, "`lmctr train`"):
        pass
    last = time.time() - (lock.STALE + 1) * (1 if clock == "goes on" else -60)
    os.utime(tmp_path / LOCK, (last, last))
    with owned(tmp_path, "`lmctr train`"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_holder_touches_its_file(tmp_path, monkeypatch):
    monkeypatch.setattr(lock, "HEARTBEAT", 0.02)
    with owned(tmp_path, "`lmctr train`"):
        os.utime(tmp_path / LOCK, (0, 0))
        deadline = time.monotonic() + 10
        while (tmp_path / LOCK).stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert (tmp_path / LOCK).stat().st_mtime > 0
