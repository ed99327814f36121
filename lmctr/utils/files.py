"""Small JSON and YAML files, read strictly: what is wrong is a `ValueError` that names the file and the place."""

from __future__ import annotations

import codecs
import errno
import glob
import json
import os
import re
import shutil
import socket
import unicodedata
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import yaml

NOT_ALLOWED = (errno.EACCES, errno.EPERM, errno.EROFS)
"""Numbers of a system's errors that say that the user has no right to it."""
_DIGITS = "set_int_max_str_digits"
_LONGEST_START = 160  # bytes of a file's name in that of the one beside it; systems take 255
_YAML_DEPTH, _YAML_VALUES = 50, 200_000  # an alias counts as often as what it stands for is met


def as_path(value: Any, where: str) -> Path:
    """A file or folder that a caller names. Raises `ValueError`, which starts with `where`, for what is no path."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{where}: expected a path, as a text or a Path, got {type(value).__name__} {value!r:.80}")
    return Path(value)


def expanded(path: str | Path) -> Path:
    """A path whose `~` or `~user` at its start is that one's home; as it is where there is no such user, for a file may be called so."""
    return Path(os.path.expanduser(path))


def beside(folder: str | Path, name: str | Path) -> Path:
    """The path of what a file in a folder names, without steps down and up again, such as `shop/../x.csv`; where links make them lead elsewhere
    they stay."""
    path = Path(folder) / expanded(name)
    short = os.path.normpath(path)
    return Path(short) if os.path.realpath(short) == os.path.realpath(path) else path


def for_arrow(path: str | Path) -> str:
    """A path of which pyarrow cannot take the start, as in exp:1/..., for the scheme of an address."""
    return os.path.abspath(path)


def holds_parquet(path: str | Path) -> bool:
    """Whether a path is a folder with Parquet files in it, or in folders such as `day=2024-01-01`, which may be several of one table."""
    return os.path.isdir(path) and any(any(Path(path).glob(form)) for form in ("*.parquet", "*=*/**/*.parquet"))


def is_utf_8(stream: Any) -> bool:
    """Whether a standard stream is UTF-8, or stands in for one, as some programs' own do, and cannot be made so."""
    return not hasattr(stream, "reconfigure") or codecs.lookup(stream.encoding).name == "utf-8"


def check_file(path: str | Path) -> Path:
    """The path of a file that is there. Raises `FileNotFoundError`: there is none."""
    if not Path(path).is_file():
        raise FileNotFoundError(f"{path} does not exist, or is no file")
    return Path(path)


def parse_json(text: str | bytes, keys_once: bool = True) -> Any:
    """JSON whose objects have each key once, if asked for.

    Raises:
        ValueError: no JSON, nested too deep, a key that stands twice, a number of thousands of digits.
    """
    try:
        return json.loads(text, object_pairs_hook=_object if keys_once else None)
    except RecursionError:
        raise ValueError("not valid JSON: nested too deep") from None
    except ValueError as error:
        if _DIGITS in str(error):
            raise ValueError(_problem(error)) from None
        raise


def _problem(error: Exception) -> str:
    """What is wrong with a value; Python's own words for very long numbers advise programmers."""
    return "a whole number of thousands of digits is not accepted" if _DIGITS in str(error) else f"{error!s:.500}"


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        doubled = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise ValueError(f"the key {doubled!r:.200} stands twice in one object; give it one value")
    return found


def read_json(path: str | Path) -> dict[str, Any]:
    """A JSON object.

    Raises:
        OSError: the file cannot be opened.
        ValueError: no UTF-8, no JSON, a key that stands twice, or another value than an object.
    """
    try:
        value = parse_json(_read_text(path))
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path} is not valid JSON (line {error.lineno}, column {error.colno}: {error.msg}); it may be cut off"
        ) from error
    except UnicodeDecodeError:
        raise
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(value).__name__}")
    return value


def check_may_hold(folder: Path) -> None:
    """Raises `OSError`, before the work whose results a folder shall hold, where it is none, may not be made, or may not be written into."""
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if not os.access(there, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def write_json(path: str | Path, value: object) -> None:
    """Write JSON so that a reader sees the old file or the new one, never half of it."""
    write_text(path, json_text(value))


def json_text(value: object) -> str:
    """The text that `write_json` writes."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_text(path: str | Path, text: str) -> None:
    """Write text (UTF-8) so that a reader sees the old file or the new one, never half of it."""
    with replacing(path) as temporary, open(temporary, "w", encoding="utf-8") as file:
        file.write(text)


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """The name of a new file beside `path`, which takes its place when the block ends well and is deleted when it does not.

    The new file is on disk before it takes the place, and the folder's entry after, so that a power cut leaves one of the two whole. What a
    killed process left beside `path` is deleted. Errors name `path`.
    """
    path = Path(path)
    temporary = new_beside(Path(for_arrow(path)))
    remove_left(path)
    try:
        with suppress(FileNotFoundError):
            path.lstat()  # a name that the system does not take is told before the work
        yield temporary
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except OSError as error:
        own = error.filename is not None and str(error.filename) == str(temporary)
        if own or (error.errno is not None and error.filename is None):  # a write that failed: a full disk, a quota
            error.filename = str(path)
            del error.filename2
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def whole_folder(path: str | Path) -> Iterator[Path]:
    """A new folder beside `path`, whose files stand there when the block ends well, and which is deleted when it does not.

    What killed processes left beside `path` is deleted. Where another process was faster, what it made stays. Errors name `path`.
    """
    path = Path(path)
    made = new_beside(Path(for_arrow(path)))
    remove_left(path)
    made.mkdir(parents=True)
    try:
        yield made
        if path.is_dir() and not any(path.iterdir()):  # stays the same folder: a mounted disk, or where somebody works
            for child in made.iterdir():
                shutil.move(child, path)
            return
        try:
            made.rename(path)
        except OSError:
            if not path.is_dir():
                raise
    except OSError as error:
        if error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(made):
            error.filename = str(path / Path(os.fsdecode(error.filename)).relative_to(made))
        raise
    finally:
        shutil.rmtree(made, ignore_errors=True)


def new_beside(path: Path) -> Path:
    """A name in the same folder for what is to take the place of `path`, which no other thread, process or machine is given."""
    return path.with_name(f"{_start_beside(path)}{os.getpid()}-{uuid.uuid4().hex[:8]}.tmp")


def remove_left(path: Path) -> None:
    """Delete what killed processes of this machine left under names of `new_beside`."""
    start = _start_beside(path)
    for left in path.parent.glob(f"{glob.escape(start)}*.tmp"):
        pid = left.name.removeprefix(start).partition("-")[0]
        if pid.isdecimal() and not is_running(int(pid)):
            if left.is_dir():
                shutil.rmtree(left, ignore_errors=True)
            else:
                left.unlink(missing_ok=True)


def _start_beside(path: Path) -> str:
    """Whose processes the numbers behind it are of; a long name is cut, so that the system takes all of it."""
    return f"{path.name.encode(errors='surrogateescape')[:_LONGEST_START].decode(errors='ignore')}.{socket.gethostname()}-"


def is_running(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    if os.name == "nt":  # where signal 0 would end it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def sync(path: Path) -> None:
    """Wait until a file, or a folder's list of names, is on disk."""
    is_folder = path.is_dir()
    if is_folder and os.name == "nt":  # has no such call for folders
        return
    handle = os.open(path, os.O_RDONLY if is_folder else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
        hint = "; YAML takes blanks, no tabs, to indent and behind a colon" if "'\\t'" in problem else ""
        raise ValueError(f"{where}{line}: not valid YAML: {problem:.500}{hint}") from error
    except RecursionError:
        raise ValueError(f"{where}: not valid YAML: nested too deep") from None
    except (ValueError, OverflowError) as error:  # a scalar that is no value of its kind
        raise ValueError(f"{where}: not valid YAML: {_problem(error)}") from error


def _read_text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from error


class _StrictLoader(yaml.SafeLoader):
    """SafeLoader with the scalars of YAML 1.2 (`1e-3` is a number, `no` is a word) and without doubled keys.

    A few hundred bytes of aliases can stand for more values than any memory holds, so what a text stands for is bounded.
    """

    def __init__(self, stream: Any):
        super().__init__(stream)
        self._depth, self._sizes = 0, {}  # values that a finished node stands for, by its anchor's node

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node:
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent) and event.anchor in self.anchors:
            if id(self.anchors[event.anchor]) not in self._sizes:
                self._refuse("an alias inside the value that it stands for", event.start_mark)
            return super().compose_node(parent, index)
        self._depth += 1
        if self._depth > _YAML_DEPTH:
            self._refuse(f"nested too deep (more than {_YAML_DEPTH} levels)", event.start_mark)
        node = super().compose_node(parent, index)
        self._depth -= 1
        inner = node.value if isinstance(node, yaml.CollectionNode) else ()
        parts = (part for entry in inner for part in (entry if isinstance(entry, tuple) else (entry,)))
        self._sizes[id(node)] = 1 + sum(self._sizes[id(part)] for part in parts)
        if self._sizes[id(node)] > _YAML_VALUES:
            self._refuse(f"more than {_YAML_VALUES:,} values, aliases written out", event.start_mark)
        return node

    @staticmethod
    def _refuse(problem: str, mark: yaml.Mark) -> None:
        raise yaml.MarkedYAMLError(None, None, problem, mark)

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        seen: set[Any] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, str) and key != key.strip() and key_node.style is None:
                sign = next(sign for sign in (key[0], key[-1]) if sign.isspace())  # an editor shows it as a blank
                told = f"U+{ord(sign):04X} ({unicodedata.name(sign, 'no blank').lower()})"
                self._refuse(
                    f"key {key.strip()!r} has {told} beside it; YAML takes plain blanks only", key_node.start_mark
                )
            if isinstance(key, (str, int, float, bool, type(None))):
                if key in seen:
                    self._refuse(f"key {key!r} is given twice", key_node.start_mark)
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


def named_place(place: str) -> str:
    """A place as others may be told it: a path that is absolute, or goes from home or by dots, cut to its last part; a name as it is."""
    if re.match(r"^(/|~|[A-Za-z]:\\|\.\.?[\\/])", place):
        return re.split(r"[\\/]", place.rstrip("\\/"))[-1]
    return place


def local_paths_cut(config: Any) -> Any:
    """A configuration, as JSON holds it, that names no folder of the machine it was made on, neither itself nor in the ones inside it."""
    if isinstance(config, list):
        return [local_paths_cut(value) for value in config]
    if not isinstance(config, dict):
        return config
    return {
        key: place_name(value) if key in ("_name_or_path", "name_or_path") else local_paths_cut(value)
        for key, value in config.items()
    }


def place_name(value: Any) -> Any:
    """`named_place`, of a folder of this machine its last part however it was named; what is no text as it is."""
    if not isinstance(value, str):
        return value
    return os.path.basename(os.path.normpath(value)) if value and os.path.isdir(value) else named_place(value)
