"""Impressions of ads: their source and their store."""

from lmctr.utils.lazy import moved_names

__getattr__ = moved_names(
    __name__, "lmctr.data.impressions.store", "lmctr.data.batches.impressions", "lmctr.data.registry"
)
