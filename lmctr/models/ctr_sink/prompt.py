"""Prompts of CTR-Sink: the fixed texts around behaviours and target, and the template of an item's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmctr.utils.arrow import is_list
from lmctr.utils.files import read_yaml
from lmctr.utils.outside import check_text
from lmctr.utils.resources import find_resource
from lmctr.utils.suggest import refuse_unknown, unknown_key_message

_TARGET_FIELD, _VALUE_FIELD = "{item}", "{value}"
# Tokens of an item template: doubled brackets and braces are literal, then the four signs, then plain text.
_TEMPLATE_TOKENS = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{[^{}]*\}|[\[\]{}]|[^\[\]{}]+")
_CUT = re.compile(r"(.*):\.([1-9][0-9]*)", re.DOTALL)  # a column and the most characters of it
_WHOLE_WORDS = re.compile(r"(.*\S)\s", re.DOTALL)


@dataclass(frozen=True)
class FeedbackText:
    """Texts of one feedback code.

    Args:
        name: how histories name it, for example `"liked"`.
        word: stands before a behaviour with `feedback="inline"`. It may tell graded feedback: `"{value} stars "`, or
            `"liked [({value} stars) ]"` with a part in brackets that an unknown value leaves out, see [`ItemTemplate`].
        header: stands before the group of such behaviours with `feedback="groups"`.
    """

    name: str
    word: str
    header: str

    @property
    def tells_value(self) -> bool:
        """Whether `word` tells graded feedback."""
        return _VALUE_FIELD in self.word

    def word_for(self, value: float | None) -> str:
        """`word` with a value in it, None where it is unknown."""
        if not self.tells_value:
            return self.word
        return ItemTemplate(self.word).fill({"value": None if value is None else f"{value:g}"})


class ItemTemplate:
    """Text of an item from its catalogue columns, for example `"{title}[ ({genres})]"`.

    A list value is joined with ", ", a missing value gives an empty text, and a part in square brackets is left out
    when all its columns are empty. `{description:.200}` reads 200 characters at most, whole words where they are half of that or more.
    `[[`, `]]`, `{{`, `}}` stand for the signs themselves. The result is stripped.

    Raises:
        ValueError: brackets that do not match, a nested part, an empty column name, or no column at all.
    """

    def __init__(self, template: str):
        self.template = template
        self._parts = self._parse(template)  # list of (optional?, list of (is column?, text))
        self._most: dict[str, int] = {}  # characters, of the columns as they are written
        self._names: dict[str, str] = {}
        for written in (text for _, items in self._parts for is_column, text in items if is_column):
            cut = _CUT.fullmatch(written)
            self._names[written] = written if cut is None else cut[1].strip()
            if cut is not None:
                self._most[written] = int(cut[2])
        self.columns = tuple(dict.fromkeys(self._names.values()))
        if not self.columns:
            raise ValueError(f"item template {template!r} names no column; write one as {{column}}")

    @staticmethod
    def _parse(template: str) -> list[tuple[bool, list[tuple[bool, str]]]]:
        parts: list[tuple[bool, list[tuple[bool, str]]]] = [(False, [])]
        for token in _TEMPLATE_TOKENS.findall(template):
            inside = parts[-1][0]
            if token in ("[[", "]]", "{{", "}}"):
                parts[-1][1].append((False, token[0]))
            elif token == "[" and not inside:
                parts.append((True, []))
            elif token == "]" and inside:
                parts.append((False, []))
            elif len(token) > 2 and token[0] == "{":
                parts[-1][1].append((True, token[1:-1].strip()))
            elif token[0] in "[]{}":
                raise ValueError(
                    f"item template {template!r}: unexpected {token!r}; columns are written {{column}}, parts that may "
                    f"be left out [in one pair of brackets], and the signs themselves doubled"
                )
            else:
                parts[-1][1].append((False, token))
        if parts[-1][0]:
            raise ValueError(f"item template {template!r}: '[' without ']'")
        return parts

    def render(self, values: Mapping[str, Any]) -> str:
        """Text of one item from its values by column name."""
        return self.fill(values).strip()

    def render_lines(self, values: Mapping[str, Any]) -> str:
        """Text with the lines of the template and no others: breaks in values are blanks, a line without values stays, empty."""
        text = self.fill({column: _value_text(values[column]).replace("\n", " ") for column in self.columns})
        return "\n".join(line.strip() for line in text.split("\n"))

    def fill(self, values: Mapping[str, Any]) -> str:
        """The text with the blanks at its ends."""
        texts = {
            written: _shortened(_value_text(values[column]), self._most.get(written))
            for written, column in self._names.items()
        }
        out = []
        for optional, items in self._parts:
            if optional and not any(texts[t] for is_column, t in items if is_column):
                continue
            out.extend(texts[t] if is_column else t for is_column, t in items)
        return "".join(out)

    def render_table(self, table: pa.Table, keep_lines: bool = False) -> list[str]:
        """Texts of all rows of a catalogue. Numbers of float32 are written in as few digits as tell them (17.6, not 17.600000381469727).

        Args:
            table: the catalogue. keep_lines: whether each text has the template's lines and no others (`render_lines`).

        Raises:
            ValueError: a column of the template is missing, and the message names the nearest one; or it holds objects.
        """
        for column in self.columns:
            if column not in table.column_names:
                raise ValueError(
                    unknown_key_message(column, table.column_names, f"the item template {self.template!r}").replace(
                        "known keys", "columns of the catalogue"
                    )
                )
        columns = [_plain_values(table.column(column), column) for column in self.columns]
        render = self.render_lines if keep_lines else self.render
        return [render(dict(zip(self.columns, row))) for row in zip(*columns)]


def _plain_values(values: pa.ChunkedArray, column: str) -> list[Any]:
    kind = values.type
    inside = kind.value_type if is_list(kind) else kind
    if pa.types.is_struct(inside) or pa.types.is_map(inside):
        raise ValueError(
            f"the catalogue's column {column!r} holds objects ({kind}), of which a text would hold the names of their entries only; give the "
            "entries columns of their own"
        )
    if pa.types.is_float32(kind):
        values = values.cast(pa.string()).cast(pa.float64())
    return values.to_pylist()


def _value_text(value: Any) -> str:
    if value is None or value != value:  # None or NaN
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, Iterable):
        return ", ".join(text for text in map(_value_text, value) if text)
    return str(value)


def _shortened(text: str, most: int | None) -> str:
    """The first characters, without the last word where that is cut and the words before it are half of them at least."""
    if most is None or len(text) <= most:
        return text
    words = _WHOLE_WORDS.match(text[: most + 1])  # of scripts without blanks a "word" may be all but a brand's name
    return text[:most] if words is None or 2 * len(words[1]) < most else words[1]


@dataclass(frozen=True)
class Prompt:
    """The texts of a prompt. A sample reads `head`, its behaviours (each: word, item text, `separator`, sink), `target`.

    A blank at the end of a text is moved to the front of the piece that follows it, because byte-level tokenizers keep
    the blank with the next word. So every text that an item can follow must end alike: either all with a blank or none.

    Args:
        name: name of the prompt, for messages and cards.
        language: language code, for example `"en"`.
        item: template of an item's text over catalogue columns, see [`ItemTemplate`].
        head: opening text.
        separator: text after each behaviour, before its sink.
        target: text of the target with one `{item}` in it.
        empty_history: stands in the place of the behaviours when a history is empty.
        feedback: texts of the feedback codes 1, 2, ... (code 0 is "unknown" and has no text).
        behavior_item: template of an item's text in the history, for example a shorter one; default: `item`.

    Raises:
        ValueError: unknown or missing keys, values of a wrong type, `target` without `{item}`, repeated feedback names.
    """

    name: str
    language: str
    item: str
    head: str
    separator: str
    target: str
    empty_history: str = ""
    feedback: tuple[FeedbackText, ...] = ()
    behavior_item: str | None = None

    def __post_init__(self) -> None:
        for key in ("name", "language", "item", "head", "separator", "target", "empty_history"):
            value = getattr(self, key)
            if not isinstance(value, str):
                quoted = "; in YAML a text that begins with { stands in quotes" if isinstance(value, Mapping) else ""
                raise ValueError(f"prompt {self.name!r}: {key} must be a text, got {value!r}{quoted}")
            check_text(value, f"prompt {self.name!a}: {key}")
        if self.target.count(_TARGET_FIELD) != 1:
            raise ValueError(f"prompt {self.name!r}: target must hold {{item}} once, got {self.target!r}")
        names = [entry.name for entry in self.feedback]
        if len(set(names)) != len(names) or "unknown" in names:
            raise ValueError(f"prompt {self.name!r}: feedback names must differ and not be 'unknown', got {names}")
        ItemTemplate(self.item)
        for entry in self.feedback:
            if entry.tells_value and ItemTemplate(entry.word).columns != ("value",):
                raise ValueError(
                    f"prompt {self.name!r}: the word of {entry.name!r} may hold {{value}} only, got {entry.word!r}"
                )
        if self.behavior_item is not None:
            if not isinstance(self.behavior_item, str):
                raise ValueError(f"prompt {self.name!r}: behavior_item must be a text, got {self.behavior_item!r}")
            ItemTemplate(self.behavior_item)

    @property
    def target_prefix(self) -> str:
        """Text before the target item."""
        return self.target.split(_TARGET_FIELD)[0]

    @property
    def target_suffix(self) -> str:
        """Text after the target item."""
        return self.target.split(_TARGET_FIELD)[1]

    @property
    def feedback_names(self) -> tuple[str, ...]:
        """Names by code; code 0 is `"unknown"`."""
        return ("unknown", *(entry.name for entry in self.feedback))

    @property
    def tells_values(self) -> bool:
        """Whether a feedback word tells graded feedback."""
        return any(entry.tells_value for entry in self.feedback)

    def item_texts(self, table: pa.Table, keep_lines: bool = False) -> list[str]:
        """Texts of a catalogue's items by the `item` template."""
        return ItemTemplate(self.item).render_table(table, keep_lines)

    def behavior_texts(self, table: pa.Table, keep_lines: bool = False) -> list[str]:
        """Texts of a catalogue's items as behaviours, by the `behavior_item` template (by `item` when there is none)."""
        return ItemTemplate(self.behavior_item or self.item).render_table(table, keep_lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        values = asdict(self)
        values["feedback"] = [dict(entry) for entry in values["feedback"]]
        return values

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], where: str = "the prompt") -> Prompt:
        """Build from plain values. A key `base` names a prompt whose values are the defaults.

        Raises:
            ValueError: an unknown key (the nearest one is offered) or a missing one.
        """
        if not isinstance(values, Mapping):
            raise ValueError(f"{where} must hold keys and values, got {type(values).__name__}")
        values = dict(values)
        if "base" in values:
            base = cls.load(values.pop("base")).to_dict()
            values = {**base, "name": f"{base['name']}, changed", **values}
        known = [field.name for field in fields(cls)]
        refuse_unknown(values, [*known, "base"], where)
        missing = [key for key in known[:6] if key not in values]
        if missing:
            raise ValueError(f"{where} lacks {', '.join(missing)}; needed: {', '.join(known[:6])}")
        values["feedback"] = _feedback_from(values.get("feedback"), where)
        return cls(**values)

    @classmethod
    def load(cls, source: str | Path | Mapping[str, Any] | Prompt) -> Prompt:
        """A prompt from a shipped name (`"movielens/en"`), a YAML file, plain values, or a `Prompt`.

        Raises:
            ValueError, FileNotFoundError: unknown name, unreadable file, wrong keys or values.
        """
        if isinstance(source, Prompt):
            return source
        if isinstance(source, Mapping):
            return cls.from_dict(source)
        if not isinstance(source, (str, Path)):
            raise ValueError(f"prompt must be a name, a YAML file, a dict or a Prompt, got {source!r}")
        path = Path(source)
        if not (path.suffix in (".yaml", ".yml") and path.is_file()):
            path = find_resource("prompts", str(source))
        return cls.from_dict(read_yaml(path), f"the prompt file {path}")


def _feedback_from(entries: Any, where: str) -> tuple[FeedbackText, ...]:
    if not isinstance(entries, list | tuple | None):
        raise ValueError(f"{where}: feedback must be a list of the feedback codes' texts, got {entries!r:.80}")
    out = []
    for number, entry in enumerate(entries or (), start=1):
        if isinstance(entry, FeedbackText):
            out.append(entry)
            continue
        known = [field.name for field in fields(FeedbackText)]
        place = f"feedback entry {number} of {where}"
        if not isinstance(entry, Mapping):
            raise ValueError(f"{place} must hold {', '.join(known)}, got {entry!r}")
        refuse_unknown(entry, known, place)
        for key in known:
            if not isinstance(entry.get(key), str):
                raise ValueError(f"{place}: {key} must be a text, got {entry.get(key)!r}")
        out.append(FeedbackText(**entry))
    return tuple(out)
