"""What an object works out once, by `functools.cached_property`, goes when what it was worked out of is set anew."""

from __future__ import annotations

import functools
from functools import cached_property
from typing import Any


@functools.cache
def _kept_by(kind: type) -> tuple[str, ...]:
    return tuple(name for base in kind.__mro__ for name, own in vars(base).items() if isinstance(own, cached_property))


def forget_kept(owner: Any) -> None:
    """Drop the values of all `cached_property` of an object; the next use makes them again."""
    for name in _kept_by(type(owner)):
        owner.__dict__.pop(name, None)
