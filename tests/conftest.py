"""Makes the helper modules of this folder importable from the tests in its subfolders, and keeps threads few."""

import os

import pytest

# Tests run in several processes; more threads than cores make every one of them wait. Read when torch is imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def pytest_collection_modifyitems(config, items):
    """Leave out the tests that run for long and add nothing but numbers, unless `-m` names their marker."""
    if "campaign" in config.option.markexpr:
        return
    skip = pytest.mark.skip(reason="the whole campaign: -m campaign")
    for item in items:
        if "campaign" in item.keywords:
            item.add_marker(skip)
