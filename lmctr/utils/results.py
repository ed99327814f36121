"""What a verb leaves when it is asked for a file: values as JSON, or the table that it prints as Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lmctr.utils.files import json_text, write_text


def check_output(path: str | Path | None) -> None:
    """Raise `ValueError` unless results can be written under this name, so that a long measurement is not lost."""
    if path is not None and Path(path).suffix not in (".json", ".md"):
        raise ValueError(f"--output must end in .json or .md, got {str(path)!r}")


def write_result(path: str | Path | None, result: Mapping[str, Any], table: str) -> None:
    """Write a result: its values to a .json file, its table to a .md file; no path, no file."""
    if path is None:
        return
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    write_text(target, json_text(result) if target.suffix == ".json" else f"{table}\n")
