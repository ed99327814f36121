"""Starts command lines as forks of a process that has imported the library, without the seconds that these imports take.

`start("-m", "lmctr", "train", ...)` does what `python -m lmctr train ...` does: exit codes, signals, environment, output and working folder are
those of a process of its own. What start-up itself does is tested with real interpreters.
"""

import atexit
import contextlib
import functools
import itertools
import json
import multiprocessing.connection
import multiprocessing.util
import os
import runpy
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import weakref
from multiprocessing import forkserver, popen_forkserver, reduction
from pathlib import Path

import fresh_server

from lmctr.studies.grids.run import PRELOADED

# What a training, an evaluation and a launch import on their way.
MODULES = (
    *PRELOADED,
    "lmctr.cli.main",
    "lmctr.cli.train",
    "lmctr.models.ctr_sink.modeling_ctr_sink",
    "lmctr.training.trainer",
    "accelerate.commands.launch",
    "torch.distributed.fsdp",
    "transformers.models.bert.modeling_bert",
    "warmed",
)
WAIT = 240  # seconds after which a command that does not end is an error


def _become(words, environment, folder, files, own_group):
    if own_group:
        os.setsid()
    multiprocessing.set_start_method(None, force=True)  # it would be that by which this process came to be
    multiprocessing.util.spawnv_passfds = _start_server
    # Tests that a shell started in the background inherit an ignored SIGINT; a terminal's programs do not.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    for number, file in files.items():
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND) if isinstance(file, str) else file
        os.dup2(descriptor, number)
        os.close(descriptor)
        if number == 0:
            sys.stdin = open(0, closefd=False)  # noqa: SIM115
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if "HF_ENDPOINT" in environment:
        fresh_server.read_hub_settings_again()
    if words[0] == "-m":
        sys.argv = list(words[1:])
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(compile(words[1], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = list(words)
        sys.path.insert(0, os.path.dirname(words[0]))
        runpy.run_path(words[0], run_name="__main__")


def _start_server(path, words, files, start=multiprocessing.util.spawnv_passfds):
    """A server that a command starts for its own children is a fork as well; it has imported what it else would."""
    if "multiprocessing.forkserver" not in words[-1]:
        return start(path, words, files)
    sys.stdout.flush()
    sys.stderr.flush()
    if child := os.fork():
        return child
    try:
        kept = [2, *sorted(files), os.sysconf("SC_OPEN_MAX")]
        for low, high in itertools.pairwise(kept):
            os.closerange(low + 1, high)
        forkserver._forkserver.__init__()  # its lock is held
        sys.modules["__main__"] = types.ModuleType("__main__")
        exec(words[-1], {"__name__": "__main__"})
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(0)


def _serve(context):
    """Start the server, unless it runs, with this folder on its path."""
    context.set_forkserver_preload(list(MODULES))
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (os.path.dirname(os.path.abspath(__file__)), before)))
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


class Command:
    """A command that was started, with what of `subprocess` the tests use; `out` and `err` (`stdout`, `stderr`) are its output so far."""

    def __init__(self, words, environment=None, folder=None, own_group=False):
        place = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        self.files = [os.path.join(place, name) for name in ("out", "err")]
        for file in self.files:
            open(file, "w").close()
        context = multiprocessing.get_context("forkserver")
        _serve(context)
        environment = dict(os.environ if environment is None else environment)
        files = dict(zip((1, 2), self.files, strict=True))
        given = ([str(word) for word in words], environment, str(folder or os.getcwd()), files, own_group)
        self.process = context.Process(target=_become, args=given)
        self.process.start()
        self.pid = self.process.pid

    def __repr__(self):
        return f"{self.returncode}: {self.out[-1500:]}{self.err[-3000:]}"

    @property
    def out(self):
        return self._said(0)

    @property
    def err(self):
        return self._said(1)

    stdout, stderr = out, err

    def _said(self, number):
        with open(self.files[number], errors="replace") as file:
            return file.read()

    @property
    def returncode(self):
        return self.process.exitcode

    def poll(self):
        return self.process.exitcode

    def send_signal(self, number):
        if self.process.exitcode is None:
            os.kill(self.pid, number)

    def kill(self):
        self.process.kill()
        self.process.join()

    def terminate(self):
        self.process.terminate()

    def wait(self, timeout=WAIT):
        """Its exit code (negative: the signal that ended it)."""
        self.process.join(timeout)
        if self.process.exitcode is None:
            self.kill()
            raise TimeoutError(f"did not end within {timeout} s: {self.out[-1500:]}{self.err[-1500:]}")
        return self.process.exitcode

    def line(self, timeout=WAIT):
        """The first line that it prints, or what there is when it ends."""
        deadline = time.monotonic() + timeout
        while "\n" not in self.out and self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.out.partition("\n")[0]


def start(*words, **options):
    return Command(words, **options)


def run(*words, check=True, **options):
    """Start a command and wait for its end."""
    command = Command(words, **options)
    command.wait()
    assert command.returncode == 0 or not check, command
    return command


def launch(*words, processes=2, environment=None, **options):
    """Start the processes of a distributed training, with the environment that `torchrun` gives to them."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    place |= {"WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": str(processes)}
    place = {**(os.environ if environment is None else environment), **place}
    return [
        Command(words, environment={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, **options)
        for rank in range(processes)
    ]


CLIENT = """
import json, os, signal, socket, sys
with socket.socket(socket.AF_UNIX) as server:
    server.connect(sys.argv[1])
    asked = json.dumps([sys.argv[2:], dict(os.environ), os.getcwd()]).encode()
    socket.send_fds(server, [len(asked).to_bytes(8, "big")], [0, 1, 2])
    server.sendall(asked)
    code = int.from_bytes(server.recv(8), "big", signed=True)
if code < 0:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""


@functools.cache
def python():
    """Path of a program that does what `sys.executable` does, for what others start: what it is given runs in a fork, which ends with it."""
    _serve(multiprocessing.get_context("forkserver"))
    place = tempfile.TemporaryDirectory()
    atexit.register(place.cleanup)
    folder = Path(place.name)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(folder / "socket"))
    listening.listen()
    (folder / "client.py").write_text(CLIENT)
    words = map(shlex.quote, (sys.executable, "-IS", str(folder / "client.py"), str(folder / "socket")))
    (folder / "python").write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    (folder / "python").chmod(0o755)

    def accept():
        while True:
            threading.Thread(target=_answer, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return str(folder / "python")


def _answer(client):
    """Starts what a client asks for, and tells it the exit code; a client that has gone is not waited for."""
    with client, client.makefile("rb") as asking:
        head, files, *_ = socket.recv_fds(client, 8, 3)
        words, environment, folder = json.loads(asking.read(int.from_bytes(head, "big")))
        words = [word for number, word in enumerate(words) if number or word != "-u"]
        passed = {number: _Passed(file) for number, file in enumerate(files)}
        process = multiprocessing.get_context("forkserver").Process(
            target=_become, args=(words, environment, folder, passed, False)
        )
        started = popen_forkserver.Popen(
            process
        )  # not by `start`, after which other threads may ask for its exit code
        for file in files:
            os.close(file)
        if started.sentinel not in multiprocessing.connection.wait([started.sentinel, client]):
            started.kill()
        with contextlib.suppress(BrokenPipeError):
            client.sendall(started.wait().to_bytes(8, "big", signed=True))


class _Passed:
    """An open file, whose number it is in the process that is started."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _received, (reduction.DupFd(self.number),)


def _received(passed):
    return passed.detach()


@functools.cache
def _fresh():
    server = subprocess.Popen(
        [sys.executable, fresh_server.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.communicate)
    return server


def fresh(code, *words, environment=None, folder=None):
    """`python -c CODE WORDS` by a fork of a process that has imported torch and transformers, and nothing of lmctr."""
    server = _fresh()
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as err:
        environment = dict(os.environ if environment is None else environment)
        asked = [[code, *map(str, words)], environment, str(folder or os.getcwd()), [out.name, err.name]]
        server.stdin.write(json.dumps(asked) + "\n")
        server.stdin.flush()
        return subprocess.CompletedProcess(code, int(server.stdout.readline()), out.read(), err.read())
