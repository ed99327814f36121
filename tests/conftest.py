"""Makes the helper modules of this folder importable from the tests in its subfolders, and keeps threads few."""

import os

# Tests run in several processes; more threads than cores make every one of them wait. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
