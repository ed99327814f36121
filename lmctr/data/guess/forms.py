"""Files whose lines are no rows of a table: what they are, and how rows are made of them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.reading import head_of
from lmctr.utils.arrow import is_text

_PAIRS = r"^[+-]?[\d.]+(\s+\d+(:\d+)?:[-+.\deE]+)+\s*$"
_SHOWN = r"^\S+-[01]( \S+-[01])*$"


def refuse_pairs(path: Path) -> None:
    """ValueError: the lines of a text file hold a label and index:value pairs."""
    lines = pa.array(head_of(path).splitlines()[:100][:-1] or head_of(path).splitlines(), pa.string())
    if len(lines) and pc.all(pc.match_substring_regex(lines, _PAIRS)).as_py():
        raise ValueError(
            f"{path}: a label and index:value pairs on each line, as LIBSVM, svmlight and libffm read: the columns have no names. Write a table, of LIBSVM's "
            f"such as: x, y = sklearn.datasets.load_svmlight_file({str(path)!r}); pandas.DataFrame(x.toarray()).add_prefix('f')"
            ".assign(label=(y > 0).astype(int)).to_parquet('rows.parquet')"
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
