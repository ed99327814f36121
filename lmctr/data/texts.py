"""Lists that texts hold: their words, and lists as Python, JSON and databases write them."""

from __future__ import annotations

import ast
import csv
import json
import re
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lmctr.utils.arrow import without_empty

PARSES = ("words", "literal")
LITERALS = "Accepted: texts such as ['a', 'b'], [1, 2] and {a,b}."
_MARK = "\x1f"
_STRING = r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*\""""
_NAMED = rf"""\{{[^{{}}]*['"]name['"]\s*:\s*({_STRING})[^{{}}]*\}}"""  # {'id': 28, 'name': 'Action'}
_SCALAR = rf"""np\.\w+\(({_STRING}|[-+\w.]+)\)"""  # np.str_('Action'), as lists of numpy's scalars are written
_PLAIN = "|".join(rf"""[uU]?{sign}[^'"\\]*{sign}(?:(?:\s*,\s*|\s+)[uU]?{sign}[^'"\\]*{sign})*""" for sign in "'\"")
_BETWEEN = r"""['"](?:\s*,\s*|\s+)[uU]?['"]"""
_ODD = r"""['"\\]|(?:^|,)\s*(?:None|null)\s*(?:,|$)"""  # in lists that are not plain
_NO_LIST = r"(?s)^\{[^{}]*:.*\}$"  # an object


def words_of_texts(texts: pa.Array) -> pa.Array:
    """(N,) lists of the words of texts: runs of letters and digits, in lower case; null where there are none."""
    apart = pc.utf8_trim_whitespace(pc.replace_substring_regex(pc.utf8_lower(texts), r"[^\pL\pM\pN]+", " "))
    return pc.split_pattern(without_empty(apart), " ")


def literal_lists(texts: pa.Array) -> pa.Array:
    """(N,) lists that texts hold as pandas writes them, ['a', 'b'] or [1 2], JSON, ["a", "b"], or databases, {a,b}; of objects their `name`. Null for other
    texts."""
    texts = pc.utf8_trim_whitespace(texts)
    is_in_brackets = pc.match_substring_regex(texts, r"(?s)^(\[.*\]|\{.*\})$")
    is_list = pc.and_not(is_in_brackets, pc.match_substring_regex(texts, _NO_LIST))
    texts = pc.if_else(is_list, texts, pa.scalar(None, texts.type))
    texts = pc.replace_substring_regex(texts, _SCALAR, r"\1")
    inner = pc.utf8_trim_whitespace(pc.utf8_slice_codeunits(texts, 1, -1))
    inner = pc.replace_substring_regex(inner, _NAMED, r"\1")
    is_plain = pc.match_substring_regex(inner, f"(?s)^(?:{_PLAIN})$")
    odd = pc.and_not(pc.match_substring_regex(inner, _ODD), is_plain)
    quoted = pc.replace_substring_regex(inner, r"""^[uU]?['"]|['"]$""", "")
    quoted = pc.replace_substring_regex(quoted, _BETWEEN, _MARK)
    blanks = pc.match_substring_regex(inner, r"^[-+\d.eE\s]+$")
    bare = pc.replace_substring_regex(inner, r"\s*,\s*", _MARK)
    bare = pc.if_else(blanks, pc.replace_substring_regex(inner, r"\s+", _MARK), bare)
    lists = pc.split_pattern(pc.if_else(is_plain, quoted, bare), _MARK)
    lists = pc.if_else(pc.equal(inner, ""), pa.scalar([], lists.type), lists)
    if pc.any(odd).as_py():
        read = [_parsed(text) if is_odd else None for text, is_odd in zip(texts.to_pylist(), odd.to_pylist())]
        lists = pc.if_else(odd, pa.array(read, lists.type), lists)
    return lists


def _parsed(text: str) -> list[str] | None:
    inner = text[1:-1]
    parses = [json.loads, ast.literal_eval]
    if re.search(r"""['"]\s+['"]""", inner):  # of numpy, whose lists have no commas
        parses[1] = lambda text: [ast.literal_eval(own) for own in re.findall(_STRING, text)]
    for parse in parses:
        with suppress(ValueError, SyntaxError, MemoryError, RecursionError):
            return [_entry(one) for one in parse(f"[{inner}]") if one is not None]
    return next(csv.reader([inner]), None) if text.startswith("{") else None


def _entry(value: Any) -> str:
    return str(value["name"] if isinstance(value, dict) and "name" in value else value)


def are_literals(texts: pa.Array) -> bool:
    """Whether all of some texts (N,) without missing ones are such lists, of entries that come again: no objects, no numbers with places behind the point."""
    if not len(texts) or not pc.all(pc.match_substring_regex(texts, r"(?s)^\s*[\[{].*[\]}]\s*$")).as_py():
        return False
    lists = literal_lists(texts)
    entries = pc.list_flatten(lists)
    if lists.null_count or not len(entries) or pc.any(pc.match_substring_regex(entries, r"[{}\[\]]")).as_py():
        return False
    counts = pc.value_counts(entries).field("counts").to_numpy(zero_copy_only=False)
    fractions = pc.mean(pc.match_substring_regex(entries, r"^[-+]?\d*\.\d+([eE][-+]?\d+)?$").cast(pa.int8())).as_py()
    return bool(counts[counts > 1].sum() >= 0.5 * len(entries)) and fractions < 0.5
