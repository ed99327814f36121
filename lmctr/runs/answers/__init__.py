"""Scores for requests and rows by a model and its processor, which says what it reads (`request_kind`)."""

from __future__ import annotations

from lmctr.utils.lazy import lazy_names

__all__ = ["load_item_statistics", "load_retriever", "predict_rows"]
# options.py is read for the help of the command line: nothing heavy before it is asked for
__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, "lmctr.runs.answers.predict"))
