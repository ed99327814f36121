"""A tiny recipe, and one run of it that the tests of the verbs share."""

import os
import signal
import subprocess
import sys
import time

import pytest
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

    def start(*words, check=True, launcher=("-m", "lmctr"), kill_when=None):
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(
            [sys.executable, *launcher, *map(str, words)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        deadline = time.monotonic() + 240
        while kill_when is not None and not kill_when() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        if kill_when is not None:
            process.send_signal(signal.SIGKILL)
        process.out, process.err = process.communicate(timeout=240)
        if check and kill_when is None:
            assert process.returncode == 0, process.err[-3000:]
        return process

    return start


@pytest.fixture(scope="session")
def tiny_run(recipe_file, tmp_path_factory, lmctr_process):
    """A finished run folder. Read it only."""
    folder = tmp_path_factory.mktemp("run") / "tiny"
    process = lmctr_process("train", recipe_file, "--output_dir", folder)
    (folder.parent / "printed.txt").write_text(process.out)
    return folder
