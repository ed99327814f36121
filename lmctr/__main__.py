"""`lmctr VERB ...` and `python -m lmctr VERB ...`, which is also what `accelerate launch -m lmctr VERB ...` runs."""

from __future__ import annotations

import os
import sys
import traceback
from pathlib import Path

from lmctr._early import hear_interrupt
from lmctr.cli import main as cli
from lmctr.utils.errors import let_first_speak
from lmctr.utils.files import is_utf_8
from lmctr.utils.stopping import hear_in_finalizers


def main() -> int:
    """Run the command line of this process; an error that nobody expected ends with what a report of it needs, and code 1."""
    _open_streams()
    hear_interrupt()
    hear_in_finalizers()
    try:
        return cli.main()
    except Exception as error:
        if cli.is_debugging():
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        let_first_speak()
        print(
            f"error: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})\n"
            "this looks like a bug of lmctr; LMCTR_DEBUG=1 shows where it happened",
            file=sys.stderr,
        )
        return 1


def _open_streams() -> None:
    """Opens the null device for each standard stream that is closed (`>&-`): the next file would get its number, and what is written to it.
    Data are UTF-8 as in files, and what the output's encoding lacks is written as an escape, whatever the locale."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            handle = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(handle, True)
            setattr(sys, name, open(handle, mode))  # noqa: SIM115 - until the process ends
    if not is_utf_8(sys.stdin) and not sys.stdin.isatty():
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")
    if not is_utf_8(sys.stdout):
        sys.stdout.reconfigure(errors="backslashreplace")


if __name__ == "__main__":
    sys.exit(main())
