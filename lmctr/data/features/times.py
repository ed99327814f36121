"""The time of a table's rows: numbers in a unit, timestamps, ISO texts, or texts in a format."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.amounts import number_form
from lmctr.data.logs.columns import PER_SECOND
from lmctr.data.logs.times import iso_times
from lmctr.utils.arrow import decoded, is_text
from lmctr.utils.rows import MAX_SECONDS

from .columns import Rows, numbers, parse_time

TIME_UNITS = {unit: count for unit, count in PER_SECOND.items() if unit != "s"}
"""What `time_format` names for numbers that are no seconds, and how many make one."""


def time_kind(time_format: str | None) -> str:
    """What a file's column of times is read as, see [`~lmctr.data.tables.reading.stream_file`]."""
    return "any" if time_format is None or time_format in TIME_UNITS else "text"


def time_keys(column: str, time_format: str | None) -> dict[str, str]:
    """What a schema says of a column of times."""
    how = {} if time_format is None else {"unit" if time_format in TIME_UNITS else "format": time_format}
    return {"column": column, **how}


def seconds_of(rows: Rows, column: str, time_format: str | None = None) -> np.ndarray:
    """(N,) int64 unix seconds of a column of timestamps, texts (in `time_format`, else ISO), or numbers (in the unit `time_format`, else seconds).

    Raises:
        ValueError: a missing value; what is no time; numbers beyond the year 9999.
    """
    array, per_second = decoded(rows.column(column)), TIME_UNITS.get(time_format, 1)
    if is_text(array.type) and per_second == 1 and time_format is None:
        array = _of_texts(array, column, rows)
    kind = array.type
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind):
        missing = pc.is_null(array).to_numpy(zero_copy_only=False)
        rows.refuse(missing, array, column, "are missing", "Every row needs a time.")
        ticks = array.cast(pa.timestamp("us", getattr(kind, "tz", None)), safe=False).cast(pa.int64())
        return np.floor_divide(ticks.to_numpy(zero_copy_only=False), 1_000_000)
    if time_format is not None and time_format not in TIME_UNITS:
        encoded = array.cast(pa.string()).dictionary_encode()
        codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        parsed = [parse_time(text, time_format) for text in encoded.dictionary.to_pylist()]
        bad = np.array([*(value is None for value in parsed), True])[codes]
        rows.refuse(bad, array, column, "are no times", f"Accepted: times like {time_format!r}.")
        return np.array([*parsed, 0], dtype=np.int64)[codes]
    if pa.types.is_boolean(kind):
        rows.refuse(np.ones(len(array), bool), array, column, "are true or false", "Every row needs a time.")
    values = numbers(array, column, rows)
    rows.refuse(np.isnan(values), array, column, "are missing", "Every row needs a time.")
    accepted = "Are they in milliseconds or finer? Set the unit: time_format ms, us or ns; or pass unix seconds, or timestamps."
    problem = f"are outside the years up to 9999 when read as unix {time_format or 'seconds'}"
    rows.refuse(np.abs(values) > MAX_SECONDS * per_second, array, column, problem, accepted)
    if pa.types.is_integer(kind):  # without rounding
        return np.floor_divide(array.cast(pa.int64()).to_numpy(zero_copy_only=False), per_second)
    return np.floor(values / per_second).astype(np.int64)


def _of_texts(array: pa.Array, column: str, rows: Rows) -> pa.Array:
    """ISO texts as timestamps; texts of numbers as they are."""
    texts = array.cast(pa.string())
    found = iso_times(texts)
    if found is not None:
        return found
    is_number = pc.match_substring_regex(pc.utf8_trim_whitespace(texts), f"^({number_form(words='')})?$").fill_null(
        True
    )
    if not pc.all(is_number).as_py():
        encoded = texts.dictionary_encode()
        wrong = np.array([iso_times(encoded.dictionary.slice(at, 1)) is None for at in range(len(encoded.dictionary))])
        bad = wrong[encoded.indices.fill_null(0).to_numpy(zero_copy_only=False)] & pc.is_valid(texts).to_numpy(
            zero_copy_only=False
        )
        accepted = "Accepted: unix seconds, ISO times (all with a zone, or all without), timestamps, or texts with time_format."
        rows.refuse(bad if bad.any() else np.ones(len(bad), bool), array, column, "are no times", accepted)
    return array
