"""Progress on a terminal and in a pipe, of what takes longer than two seconds and of what does not; and silence."""

import fcntl
import io
import logging
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import time
from types import SimpleNamespace

import pytest

from lmctr.runs.progress import ProgressLines
from lmctr.utils import progress


class Stream(io.StringIO):
    """What is written to it; a terminal or not."""

    def __init__(self, is_terminal):
        super().__init__()
        self.is_terminal = is_terminal

    def isatty(self):
        return self.is_terminal


@pytest.fixture
def clock(monkeypatch):
    """Seconds that only sleeping passes, at once."""
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))


@pytest.fixture
def soon(monkeypatch):
    """A twentieth of the patience, and of the time between lines."""
    monkeypatch.setattr(progress, "PATIENCE", 0.1)
    monkeypatch.setattr(progress, "_LINES", (0.2, 1.0))
    monkeypatch.setattr(progress, "_BETWEEN_BARS", 0.01)


def written(monkeypatch, is_terminal, work):
    stream = Stream(is_terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    work()
    return stream.getvalue()


def counted(seconds=0.5, steps=10):
    for _ in progress.over(range(steps), "counting", "rows"):
        time.sleep(seconds / steps)


def test_one_thing_is_not_counted(soon, monkeypatch):
    with progress.showing():
        text = written(monkeypatch, False, lambda: counted(steps=1))
    assert re.fullmatch(r"(counting: 0:0\d passed\n)+counting: done in 0:0\d\n", text)


def test_lines_where_there_is_no_terminal(soon, clock, monkeypatch):
    with progress.showing():
        text = written(monkeypatch, False, counted)
    lines = text.splitlines()
    assert 2 <= len(lines) <= 5
    assert lines[0].startswith("counting: ")
    assert "% of 10 rows" in lines[0]
    assert re.search(r", 0:0\d passed, 0:0\d left$", lines[0])
    assert re.fullmatch(r"counting: done in 0:0\d", lines[-1])
    assert "\r" not in text


def test_a_bar_on_a_terminal_which_is_cleared(soon, clock, monkeypatch):
    with progress.showing():
        text = written(monkeypatch, True, counted)
    assert "counting:" in text
    assert "/10.0 [" in text
    assert "rows/s" in text
    assert "\n" not in text
    assert text.endswith("\r")


@pytest.mark.parametrize("is_terminal", [True, False])
def test_nothing_of_what_is_quick(is_terminal, clock, monkeypatch):
    with progress.showing():
        assert written(monkeypatch, is_terminal, counted) == ""
        assert written(monkeypatch, is_terminal, lambda: progress.step("quick")(counted)()) == ""


def test_work_that_is_not_counted_is_shown_by_its_time(soon, monkeypatch):
    with progress.showing():
        text = written(monkeypatch, False, lambda: progress.step("loading")(time.sleep)(0.5))
        assert text.splitlines()[0] == "loading: 0:00 passed"
        assert text.splitlines()[-1] == "loading: done in 0:00"
        assert "loading: 00:00" in written(monkeypatch, True, lambda: progress.step("loading")(time.sleep)(0.5))
    assert not [thread for thread in threading.enumerate() if "_watch" in thread.name]


def test_only_the_innermost_writes_lines(soon, monkeypatch):
    with progress.showing():
        text = written(monkeypatch, False, lambda: progress.step("outside")(counted)())
    assert "counting:" in text
    assert "outside: 0:00 passed" not in text


def test_short_steps_of_counted_work_leave_the_lines_to_it(soon, monkeypatch):
    """A line for each of sixty steps of three seconds hides how far the work is."""
    monkeypatch.setattr(progress, "_LINES", (5.0, 9.0))

    def steps():
        for _ in progress.over(range(4), "counting", "rows"):
            with progress.Work("step"):
                time.sleep(0.2)

    with progress.showing():
        text = written(monkeypatch, False, steps)
    assert text.startswith("counting: 25% of 4 rows")
    assert "step" not in text


def test_an_error_ends_it_without_a_word(soon, clock, monkeypatch):
    def fails():
        for number in progress.over(range(10), "counting", "rows"):
            time.sleep(0.05)
            if number == 8:
                raise RuntimeError("no")

    def work():
        with pytest.raises(RuntimeError):
            fails()

    with progress.showing():
        assert "done" not in written(monkeypatch, False, work)
    assert progress._open == []


def test_silence_has_the_last_word(soon, clock, monkeypatch, capsys):
    assert written(monkeypatch, False, counted) == ""  # nobody asked for it
    progress.say("shown")
    with progress.showing(False), progress.showing():
        assert written(monkeypatch, False, counted) == ""
        progress.say("hidden")
        with progress.Work("asked for", 2, "rows", show=True) as work:
            assert not work.shown
    monkeypatch.setenv("RANK", "1")
    with progress.showing():
        assert written(monkeypatch, False, counted) == ""
    monkeypatch.delenv("RANK")
    logger = logging.getLogger("lmctr.progress")
    monkeypatch.setattr(logger, "level", logging.WARNING)
    logger.manager._clear_cache()
    with progress.showing():
        assert written(monkeypatch, False, counted) == ""
        progress.say("hidden")
    monkeypatch.undo()
    logger.manager._clear_cache()
    assert capsys.readouterr().out == "shown\n"


def test_a_line_goes_above_the_bars_and_puts_the_next_line_off(soon, clock, monkeypatch, capsys):
    def work():
        for _ in progress.over(range(40), "counting", "rows"):
            time.sleep(0.02)
            progress.say("a line")

    with progress.showing():
        assert written(monkeypatch, False, work) == ""
        assert capsys.readouterr().out == "a line\n" * 40
        monkeypatch.setattr(sys, "stdout", Stream(True))
        assert "counting:" in written(monkeypatch, True, work)
        assert sys.stdout.getvalue().count("a line\n") == 40


@pytest.mark.parametrize(("last", "steps", "share", "left"), [(None, 40, 18, "32:05"), (10, 10, 70, "2:55")])
def test_the_bar_and_the_lines_of_a_training_tell_one_time(monkeypatch, last, steps, share, left):
    """Both from the start of the training, where a first step that compiles takes minutes, to its end, which may come before the schedule's."""
    now, lines = [0.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    args = SimpleNamespace(stage1_epochs=0)
    state = SimpleNamespace(
        is_world_process_zero=True, max_steps=40, global_step=4, epoch=0.0
    )  # goes on behind step 4

    def train():
        with progress.showing(), ProgressLines(say=lines.append, last=last) as callback:
            callback.on_train_begin(args, state, None)
            for state.global_step, now[0] in ((5, 100.0), (6, 110.0), (7, 175.0)):
                callback.on_step_end(args, state, None)
            callback.on_log(args, state, None, {"loss": 0.5, "learning_rate": 0.1})

    shown = written(monkeypatch, False, train)
    assert f" step 7/{steps} " in lines[0]
    assert lines[0].endswith(f"  2:55 passed, {left} left")
    assert f"training: {share}% of {steps} steps, 2:55 passed, {left} left\n" in shown


@pytest.mark.parametrize(("seconds", "text"), [(0, "0:00"), (65.9, "1:05"), (7261, "2:01:01")])
def test_clock(seconds, text):
    assert progress.clock(seconds) == text


CHILD = f"""
import sys, time
from importlib.util import module_from_spec, spec_from_file_location

spec = spec_from_file_location("progress", {progress.__file__!r})  # the package itself takes seconds
progress = module_from_spec(spec)
spec.loader.exec_module(progress)
progress.PATIENCE, progress._LINES, progress._BETWEEN_BARS = 0.1, (0.2, 1.0), 0.01
with progress.showing("quiet" not in sys.argv):
    for _ in progress.over(range(10), "counting", "rows"):
        time.sleep(0.02)
print("result")
"""


def on_terminal(*words):
    """What a child writes to a terminal of its own, stdout and stderr together."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    child = subprocess.Popen([sys.executable, "-c", CHILD, *words], stdout=follower, stderr=follower)
    os.close(follower)
    text = b""
    try:
        while block := os.read(leader, 1 << 16):
            text += block
    except OSError:  # how Linux says that the other end is closed
        pass
    os.close(leader)
    assert child.wait(60) == 0
    return text.decode()


def test_a_pseudo_terminal_and_a_pipe():
    shown = on_terminal()
    assert "counting:" in shown
    assert "\r" in shown.removesuffix("result\r\n")
    assert shown.endswith("result\r\n")
    assert on_terminal("quiet") == "result\r\n"
    piped = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    assert piped.stdout == "result\n"
    assert piped.stderr.startswith("counting: ")
    assert "\r" not in piped.stderr
    quiet = subprocess.run([sys.executable, "-c", CHILD, "quiet"], capture_output=True, text=True, check=True)
    assert (quiet.stdout, quiet.stderr) == ("result\n", "")
