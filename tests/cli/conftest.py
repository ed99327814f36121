"""A tiny recipe, and one run of it that the tests of the verbs share."""

import os
import signal
import subprocess
import time

import pytest
import warm
import yaml
from cli_helpers import TINY


@pytest.fixture(scope="session")
def recipe_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "tiny.yaml"
    path.write_text(yaml.safe_dump(TINY))
    return path


@pytest.fixture(scope="session")
def lmctr_process():
    """Runs `python -m lmctr ...` in a process of its own and returns it when it has ended."""

    def start(*words, check=True, kill_when=None):
        process = warm.start("-m", "lmctr", *words)
        deadline = time.monotonic() + 240
        while kill_when is not None and not kill_when() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if kill_when is not None:
            process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == 0 or not check or kill_when is not None, process
        return process

    return start


@pytest.fixture(scope="session")
def lmctr_launch():
    """Runs `lmctr ...` as the two processes of a launch on CPUs, and returns what was printed.

    `launcher`: the one that shall run, instead of the processes themselves with the environment that it gives to them.
    """

    def start(*words, launcher=None):
        if launcher is not None:
            words = [warm.python(), *launcher, "-m", "lmctr", *map(str, words)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHON_EXEC": warm.python()}
            done = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr[-3000:]
            return done.stdout
        environment = {**os.environ, "ACCELERATE_USE_CPU": "true", "ACCELERATE_MIXED_PRECISION": "no"}
        running = warm.launch("-m", "lmctr", *words, environment=environment)
        assert [process.wait() for process in running] == [0, 0], running
        return "".join(process.out for process in running)

    return start


@pytest.fixture(scope="session")
def tiny_run(recipe_file, tmp_path_factory, lmctr_process):
    """A finished run folder. Read it only."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    process = lmctr_process("train", recipe_file, "--output_dir", folder)
    (folder.parent / "printed.txt").write_text(process.out)
    return folder
