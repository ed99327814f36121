"""Names of the columns of text files whose first line holds values."""

from __future__ import annotations

import csv
import io
import itertools
import re
from collections.abc import Collection, Sequence

from lmctr.utils.suggest import first_of

from .amounts import number_form

_NUMBER = number_form()
_TIME = r"[6-9]\d{8}|1\d{9}|1\d{12}|\d{4}-\d\d?-\d\d?.*|\d\d?[./]\d\d?[./]\d\d(\d\d)?.*"
_HOURS = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
_RANGE = r"(.*?)(\d+)\.\.(.*?)(\d+)"
_SHOWN = 8
HEAD = 1 << 16
"""Bytes of a file that its first lines are looked at in."""


def names_from(text: str, option: str = "--names") -> list[str]:
    """The names that a text lists, `user,item,time`; `I1..I13` are thirteen.

    Raises:
        ValueError: an empty name, one that stands twice, a range of two words or without members; names the option.
    """
    names: list[str] = []
    for part in (part.strip() for part in text.split(",")):
        found = re.fullmatch(_RANGE, part)
        if found is None:
            names.append(part)
            continue
        word, first, other, last = found.groups()
        if other not in ("", word) or int(first) > int(last):
            raise ValueError(f"{option}: {part!r} is no range of names; accepted: such as I1..I13")
        names += [f"{word}{number}" for number in range(int(first), int(last) + 1)]
    doubled = next((name for name in names if names.count(name) > 1), None)
    if "" in names or doubled is not None:
        wrong = "a name is empty" if "" in names else f"{doubled!r} stands twice"
        raise ValueError(f"{option} {text}: {wrong}; give each column a name of its own, in order")
    return names


def first_rows(head: bytes, delimiter: str, quoted: bool = True) -> list[list[str]]:
    """The cells of the first lines of a text, twenty at most, without blank ones and what is cut off at the end of `HEAD` bytes."""
    text = head.decode("utf-8", "replace").lstrip("\ufeff\r\n")
    if len(head) >= HEAD:
        text = text[: max(text.rfind("\n"), text.rfind("\r")) + 1] or text
    quoting = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, quoting=quoting)
    return [*itertools.islice(filter(None, rows), 20)]


def names_of_rows(names: list[str], rows: Sequence[Sequence[str]], source: str, delimiter: str) -> list[str]:
    """The names, and an empty one where the rows end in a delimiter that the line of names lacks.

    Raises:
        ValueError: every line stands in quotes as one text.
    """
    most = names[0].count(delimiter) if len(names) == 1 and rows else 0  # it stands in names that are quoted only
    if most and all(len(cells) == 1 and cells[0].count(delimiter) >= most for cells in rows):
        raise ValueError(
            f"{source}: every line stands in quotes, as one text ({names[0]!r:.80}); take the quotes away: "
            f"""sed -E 's/^([^"]*)"(.*)"\\r?$/\\1\\2/; s/""/"/g' {source} > plain.csv"""
        )
    ends = rows and "" not in names and all(len(cells) == len(names) + 1 and not cells[-1] for cells in rows)
    return [*names, ""] if ends else names


def names_of_first(
    rows: Sequence[Sequence[str]], names: Sequence[str], source: str, delimiter: str
) -> list[str] | None:
    """The names of a file's columns where its first line holds values: those given, and an empty one where the rows end in a delimiter. None where the
    first line holds names itself: two of those given, or nothing else.

    Args:
        rows: cells of the first lines. names: as stated. source: the file, for errors. delimiter: what parts cells.

    Raises:
        ValueError: another number of columns than of names.
    """
    first = rows[0] if rows else []
    known = sum(cell.strip() in names for cell in first)
    if known > 1 or (first and known == len(first)):
        return None
    found = names_of_rows([*names], rows, source, delimiter)
    if first and len(first) != len(found):
        cells = first_of([*map(repr, first)], _SHOWN)
        raise ValueError(
            f"{source}: {len(names)} names ({first_of(names, _SHOWN)}), and the first row has {len(first)} columns ({cells}); give as many names, in "
            "order (--names, or `names` in the schema), or write a line of names at the top of the file."
        )
    return found


def no_header_hint(found: Sequence[str], others: Collection[str] = (), source: str = "FILE") -> str:
    """What to say of column names most of which are empty, numbers or among those `others` that are values, not all of these empty: the file seems to begin with its first row."""
    values = [name for name in found if not name.strip() or name in others or re.fullmatch(_NUMBER, name.strip())]
    if 2 * len(values) <= len(found) or not any(name.strip() for name in values):
        return ""
    return (
        f" Its first line holds values, no column names: say what the {len(found)} columns are, in order, such as lmctr init {source} --names "
        f"{_example(found)} (`names:` in a schema), or write a line of names at its top."
    )


def are_values(names: Sequence[str], doubled: Collection[str]) -> bool:
    """Whether names of which some stand twice are surely values: one of those is a number, or any is a time with hours."""
    return any(re.fullmatch(_NUMBER, name.strip()) for name in doubled) or any(
        re.match(_HOURS, name) for name in names
    )


def _example(row: Sequence[str]) -> str:
    """Names for the columns of a row: a user, an item and a rating before a time are the usual order; others are counted."""
    times = [place for place, cell in enumerate(row) if re.fullmatch(_TIME, cell.strip())]
    usual = {3: "user,item,time", 4: "user,item,rating,time"}.get(len(row))
    if usual is not None and times == [len(row) - 1]:
        return usual
    names = dict.fromkeys(times[-1:], "time")
    if not times and len(row) > 4 and row[0].strip() in ("0", "1", "-1"):
        names[0] = "label"
    parts, start = [], 0
    for place in [*sorted(names), len(row)]:
        if place > start:
            few = [f"c{own + 1}" for own in range(start, place)]
            parts += few if len(few) < 3 else [f"{few[0]}..{few[-1]}"]
        parts += [names[place]] if place in names else []
        start = place + 1
    return ",".join(parts)
