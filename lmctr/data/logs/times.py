"""Times of an event table as unix seconds: numbers in a unit, ISO texts, or texts in a format that the schema states."""

from __future__ import annotations

import re
import time as clock
from itertools import product
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.utils.arrow import decoded, is_number, is_text

from . import columns
from .schema import TimeSpec

UNITS = tuple(columns.PER_SECOND)
_FRACTION = r":(\d\d)[.,](\d{1,9})"
_AS_ISO = ((_FRACTION, r":\1.\2"), (r"(\d) UTC$", r"\1Z"), (r"(:\d\d(?:\.\d+)?) ([+-]\d\d:?\d\d)$", r"\1\2"))
_OF_SERVERS = ("%Y%m%d%H%M%S", "%a, %d %b %Y %H:%M:%S GMT", "%d/%b/%Y:%H:%M:%S +0000", "%a %b %d %H:%M:%S +0000 %Y")
FORMATS = _OF_SERVERS + tuple(
    f"{date}{hours}"
    for hours in (" %H:%M:%S", " %H:%M", "", " %I:%M:%S %p", " %I:%M %p", " %H:%M:%S UTC", " %H:%M:%S %z")
    for date in (
        *("%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%Y/%m/%d", "%Y-%m-%d", "%Y%m%d", "%d-%m-%Y", "%b %d, %Y", "%d %b %Y"),
        *("%d.%m.%y", "%d/%m/%y", "%m/%d/%y"),
    )
)
"""Formats of times in words that are looked for; ISO times need none."""
_ISO = r"^\d{4}-\d\d-\d\d([ T]\d\d:\d\d(:\d\d(\.\d+)?)?)?"
_EARLIEST = 946_684_800  # the year 2000
_YEAR_1900 = -2_208_988_800
EARLIEST = 631_152_000  # 1990, where some public logs begin; numbers below tell no day


def unit_of(low: float, high: float, is_named: bool = False) -> str | None:
    """The unit in which these unix times lie between the year 2000 (1990 of a column whose name says times) and tomorrow; None: in none."""
    since = EARLIEST if is_named else _EARLIEST
    for power, unit in enumerate(UNITS):
        if low >= since * 1000**power and high <= (clock.time() + 86_400) * 1000**power:
            return unit
    return None


def iso_times(texts: pa.Array) -> pa.Array | None:
    """Texts such as `2024-03-01T12:00:00Z` as timestamps; None where one of them is no ISO time. Those with fractions of a second may have a comma, and a
    blank before the zone, as databases and logs of programs write them."""
    found = _as_they_stand(texts)
    if found is None and is_text(texts.type) and pc.any(pc.match_substring_regex(texts, _FRACTION)).as_py():
        for pattern, plain in _AS_ISO:
            texts = pc.replace_substring_regex(texts, pattern, plain)
        found = _as_they_stand(texts)
    return found


def _as_they_stand(texts: pa.Array) -> pa.Array | None:
    for unit, zone in product(("us", "ns"), (None, "UTC")):
        try:
            return pc.cast(texts, pa.timestamp(unit, zone))
        except pa.ArrowInvalid:
            continue
    return None


def formats_of_texts(texts: pa.Array) -> list[str]:
    """Those of `FORMATS` that read every one of some texts as a time since 1900, those whose times lie closest together first (9/11/2017 and 11/11/2017 are
    days apart, or months)."""
    spans = {}
    for format in FORMATS:
        if pc.strptime(texts.slice(0, 8), format=format, unit="s", error_is_null=True).null_count:
            continue
        found = pc.strptime(texts, format=format, unit="s", error_is_null=True)
        bounds = pc.min_max(found.cast(pa.int64()))
        if not found.null_count and len(found) and bounds["min"].as_py() >= _YEAR_1900:
            spans[format] = bounds["max"].as_py() - bounds["min"].as_py()
    return sorted(spans, key=spans.get)


def seconds_of(values: Any, spec: TimeSpec, source: str) -> np.ndarray:
    """(R,) int64 unix seconds of a time column.

    Raises:
        ValueError: missing values; texts that are no times; numbers of another unit than the schema says, with the line to write; times
            in the future.
    """
    array = given = decoded(columns.whole_column(values, spec.column, source))
    place = columns.place(source, spec.column)
    if is_text(array.type) or (spec.format is not None and pa.types.is_integer(array.type)):  # 20240301
        array = _of_texts(array, spec, source)
    elif spec.format is not None and (not pa.types.is_temporal(array.type) or re.match("%Y-(?!%m-%d)", spec.format)):
        # A reader takes ISO times for times by itself, and the texts of a format such as %Y-%d-%m too; a time is one, however other texts write it.
        raise ValueError(
            f"{place}: `format` reads strings, and the column has the type {array.type}; leave `format` out of the schema."
        )
    if pa.types.is_date(array.type):  # as which a reader takes ISO dates by itself
        array = array.cast(pa.timestamp("ms"))
    if spec.timezone is not None:
        if not pa.types.is_timestamp(array.type) or array.type.tz is not None:
            raise ValueError(
                f"{place}: `timezone` is for times without a zone, and the column has the type {array.type}; leave "
                "`timezone` out of the schema."
            )
        try:
            array = pc.assume_timezone(array, spec.timezone, ambiguous="earliest", nonexistent="earliest")
        except pa.ArrowInvalid as error:
            raise ValueError(f"{place}: timezone {spec.timezone!r}: {error}") from None
    if is_number(array.type) and len(array):
        _refuse_finer_unit(array, spec, place)
    seconds = columns.to_seconds(array, spec.column, source, spec.unit)
    if spec.unit != "s" and len(seconds) and abs(seconds).max() < 31 * 86_400:
        _refuse_coarser_unit(seconds, spec.unit, place)
    hint = "Events have happened; check the unit or format of the time."
    columns.refuse(seconds > clock.time() + 86_400, given, spec.column, source, "lie in the future", hint)
    return seconds


def have_zone(times: pa.Array) -> bool | None:
    """Whether times have a zone, by the first one; None: it is no timestamp and no ISO time."""
    first = decoded(times).drop_null().slice(0, 1)
    first = iso_times(first) if is_text(first.type) else first
    return first.type.tz is not None if first and pa.types.is_timestamp(first.type) else None


def _of_texts(array: pa.Array, spec: TimeSpec, source: str) -> pa.Array:
    """Texts as timestamps, or as numbers where all of them are."""
    texts = array.cast(pa.string())
    if spec.format is not None:
        # the parser reads over the name of a zone, and of these only two say an offset
        formats = columns.with_zone_names(spec.format) if spec.timezone is None else [spec.format]
        found = pc.coalesce(*(pc.strptime(texts, format=own, unit="s", error_is_null=True) for own in formats))
        problem, rule = "are no times in the schema's format", f"Expected the format {spec.format!r}."
        if len(formats) > 1:
            rule += " Of zones by name UTC and GMT are read; for another one state `timezone`, or write offsets (%z)."
        columns.refuse(columns.nulls(found), array, spec.column, source, problem, rule)
        return found
    found = iso_times(texts)
    if found is not None:
        return found
    _refuse_odd_iso(texts, spec, source)
    formats = formats_of_texts(texts.slice(0, 1000))
    hint = "Times in words need `format` in the schema."
    if formats:
        hint = f'They look like `format`: write `time: {{column: {spec.column}, format: "{formats[0]}"}}`.'
    return columns.text_numbers(array, spec.column, source, hint)


def _refuse_odd_iso(texts: pa.Array, spec: TimeSpec, source: str) -> None:
    """Raises for the few that are no ISO times, or have a zone and the others none, where most texts are ISO times."""
    zoned, plain = (
        pc.match_substring_regex(texts, rf"{_ISO}{zone}$").to_numpy(zero_copy_only=False)
        for zone in (r"(Z|[+-]\d\d(:?\d\d)?)", "")
    )
    kind, words = (zoned, "with") if zoned.sum() > plain.sum() else (plain, "without")
    if kind.sum() > len(texts) / 2:
        problem = f"are no ISO times {words} a zone, as the others are"
        columns.refuse(~kind, texts, spec.column, source, problem, "Write all times alike.")


def _refuse_finer_unit(array: pa.Array, spec: TimeSpec, place: str) -> None:
    """Raises for numbers that are times of this century in a finer unit than the schema's."""
    bounds = pc.min_max(array)
    unit = unit_of(bounds["min"].as_py() or 0, bounds["max"].as_py() or 0)
    if unit is not None and UNITS.index(unit) > UNITS.index(spec.unit):
        raise ValueError(
            f"{place}: read in the unit {spec.unit!r} all times (such as {array[0].as_py()}) are outside the years up to 9999 or in the "
            f"future; they look like {unit}: set the time unit in the schema, `time: {{column: {spec.column}, unit: {unit}}}`."
        )


def _refuse_coarser_unit(seconds: np.ndarray, given: str, place: str) -> None:
    """Raises for times that all lie in January 1970, when a coarser unit puts them between 2000 and today."""
    finer = UNITS.index(given)
    for coarse, unit in enumerate(UNITS[:finer]):
        factor = 1000 ** (finer - coarse)
        if (seconds.min() + 1) * factor >= _EARLIEST and seconds.max() * factor <= clock.time() + 86_400:
            fix = "leave `unit` out" if unit == "s" else f"set `unit: {unit}`"
            raise ValueError(
                f"{place}: read in the unit {given!r} all times lie in January 1970; the numbers look like {unit}: {fix} in "
                "the schema."
            )
