"""Imported last by the server of `warm`: what a process makes once, when it loads its first model, is made."""

import gc
import os

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("bert")

os.fsync = lambda handle: os.fstat(handle) and None  # as in conftest
gc.set_threshold(50_000, 10, 10)  # too

import lmctr.runs.inputs.sequence  # noqa: E402
import lmctr.utils.frozen  # noqa: E402

lmctr.runs.inputs.sequence._COST_ROWS = 2  # too
