"""Tables of text: aligned for a terminal, as Markdown, as CSV.

A table is a list of lines of cells, all of one length; the first line is its head.
"""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from lmctr.utils.files import check_file, write_text
from lmctr.utils.suggest import no_column

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


def seed_cells(runs: Sequence[Mapping[str, float]], names: Iterable[str]) -> list[str]:
    """Cells "mean ± sample standard deviation" of the metrics of runs; the value alone where all agree, "-" for one that not all of them have."""

    def cell(name: str) -> str:
        values = [run[name] for run in runs if run.get(name) is not None]
        if not values or len(values) < len(runs):
            return "-"
        if min(values) == max(values):
            return f"{values[0]:,}" if isinstance(values[0], int) else f"{values[0]:.4f}"
        return f"{fmean(values):.4f} ± {stdev(values):.4f}"

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


def read_csv(
    path: str | Path, text: Sequence[str] = (), numbers: Sequence[str] = (), positive: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Columns of a small CSV file with a header, a dict per row.

    Args:
        path: the file. text: columns that are kept as text. numbers: columns that are read as finite floats. positive: those that must be above 0 as
            well.

    Raises:
        ValueError: a column is missing (with the nearest there is), an empty or wrong value (with its line), no rows, and
            what `read_cells` refuses.
        FileNotFoundError: no such file.
    """
    there, given = read_cells(path)
    for name in (*text, *numbers, *positive):
        if name not in there:
            raise ValueError(f"{path} has {no_column(name, there)}")
    rows = []
    for line, row in given:
        values: dict[str, Any] = {name: (row[name] or "").strip() for name in text}
        for name in text:
            if not values[name]:
                raise ValueError(f"{path}, line {line}: column {name!r} is empty")
        for name in (*numbers, *positive):
            values[name] = cell_number(row[name])
            if values[name] is None:
                raise ValueError(f"{path}, line {line}: {name} is no number: {row[name]!r}")
            if name in positive and values[name] <= 0:
                raise ValueError(f"{path}, line {line}: {name} is {row[name]}, accepted: a number above 0")
        rows.append(values)
    if not rows:
        raise ValueError(f"{path} has a header and no rows")
    return rows


def cell_number(cell: str | None) -> float | None:
    """The finite number that a cell holds; None of another one."""
    try:
        value = float(cell or "")
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def read_cells(path: str | Path) -> tuple[list[str], list[tuple[int, dict[str, str | None]]]]:
    """Columns of a small CSV file with a header, and its rows as text, each with its line; a row that ends early has None in the rest.

    Raises:
        ValueError: no CSV file in UTF-8, an empty one, values parted by something else than commas, two columns of one name, a row of more values than columns (with its line).
        FileNotFoundError: no such file.
    """
    rows = []
    try:
        with open(check_file(path), newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            columns = list(reader.fieldnames or ())
            if not columns:
                raise ValueError(f"{path} is empty: it needs a line of column names, and rows")
            if len(columns) == 1 and (sign := next((sign for sign in ";\t|" if sign in columns[0]), None)):
                raise ValueError(
                    f"{path}: its values are parted by {sign!r}; write commas, and numbers with a decimal point"
                )
            if twice := [name for name in dict.fromkeys(columns) if name and columns.count(name) > 1]:
                raise ValueError(f"{path} has two columns {twice[0]!r}: give each a name of its own")
            for row in reader:
                if None in row:  # the values that stand beyond the last column: it is not known which ones were meant
                    raise ValueError(
                        f"{path}, line {reader.line_num}: {len(columns) + len(row[None])} values for {len(columns)} columns; write numbers with "
                        "a decimal point and without thousand separators (0.5, 1000), and text that holds a comma in quotes"
                    )
                rows.append((reader.line_num, row))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path} is no CSV file in UTF-8: {error}") from error
    return columns, rows
