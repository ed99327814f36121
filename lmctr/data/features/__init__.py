"""Features of rows: their fields, vocabularies, and the processor that turns rows into ids."""

from lmctr.utils.lazy import moved_names

__getattr__ = moved_names(__name__, "lmctr.data.features.processor")
