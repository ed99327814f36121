"""Imported last by the server of `warm`: what a process makes once, when it loads its first model, is made."""

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

get_checkpoint_conversion_mapping("bert")

import lmctr.utils.frozen  # noqa: E402, F401
