"""Small JSON and YAML files, read strictly: what is wrong is a `ValueError` that names the file and the place."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

__all__ = ["check_file", "parse_yaml", "read_json", "read_yaml", "replacing", "write_json", "write_text"]


def check_file(path: str | Path) -> Path:
    """The path of a file that is there. Raises `FileNotFoundError`: there is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist, or is no file")
    return Path(path)


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        OSError: the file cannot be opened.
        ValueError: no UTF-8, no JSON, or another value than an object.
    """
    try:
        value = json.loads(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); it may be cut off"
        ) from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def write_json(path: str | Path, value: object) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def write_text(path: str | Path, text: str) -> None:
    """Write text (UTF-8) so that a reader sees the old file or the new one, never half of it."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """The name of a new file beside `path`, which takes its place when the block ends well and is deleted when it does not."""
    path = Path(path)
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def read_yaml(path: str | Path) -> Any:
    """One YAML file, as `parse_yaml` reads it. Raises `ValueError` that names the file and the line."""
    return parse_yaml(_read_text(path), str(path))


def parse_yaml(text: str, where: str) -> Any:
    """YAML text: numbers as in YAML 1.2, no doubled keys, no Python objects.

    Raises:
        ValueError: starts with `where` and the line.
    """
    try:
        return yaml.load(text, Loader=_StrictLoader)  # a SafeLoader
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark is not None else ""
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        raise ValueError(f"{where}{line}: not valid YAML: {problem}") from error


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 (`1e-3` is a number, `no` is a word) and without doubled keys."""

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, (str, int, float, bool, type(None))):
                if key in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"key {key!r} is given twice", key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep=deep)


_REPLACED = ("tag:yaml.org,2002:bool", "tag:yaml.org,2002:float", "tag:yaml.org,2002:timestamp")
_StrictLoader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _REPLACED]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_StrictLoader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^(?:[-+]?(?:[0-9][0-9_]*)\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.[0-9]+(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
    ),
    list("-+0123456789."),
)
