"""Files whose lines are no rows of a table: what they are, and how rows are made of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.pairs import are_pairs
from lmctr.data.reading import head_of
from lmctr.utils.arrow import is_text

_NUMBERS = r"^\d+( \d+)*\s*$"
_SHOWN = r"^\S+-[01]( \S+-[01])*$"


def refuse_other_lines(path: Path) -> None:
    """ValueError: the lines of a text file hold a label and index:value pairs, or a user and their items."""
    if are_pairs(path):
        raise ValueError(
            f"{path}: a label and index:value pairs on each line, as LIBSVM, svmlight and libffm read; a table of it: "
            f"lmctr data convert {path} --output {path.stem}.parquet"
        )
    text = head_of(path)
    lines = pa.array(text.splitlines()[:100][:-1] or text.splitlines(), pa.string())
    widths = pc.count_distinct(pc.count_substring(pc.utf8_rtrim_whitespace(lines), " ")).as_py()
    if widths > 2 and pc.all(pc.match_substring_regex(lines, _NUMBERS)).as_py():
        raise ValueError(
            f"{path}: lines of more or fewer numbers, as where a user and all of their items stand on a line (LightGCN's files): give each pair a line of "
            "its own, user,item,time under a line of names; histories need the times, which such files lack"
        )


def refuse_lists_of_shown(table: pa.Table, path: Path) -> None:
    """ValueError: a cell holds a whole impression, `N1-0 N2-1`."""
    for place, column in enumerate(table.columns):
        values = column.slice(0, 1000).drop_null() if is_text(column.type) else column.slice(0, 0)
        if len(values) < 2 or not pc.any(pc.match_substring(values, " ")).as_py():
            continue
        if pc.all(pc.match_substring_regex(values, _SHOWN)).as_py():
            raise ValueError(
                f"{path}, column {place + 1}: whole impressions in one cell ({values[0].as_py():.40} ...), as in MIND's behaviors.tsv: give each item that was "
                "shown a row of its own, with user, item, time and clicked; docs/own_data.md (Impressions in one cell) has the lines of pandas"
            )
