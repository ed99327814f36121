"""What a YAML file says, as typed classes: read strictly, and told in words where it is wrong.

Recipes, grids, ladders and the schemas of data are subclasses of [`Values`]. Nothing is guessed: an unknown key, a missing one or a value of
another type is a `ValueError` that names the file, the key, the value and what is accepted.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Container, Iterable, Mapping, Sequence
from enum import Enum
from functools import lru_cache
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, create_model, model_validator

from lmctr.utils.suggest import one_line, unknown_key_message

Kind = TypeVar("Kind", bound="Values")
_NAMES = {bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping"}
_WITH_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
_BOUNDS = {"ge": "from", "gt": "above", "le": "to", "lt": "below"}


class Values(BaseModel):
    """Keys of a mapping in a YAML file: types, defaults, bounds and meanings.

    A whole number stands for a number, and so does the text `1e-3`, as PyYAML's own loader reads that number: that is all that is converted.
    A validator's message is whole sentences that name the key.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, arbitrary_types_allowed=True, protected_namespaces=()
    )

    @model_validator(mode="before")
    @classmethod
    def _with_numbers(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        texts = {key for key, value in given.items() if isinstance(value, str) and _WITH_EXPONENT.fullmatch(value)}
        numbers = {
            key
            for name, field in cls.model_fields.items()
            if (key := field.alias or name) in texts and _takes_numbers(field.annotation)
        }
        return {**given, **{key: float(given[key]) for key in numbers}}


class Wording:
    """How the errors of one kind of file are worded. A path leads to a value: keys, and numbers of entries of a list.

    Args:
        where: the file.
    """

    def __init__(self, where: str) -> None:
        self.where = where

    def place(self, path: Sequence[str | int]) -> str:
        """The mapping that a path leads to: `grid.yaml: points, entry 2`."""
        text = self.where
        for part in path:
            text += f", entry {part + 1}" if isinstance(part, int) else f": {part}"
        return text

    def unknown(self, path: Sequence[str | int], known: Iterable[str]) -> str:
        """A key that nobody knows."""
        return unknown_key_message(str(path[-1]), known, self.place(path[:-1]))

    def mapping(self, path: Sequence[str | int], known: Sequence[str], value: Any) -> str:
        """No mapping where one must be."""
        return f"{self.place(path)}: expected a mapping with the keys {', '.join(known)}, got {value!r}"

    def missing(self, path: Sequence[str | int], accepted: str) -> str:
        """No value for a key that has no default."""
        return f"{self.place(path[:-1])}: {path[-1]} is missing; accepted: {accepted}"

    def wrong(self, path: Sequence[str | int], value: Any, accepted: str, in_type: bool) -> str:
        """A value that is not accepted; `in_type`: its type is right, but not the value."""
        quotes = " (put it in quotes)" if accepted.startswith("text") and isinstance(value, (bool, int, float)) else ""
        return f"{self.place(path[:-1])}: {path[-1]} is {value!r}, accepted: {accepted}{quotes}"

    def refused(self, path: Sequence[str | int], message: str, of_mapping: bool) -> str:
        """What a validator says, of a mapping or of one value in it."""
        return f"{self.place(path if of_mapping else path[:-1])}: {message}"


def read_values(kind: type[Kind], given: Any, where: str | Wording) -> Kind:
    """A mapping, as YAML gave it, as an object of a class.

    Args:
        kind: the class.
        given: the mapping; None where a file is empty.
        where: the file in messages, or their wording.

    Raises:
        ValueError: an unknown key (with the nearest known one), a wrong value, a missing key: the first one, in this order.
    """
    wording = Wording(where) if isinstance(where, str) else where
    try:
        return kind.model_validate(dict(given) if isinstance(given, Mapping) else given)
    except ValidationError as error:
        found = [_message(kind, given, entry, wording) for entry in error.errors(include_url=False)]
        raise ValueError(min((entry for entry in found if entry), key=lambda entry: entry[0])[1]) from None


def _message(kind: type[Values], given: Any, error: Mapping[str, Any], wording: Wording) -> tuple[int, str] | None:
    """Rank and text of one of pydantic's errors; None for the branch of a union that was not meant."""
    path, hint, bounds, value = [], kind, (), given
    for key in error["loc"]:
        part, inner, hint = key, inner_values(hint), _without_null(hint)
        if inner is not None and isinstance(value, Mapping):
            if hint is not inner and part == inner.__name__:  # pydantic's mark of a branch, no key
                hint = inner
                continue
            if hint is not inner:
                return None
            if part not in inner.model_fields:
                break
            hint, bounds = inner.model_fields[part].annotation, inner.model_fields[part].metadata
        elif (
            typing.get_origin(hint) in (list, dict) and inner_values(typing.get_args(hint)[-1], deep=True) is not None
        ):
            if typing.get_origin(hint) is dict:
                path[-1:], part = [], f"{path[-1]}.{part}"
            hint, bounds = typing.get_args(hint)[-1], ()
        else:
            break  # inside a plain value, which is told as a whole
        path.append(part)
        value = value.get(key) if isinstance(value, Mapping) else value[key]
    if error["type"] == "extra_forbidden":
        return 0, wording.unknown([*path, error["loc"][-1]], _keys_of(inner_values(hint)))
    if error["type"] == "value_error":
        return 1, wording.refused(path, str(error["ctx"]["error"]), inner_values(hint) is not None)
    if error["type"] == "missing":
        return 2, wording.missing(path, describe(hint, bounds))
    if inner_values(hint) is not None and inner_values(hint) is _without_null(hint):
        return 1, wording.mapping(path, _keys_of(inner_values(hint)), value)
    in_type = error["type"].startswith(("greater", "less"))
    return 1, wording.wrong(path, value, describe(hint, bounds if in_type else ()), in_type)


def _keys_of(kind: type[Values]) -> list[str]:
    return [field.alias or name for name, field in kind.model_fields.items()]


def inner_values(hint: Any, deep: bool = False) -> type[Values] | None:
    """The class of values in a hint such as `Retrieval | None`; `deep`: also in one such as `list[Point]`."""
    if isinstance(hint, type) and issubclass(hint, Values):
        return hint
    options = typing.get_args(hint) if deep or _is_union(hint) or typing.get_origin(hint) is Annotated else ()
    return next(filter(None, (inner_values(option, deep) for option in options)), None)


def _is_union(hint: Any) -> bool:
    return typing.get_origin(hint) in (typing.Union, types.UnionType)


def _takes_numbers(hint: Any) -> bool:
    """Whether a number is a value of a type, and a text is none."""
    options = [_without_null(option) for option in (typing.get_args(hint) if _is_union(hint) else (hint,))]
    return float in options and str not in options


def _without_null(hint: Any) -> Any:
    """The one type of a hint that null or bounds stand beside."""
    options = [option for option in typing.get_args(hint) if option is not type(None)] if _is_union(hint) else []
    hint = options[0] if len(options) == 1 else hint
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def type_in_yaml(hint: Any) -> Any:
    """A Python type as what stands for it in YAML: lists for tuples, the words of an Enum."""
    if isinstance(hint, type) and issubclass(hint, Enum):
        return Literal[tuple(member.value for member in hint)]
    options = tuple(type_in_yaml(option) for option in typing.get_args(hint) if option is not Ellipsis)
    if _is_union(hint):
        return typing.Union[options]  # noqa: UP007 (of a tuple)
    if hint is tuple or typing.get_origin(hint) in (list, tuple):
        return list[options[0]] if options else list
    return hint


def dataclass_values(cls: type, hidden: Container[str] = (), base: type[Values] = Values) -> type[Values]:
    """The fields of a dataclass as keys, after those of `base` and without the hidden ones."""
    keys: dict[str, Any] = {}
    for field in dataclasses.fields(cls):
        if field.name in hidden or field.name in base.model_fields or not field.init or field.name.startswith("_"):
            continue
        default = Field(default_factory=field.default_factory)
        if field.default_factory is dataclasses.MISSING:
            default = Field(... if field.default is dataclasses.MISSING else field.default)
        keys[field.name] = (type_in_yaml(_type_of(cls, field.name)), default)
    return create_model(cls.__name__, __base__=base, **keys)


def type_error_of(value: Any, names: Iterable[str]) -> str | None:
    """Which attribute of a dataclass is first of another type than its annotation says, in words; None where all are right. Tuples
    stand for lists."""
    for name in names:
        hint, found = _type_of(type(value), name), getattr(value, name)
        if not _is_of(hint, list(found) if isinstance(found, tuple) else found):
            return f"{name} must be {describe(hint)}, got {show(found)}"
    return None


def without_numpy(value: Any) -> Any:
    """A value, in lists and mappings too, with Python's numbers and lists for those of numpy."""
    if type(value).__module__ == "numpy":  # a number or an array
        return value.tolist()
    if type(value) in (list, tuple):
        return type(value)(map(without_numpy, value))
    if type(value) is dict:
        return {key: without_numpy(own) for key, own in value.items()}
    return value


def _is_of(hint: Any, value: Any) -> bool:
    adapter = _adapter(hint)
    if not adapter.pydantic_complete:  # a dataclass that pydantic cannot read
        return isinstance(value, typing.get_args(hint) or hint)
    try:
        adapter.validate_python(value)
    except ValidationError:
        return False
    return True


@lru_cache(maxsize=1024)
def _adapter(hint: Any) -> TypeAdapter:
    return TypeAdapter(hint, config=ConfigDict(strict=True, arbitrary_types_allowed=True))


@lru_cache(maxsize=4096)
def _type_of(cls: type, name: str) -> Any:
    """Type of one field; base classes may hold annotations of other fields that cannot be evaluated here."""
    owner = next(base for base in cls.__mro__ if name in inspect.get_annotations(base))
    alone = types.SimpleNamespace(__annotations__={name: inspect.get_annotations(owner)[name]})
    return typing.get_type_hints(alone, vars(sys.modules[owner.__module__]))[name]


def describe(hint: Any, bounds: Sequence[Any] = ()) -> str:
    """A type in words: `a whole number from 1 or null`; those of an `Annotated` that holds a text are that."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    told = [bound for bound in bounds if isinstance(bound, str)]
    limits = [
        f" {word} {getattr(bound, name)}" for bound in bounds for name, word in _BOUNDS.items() if hasattr(bound, name)
    ]
    if _is_union(hint):
        words = [describe(option, bounds) for option in arguments if option is not type(None)]
        words += ["null"] if type(None) in arguments else []
        return " or ".join(dict.fromkeys(words))
    if origin is Annotated:
        return describe(arguments[0], arguments[1:])
    if origin is Literal:
        return ", ".join(str(option) for option in arguments)
    if origin is list or hint is list:
        several = (
            re.sub(r"\ba (whole number|number|list|mapping)\b", r"\1s", describe(arguments[0])) if arguments else ""
        )
        return f"a list of {several}" if several else "a list"
    if origin is dict:
        return "a mapping"
    if inner_values(hint) is not None:
        return f"{{{', '.join(hint.model_fields)}}}"
    return (told or [_NAMES.get(hint, getattr(hint, "__name__", str(hint)))])[0] + "".join(limits)


def show(value: Any) -> str:
    """A value and its type in words, for messages."""
    if value is None:
        return "null"
    text = repr(value)
    text = one_line(value) if "\n" in text else text  # of a frame
    return f"{text if len(text) <= 80 else text[:77] + '...'} ({_NAMES.get(type(value), type(value).__name__)})"
