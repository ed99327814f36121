"""How numbers are written: plainly, or with a unit, groups of thousands or a decimal comma: "$84,835.00", "12 %", "1.234,50 EUR"."""

from __future__ import annotations

import re
from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

WRITTEN = ("decimal", "thousands", "unit")
_MONEY = r"[A-Z]{0,3}[$€£¥₹]|USD|EUR|GBP|CHF|INR|CNY|JPY|CAD|AUD|Rs\.?"
_PARTS = re.compile(
    rf"\s*[-+]?\s*(?P<before>{_MONEY})?\s*[-+]?\.?\d[\d.,'\s]*?(?P<behind>[^\d.,'\s+-][^\d+-]{{0,11}}?)?\s*"
)
_FORMS = ((".", None), (".", ","), (",", None), (",", "."), (".", "'"), (",", "'"), (".", " "), (",", " "))


def number_form(decimal: str = ".", words: str = "|nan|inf|infinity") -> str:
    """The pattern of a text that is a number, whatever the case of its letters; words: what is one without digits."""
    point = re.escape(decimal)
    return rf"[+-]?(?:[0-9]+{point}?[0-9]*|{point}[0-9]+{words})(?:[eE][+-]?[0-9]+)?"


def check_written(where: str, decimal: str, thousands: str | None = None, unit: str | None = None) -> None:
    """Raises `ValueError` at signs that no numbers are written with; `where` names the field."""
    if decimal not in (".", ","):
        raise ValueError(f"{where}: decimal={decimal!r}; accepted: '.' and ','.")
    if thousands not in (None, ",", ".", "'", " ") or thousands == decimal:
        raise ValueError(
            f"{where}: thousands={thousands!r}; accepted: ',', '.', \"'\" and ' ', and another sign than decimal."
        )
    if unit is not None and (not isinstance(unit, str) or not unit.strip() or re.search(r"[\d+-]", unit)):
        raise ValueError(
            f"{where}: unit={unit!r}; accepted: a text such as '$', '%' or 'kg', without digits and signs."
        )


def accepted_numbers(written: Mapping[str, str]) -> str:
    """What is said of texts that are no numbers written so."""
    return (
        f"Accepted: numbers, and texts of them with {', '.join(f'{key} {sign!r}' for key, sign in written.items())}."
    )


def numbers_in(texts: pa.Array, decimal: str = ".", thousands: str | None = None, unit: str | None = None) -> pa.Array:
    """(N,) float64 of texts, null of those that are no numbers written so.

    Args:
        texts: (N,). decimal: their decimal point. thousands: the sign between groups of three digits (" ": any blank). unit: what stands before or behind
            the number; a sign such as $ or % may be missing, letters may not: 900 beside 1.5k is no 0.9k.
    """
    texts = pc.utf8_trim_whitespace(texts)
    if unit is not None:
        unit = re.escape(unit.strip())
        given, texts = texts, pc.replace_substring_regex(texts, rf"^([+-]?)\s*{unit}\s*", r"\1")
        bare = pc.replace_substring_regex(texts, rf"(\d)\s*{unit}$", r"\1")
        has_letters = re.search(r"[^\W_]", unit) is not None
        texts = pc.if_else(pc.and_(has_letters, pc.equal(bare, given)), pa.scalar(None, texts.type), bare)
    if thousands is not None:
        sign = r"[ \x{a0}\x{202f}]" if thousands == " " else re.escape(thousands)
        groups = rf"^[+-]?\d{{1,3}}({sign}\d{{3}})+(\{decimal}\d*)?$"
        texts = pc.if_else(pc.match_substring_regex(texts, groups), pc.replace_substring_regex(texts, sign, ""), texts)
    texts = pc.if_else(
        pc.match_substring_regex(texts, f"^{number_form(decimal, '')}$"), texts, pa.scalar(None, texts.type)
    )
    texts = pc.replace_substring_regex(texts, r"^\+", "")
    return pc.replace_substring(texts, decimal, ".").cast(pa.float64())


def how_written(texts: pa.Array) -> dict[str, str] | None:
    """The keys of `WRITTEN` with which all of some texts (N,) are numbers, none of plain ones; None: they are no numbers."""
    texts = pc.unique(texts.drop_null())
    parts = _PARTS.fullmatch(texts[0].as_py()) if len(texts) else None
    if parts is None or (parts["before"] and parts["behind"]):
        return None
    for decimal, thousands in _FORMS:
        if thousands == " " and pc.count_distinct(pc.utf8_length(texts)).as_py() < 2:
            continue  # numbers of telephones
        found = {"decimal": decimal.strip("."), "thousands": thousands, "unit": parts["before"] or parts["behind"]}
        found = {key: sign for key, sign in found.items() if sign}
        if not numbers_in(texts, **found).null_count:
            return found
    return None
