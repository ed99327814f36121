"""Tables of text: aligned for a terminal, as Markdown, as CSV.

A table is a list of lines of cells, all of one length; the first line is its head.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lmctr.utils.files import write_text

__all__ = ["markdown_table", "spread_cells", "text_table", "write_csv"]

Table = Sequence[Sequence[str]]


def text_table(table: Table, left: Collection[int] = (0,)) -> str:
    """Cells as aligned plain text.

    Args:
        table: lines of cells. left: numbers of the columns that stand to the left; the others stand to the right.
    """
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    lines = []
    for line in table:
        cells = zip(range(len(widths)), line, widths)
        lines.append(
            "  ".join(text.ljust(width) if column in left else text.rjust(width) for column, text, width in cells)
        )
    return "\n".join(line.rstrip() for line in lines)


def markdown_table(table: Table, left: Collection[int] = (0,)) -> str:
    """Cells as a Markdown table, as `text_table` takes them; a bar inside a cell is escaped."""
    head, *rows = table
    rule = ["---" if column in left else "---:" for column in range(len(head))]
    lines = ([cell.replace("|", "\\|") for cell in line] for line in (head, rule, *rows))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread_cells(values: Mapping[str, tuple[float, float | None]], names: Iterable[str]) -> list[str]:
    """Cells "mean ± spread" by name; the mean alone where the spread is None, "-" for a name without a value."""

    def cell(name: str) -> str:
        if name not in values:
            return "-"
        mean, spread = values[name]
        return f"{mean:.4f}" if spread is None else f"{mean:.4f} ± {spread:.4f}"

    return [cell(name) for name in names]


def write_csv(
    path: str | Path, rows: Sequence[Mapping[str, Any]], digits: int | None = None, line_end: str = "\r\n"
) -> Path:
    """A CSV file (UTF-8) with all columns of all rows, in the order in which they come up; None is an empty cell.

    Args:
        path: the file; a reader sees the old one or the new one, never half of it.
        rows: column to value.
        digits: significant digits of floats (default: all that they have).
        line_end: what ends a line.

    Returns:
        The path.
    """

    def plain(value: Any) -> Any:
        return f"{value:.{digits}g}" if digits is not None and isinstance(value, float) else value

    buffer = io.StringIO(newline="")
    writer = csv.DictWriter(buffer, list(dict.fromkeys(key for row in rows for key in row)), lineterminator=line_end)
    writer.writeheader()
    writer.writerows({key: plain(value) for key, value in row.items()} for row in rows)
    write_text(path, buffer.getvalue())
    return Path(path)
