"""Classes that live in a package, whatever a checkpoint's `auto_map` says."""

from __future__ import annotations

from typing import Any


def stays_in_package(cls: type, auto_class: Any = None) -> None:
    """For `register_for_auto_class`: transformers calls it after loading by `trust_remote_code`, and would copy the class's file beside what is
    saved later. The package is the only place of the code; what `lmctr push` writes names it."""
