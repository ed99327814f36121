"""What comes before all other imports: whether this process is the command line, where a Ctrl-C ends it without a traceback from here on."""

import signal
import sys
from contextlib import suppress
from os.path import basename, splitext


def is_command_line() -> bool:
    """Whether this process was started as `lmctr ...`, or as `python -m lmctr ...`, which is what `accelerate launch -m lmctr` starts too.

    While Python looks for the module of `-m`, which imports this package, the name of the program is "-m".
    """
    program = getattr(sys, "argv", [""])[0:1]
    if program == ["-m"]:
        options = sys.orig_argv[1:]
        return "-m" in options and options[options.index("-m") + 1 :][:1] == ["lmctr"]
    return bool(program) and splitext(basename(program[0]))[0] == "lmctr"


def end_at_interrupt() -> None:
    """Let a Ctrl-C end the process without a word, until `hear_interrupt`; not in children, which import the program and do not run it."""
    if "multiprocessing.spawn" not in sys.modules and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_DFL)


def hear_interrupt() -> None:
    """Let a Ctrl-C raise `KeyboardInterrupt` again."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_command_line():
    end_at_interrupt()
