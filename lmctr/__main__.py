"""`python -m lmctr VERB ...`, which is also what `accelerate launch -m lmctr VERB ...` runs."""

from __future__ import annotations

import sys

from lmctr.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
