"""`lmctr VERB ...` and `python -m lmctr VERB ...`, which is also what `accelerate launch -m lmctr VERB ...` runs."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

from lmctr.cli import main as cli


def main() -> int:
    """Run the command line of this process; an error that nobody expected ends with what a report of it needs, and code 1."""
    try:
        return cli.main()
    except Exception as error:
        if cli.is_debugging():
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        print(
            f"error: {type(error).__name__}: {error} ({Path(place.filename).name}, line {place.lineno})\n"
            "this looks like a bug of lmctr; LMCTR_DEBUG=1 shows where it happened",
            file=sys.stderr,
        )
        return 1


if __name__ == "__main__":
    sys.exit(main())
