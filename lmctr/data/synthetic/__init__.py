"""Generated data."""

from lmctr.utils.lazy import moved_names

__getattr__ = moved_names(__name__, "lmctr.data.synthetic.log")
