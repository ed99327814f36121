"""Workers of a loader, and the process whose workers they are."""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist
import warm
from toy_training import make_trainer

from lmctr.training import processes
from lmctr.training.processes import end_with_parent

LOADS = """
import time
from torch.utils.data import DataLoader
from lmctr.training.processes import end_with_parent
if __name__ == "__main__":
    iterator = iter(DataLoader(range(8), num_workers=1, multiprocessing_context="forkserver", worker_init_fn=end_with_parent))
    next(iterator)
    print(iterator._workers[0].pid, flush=True)
    time.sleep(60)
"""


def is_there(process):
    """Whether a process runs: it is neither gone nor waits for its parent to ask."""
    stat = Path("/proc") / str(process) / "stat"
    return stat.is_file() and stat.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def ended(process):
    for _ in range(300):
        if not is_there(process):
            return
        time.sleep(0.1)
    os.kill(process, signal.SIGKILL)
    pytest.fail("the process goes on")


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
def test_workers_of_a_server_end_with_a_process_that_is_killed(tmp_path):
    script = tmp_path / "loads.py"
    script.write_text(LOADS)
    process = warm.start(script)
    worker = int(process.line())
    assert is_there(worker)
    process.kill()
    ended(worker)


LAUNCHES = """
import os, subprocess, sys
os.environ["TORCHELASTIC_RUN_ID"] = "none"
words = [sys.executable, "-m", "lmctr", "train", "dnn/synthetic", "--training.epochs", "100", "--output-dir", sys.argv[1]]
with open(sys.argv[2], "w") as said:
    process = subprocess.Popen(words, stdout=said, stderr=said)
print(process.pid, flush=True)
process.wait()
"""


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="reads /proc")
def test_processes_of_a_launch_end_with_a_launcher_that_is_killed(tmp_path):
    (tmp_path / "launches.py").write_text(LAUNCHES)
    process = warm.start(tmp_path / "launches.py", tmp_path / "run", tmp_path / "said")
    worker = int(process.line())
    while "synthetic-table" not in (tmp_path / "said").read_text():  # it reads the data
        assert is_there(worker), (tmp_path / "said").read_text()
        time.sleep(0.1)
    process.kill()
    ended(worker)


def test_the_trainer_ties_its_workers_to_itself(tmp_path):
    loader = make_trainer(tmp_path).get_train_dataloader()
    assert loader.worker_init_fn is end_with_parent


@pytest.fixture
def two_processes(monkeypatch):
    """The first and another one, as threads that leave word in one store."""
    store, rank = dist.HashStore(), threading.local()
    monkeypatch.setattr(processes.FirstProcess, "_store", lambda self: store)
    monkeypatch.setattr(processes.dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(processes.dist, "get_rank", lambda: getattr(rank, "own", 1))
    rank.own = 0  # of this thread
    both = processes.FirstProcess(True), processes.FirstProcess(False)
    both[1].number = both[0].number
    return both


@pytest.mark.slow
def test_the_word_of_the_first_process_stays_until_a_slow_one_has_read_it(two_processes, monkeypatch):
    monkeypatch.setattr(processes, "_SECONDS_LATER", 0.1)
    first, other = two_processes
    told = []

    def slow():
        time.sleep(0.3)
        try:
            other.wait()
        except processes.FirstProcessError as error:
            told.append(str(error))
            other.failed(error)

    thread = threading.Thread(target=slow)
    thread.start()
    first.failed(ValueError("no column"))
    assert told == ["the first process failed: ValueError: no column"]


@pytest.mark.parametrize("meetings", [0, 2], ids=["here", "one meeting further"])
def test_the_first_process_waits_for_none_that_failed_of_itself(two_processes, meetings):
    first, other = two_processes
    first.meetings, other.meetings = meetings, max(meetings - 1, 0)
    thread = threading.Thread(target=other.failed, args=(KeyboardInterrupt(),))
    thread.start()
    thread.join()
    began = time.monotonic()
    first.failed(KeyboardInterrupt())
    assert time.monotonic() - began < 3
