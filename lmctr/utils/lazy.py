"""Things named by "module:name", imported when they are first wanted."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["load_target"]


def load_target(target: str) -> Any:
    """What "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
