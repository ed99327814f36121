"""Makes the helper modules of this folder importable from the tests in its subfolders, and keeps threads few."""

import os

import pytest

# Tests run in several processes; more threads than cores make every one of them wait. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that run for long or need much that is seldom there, unless `-m` names their marker."""
    for marker in ("campaign", "smollm2"):
        if marker in config.option.markexpr:
            continue
        skip = pytest.mark.skip(reason=f"runs where asked for: -m {marker}")
        for item in items:
            if marker in item.keywords:
                item.add_marker(skip)
