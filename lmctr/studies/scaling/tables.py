"""What the sub-verbs of `lmctr scaling` share: CSV files in and out, tables, folders of results."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmctr.utils.files import write_text
from lmctr.utils.suggest import nearest
from lmctr.utils.tables import markdown_table, text_table

__all__ = ["check_file", "compact", "flops_text", "markdown_table", "output_folder", "parse_sizes", "read_rows", "sizes_text", "text_table", "write_rows"]  # fmt: skip


def read_rows(path: str | Path, text: Sequence[str] = (), numbers: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Columns of a CSV file with a header, a dict per row.

    Args:
        path: the file. text: columns that are kept as text. numbers: columns that are read as finite floats.

    Raises:
        ValueError: a column is missing (with the nearest there is), an empty or wrong value (with its line), no rows.
        FileNotFoundError: no such file.
    """
    rows = []
    with open(check_file(path), newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        there = list(reader.fieldnames or ())
        for name in (*text, *numbers):
            if name not in there:
                guess = nearest(name, there)
                hint = f" did you mean {guess!r}?" if guess else ""
                raise ValueError(f"{path} has no column {name!r};{hint} its columns: {', '.join(there)}")
        for row in reader:
            values: dict[str, Any] = {}
            for name in text:
                values[name] = (row[name] or "").strip()
                if not values[name]:
                    raise ValueError(f"{path}, line {reader.line_num}: column {name!r} is empty")
            for name in numbers:
                try:
                    values[name] = float(row[name])
                except (TypeError, ValueError):
                    values[name] = math.nan
                if not math.isfinite(values[name]):
                    raise ValueError(f"{path}, line {reader.line_num}: {name} is {row[name]!r}, accepted: a number")
            rows.append(values)
    if not rows:
        raise ValueError(f"{path} has a header and no rows")
    return rows


def check_file(path: str | Path) -> Path:
    """The path of a file that is there."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist, or is no file")
    return Path(path)


def write_rows(path: str | Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file with all columns of all rows, in the order in which they come up; None is an empty cell."""
    import io

    columns = list(dict.fromkeys(key for row in rows for key in row))
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, lineterminator="\n", restval="")
    writer.writeheader()
    writer.writerows({key: "" if value is None else value for key, value in row.items()} for row in rows)
    write_text(path, buffer.getvalue())


def output_folder(path: str | None) -> Path | None:
    """The folder for results, made; None where none was asked for. Raises `ValueError`: the path is a file."""
    if path is None:
        return None
    folder = Path(path)
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"--output {path} is a file; give a folder")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def parse_sizes(text: str, where: str) -> tuple[int, ...]:
    """`3328-1024-256-256-256-1` (or with commas, spaces, brackets) as numbers. Raises `ValueError` that starts with `where`."""
    words = text.strip().strip("[]()").replace(",", " ").replace("-", " ").split()
    try:
        sizes = tuple(int(word) for word in words)
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"{where}: {text!r} is no list of sizes; accepted: 3328-1024-256-256-256-1, the input first")
    return sizes


def sizes_text(sizes: Iterable[int] | str) -> str:
    """`3328-1024-256-256-256-1`; a name stays as it is."""
    return sizes if isinstance(sizes, str) else "-".join(map(str, sizes))


_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def flops_text(value: float) -> str:
    """12,600,320 as `12.60M`."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def compact(value: float | None, digits: int = 5) -> str:
    """A number of so many digits; "-" for None."""
    return "-" if value is None else f"{value:.{digits}g}"
