"""Scores for requests and rows by a model and its processor, which says what it reads (`request_kind`)."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["load_retriever", "predict_rows"]


def __getattr__(name: str) -> Any:
    # options.py is read for the help of the command line: nothing heavy before it is asked for
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module("lmctr.runs.answers.predict"), name)
