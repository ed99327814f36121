"""Files whose lines are no rows of a table: what they are, and how rows are made of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.containers import have_plain_quotes
from lmctr.data.pairs import are_pairs
from lmctr.data.reading import head_of
from lmctr.utils.arrow import is_text

_FEWEST_LINES = 10
_NUMBERS = r"^\d+( \d+)*\s*$"


def refuse_plain_quotes(path: Path, sign: str) -> None:
    """ValueError: a text file whose quotes part nothing."""
    lines = head_of(path).splitlines()[:-1]
    if len(lines) >= _FEWEST_LINES and len(sign) == 1 and have_plain_quotes(lines, sign):
        raise ValueError(
            f"{path}: quotes that part nothing, as in MIND's news.tsv, between two of which rows would be lost; they are signs of texts after "
            f"lmctr data convert {path} --output {path.stem}.parquet"
        )


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


def place_of_shown(table: pa.Table) -> int | None:
    """Which column holds whole impressions in its cells, None where none does."""
    for place, column in enumerate(table.columns):
        values = column.slice(0, 1000).drop_null() if is_text(column.type) else column.slice(0, 0)
        if len(values) > 1 and pc.any(pc.match_substring(values, " ")).as_py() and is_shown(values):
            return place
    return None


def is_shown(texts: pa.Array | pa.ChunkedArray) -> bool:
    """Whether all of some texts are impressions."""
    return pc.all(pc.match_substring_regex(texts, r"^\S+-[01]( \S+-[01])*\s*$")).as_py()
