"""Things named by "module:name", imported when they are first wanted."""

from __future__ import annotations

import gc
import importlib
import sys
import warnings
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any


def imported(module: str) -> ModuleType:
    """A module. While it is imported the collector of garbage rests: what imports make stays, and going over it again and again takes a fifth
    of the time of importing torch and transformers."""
    rests = not gc.isenabled()
    gc.disable()
    try:
        return importlib.import_module(module)
    finally:
        if not rests:
            gc.enable()


def load_target(target: str) -> Any:
    """What "module:name" names."""
    module, _, name = target.partition(":")
    return getattr(imported(module), name)


def lazy_names(package: str, modules: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose public names stand in `modules`, each imported when its name is asked for."""

    def find(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(imported(modules[name]), name)

    return find, lambda: sorted({*vars(sys.modules[package]), *modules})


def moved_names(package: str, *modules: str) -> Callable[[str], Any]:
    """The `__getattr__` of a package that was a module once: names that it held come from `modules` now, with a warning."""

    def find(name: str) -> Any:
        for module in () if name.startswith("__") else modules:
            source = importlib.import_module(module)
            if hasattr(source, name):
                message = f"{package}.{name} is now in {module}; the old path goes with the next release"
                warnings.warn(message, DeprecationWarning, stacklevel=2)
                return getattr(source, name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find
