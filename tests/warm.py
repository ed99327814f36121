"""Starts command lines as forks of a process that has imported the library, without the seconds that these imports take.

`start("-m", "lmctr", "train", ...)` does what `python -m lmctr train ...` does: exit codes, signals, environment, output and working folder are
those of a process of its own. What start-up itself does is tested with real interpreters.
"""

import importlib
import multiprocessing
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import weakref
from multiprocessing import forkserver, reduction

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
            sys.stdin = open(0, closefd=False)
    paths = [path for path in environment.get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.path[:0] = [path for path in paths if path not in sys.path]
    if "HF_ENDPOINT" in environment:
        _read_hub_settings_again()
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


def _read_hub_settings_again():
    """The libraries of the Hub read the environment when they are imported."""
    import datasets.config
    import huggingface_hub.constants
    import huggingface_hub.hf_api
    import transformers.utils.hub

    changed = {}
    for settings in (huggingface_hub.constants, datasets.config):
        before = dict(vars(settings))
        importlib.reload(settings)
        changed |= {
            name: (before.get(name), value)
            for name, value in vars(settings).items()
            if name.isupper() and value != before.get(name)
        }
    modules = os.path.join(huggingface_hub.constants.HF_HOME, "modules")
    changed["HF_MODULES_CACHE"] = (transformers.utils.hub.HF_MODULES_CACHE, modules)
    for module in list(sys.modules.values()):
        for name in changed.keys() & vars(module).keys():
            if vars(module)[name] == changed[name][0]:
                setattr(module, name, changed[name][1])
    huggingface_hub.hf_api.api.endpoint = huggingface_hub.constants.ENDPOINT


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


def _started(words, environment, files, folder=None, own_group=False):
    context = multiprocessing.get_context("forkserver")
    _serve(context)
    environment = dict(os.environ if environment is None else environment)
    given = ([str(word) for word in words], environment, str(folder or os.getcwd()), files, own_group)
    process = context.Process(target=_become, args=given)
    process.start()
    return process


class Command:
    """A command that was started, with what of `subprocess` the tests use; `out` and `err` (`stdout`, `stderr`) are its output so far."""

    def __init__(self, words, environment=None, folder=None, own_group=False):
        place = tempfile.mkdtemp()
        weakref.finalize(self, shutil.rmtree, place, ignore_errors=True)
        self.files = [os.path.join(place, name) for name in ("out", "err")]
        for file in self.files:
            open(file, "w").close()
        self.process = _started(words, environment, dict(zip((1, 2), self.files)), folder, own_group)
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


class _Passed:
    """The number of an open file, in the process that is started."""

    def __init__(self, number):
        self.number = number

    def __reduce__(self):
        return _received, (reduction.DupFd(self.number),)


def _received(passed):
    return passed.detach()


class Popen:
    """What `subprocess.Popen` gives for a Python program whose errors go to a file, with pipes of text."""

    def __init__(self, command, stdin=None, stdout=None, stderr=None, text=True, env=None):
        assert command[0] == sys.executable
        assert text
        self.stdin = self.stdout = None
        files, inner = {2: _Passed(stderr.fileno())}, []
        for number, wanted, mode in ((0, stdin, "w"), (1, stdout, "r")):
            if wanted == subprocess.PIPE:
                ends = os.pipe() if number else os.pipe()[::-1]  # the outer one first
                setattr(self, ("stdin", "stdout")[number], open(ends[0], mode))
                files[number] = _Passed(ends[1])
                inner.append(ends[1])
        self._process = _started(command[1:], env, files)
        for number in inner:
            os.close(number)
        self.pid, self.kill, self.terminate = self._process.pid, self._process.kill, self._process.terminate

    @property
    def returncode(self):
        return self._process.exitcode

    def poll(self):
        return self.returncode

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired("", timeout)
        return self.returncode

    def communicate(self, input=None):
        if self.stdin is not None:
            with self.stdin:
                self.stdin.write(input or "")
        with self.stdout:
            out = self.stdout.read()
        self.wait()
        return out, None


class Subprocess:
    """Stands for the module `subprocess` in a module that starts Python programs."""

    PIPE, Popen = subprocess.PIPE, Popen

    @staticmethod
    def run(command, input="", capture_output=True, text=True, check=False, env=None):
        with tempfile.TemporaryFile("w+") as errors:
            process = Popen(command, subprocess.PIPE, subprocess.PIPE, errors, text, env)
            out, _ = process.communicate(input)
            errors.seek(0)
            return subprocess.CompletedProcess(command, process.returncode, out, errors.read())
