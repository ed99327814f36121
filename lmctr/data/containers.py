"""Files that hold a table as no reader takes it: packed by other programs than gzip, as one JSON array, as lines of Python's dicts, as LIBSVM's or libffm's
lines, with columns of one name."""

from __future__ import annotations

import ast
import csv
import gzip
import json
import lzma
import shutil
import tempfile
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from lmctr.utils.files import parse_json
from lmctr.utils.suggest import first_of, retold

from .names import are_values
from .pairs import are_pairs, pairs_as_table
from .reading import (
    FORMATS,
    OBJECT_LINE,
    PACKED,
    PYTHON_DICT,
    checked_file,
    delimiter_of,
    format_of,
    head_of,
    suffix_of,
    text_lines,
)


@contextmanager
def as_readers_take_it(
    path: Path, say: Callable[[str], None], is_named: bool = False, like: Path | None = None
) -> Iterator[Path]:
    """The file itself, or a copy for the time of the block: unpacked, with an object a line, or columns of different names, which is said. `is_named`: the
    columns are named elsewhere. `like`: of [`~lmctr.data.pairs.pairs_as_table`].

    Raises:
        FileNotFoundError: no such file.
        ValueError: a damaged file, one that holds several tables, or objects that are no rows.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file.")
    with tempfile.TemporaryDirectory() as folder:
        found, is_pairs = path, False
        if path.is_file():
            found = _unpacked(path, Path(folder))
            with retold(found, path):
                is_pairs = suffix_of(found).lower() != ".parquet" and are_pairs(found)
                if is_pairs:
                    found, told = _pairs(found, Path(folder), like)
                    say(told)
                elif suffix_of(found).lower() in FORMATS:
                    found = _as_lines(found, Path(folder))
                    found = found if is_named else _with_own_names(found, Path(folder), say)
        if like is not None and not is_pairs:
            raise ValueError(f"{path}: holds no lines of LIBSVM or libffm; leave out --like {like}")
        if found == path:
            yield path
            return
        with retold(found, path):
            yield found


def _pairs(path: Path, folder: Path, like: Path | None) -> tuple[Path, str]:
    """What `pairs_as_table` gives; `like` may be packed."""
    if like is None:
        return pairs_as_table(path, folder)
    with tempfile.TemporaryDirectory() as beside:  # a file of the same name may stand in the folder
        found = _unpacked(like, Path(beside))
        with retold(found, like):
            return pairs_as_table(path, folder, found)


def _unpacked(path: Path, folder: Path) -> Path:
    """The one file that a packed one holds; another file as it is."""
    kind, target = path.suffix.lower(), folder / path.stem
    if kind not in PACKED or not path.is_file():
        return path
    try:
        if kind == ".zip":
            with zipfile.ZipFile(path) as archive:
                names = [name for name in archive.namelist() if not name.endswith("/") and "__MACOSX" not in name]
                if len(names) != 1:
                    raise ValueError(
                        f"{path}: holds {len(names)} files ({first_of(names)}), and one table is read; unpack it, and name the file."
                    )
                target = folder / Path(names[0]).name
                with archive.open(names[0]) as packed, open(target, "wb") as file:
                    shutil.copyfileobj(packed, file)
            return target
        unpack = lzma.open if kind == ".xz" else partial(pa.input_stream, compression=PACKED[kind])
        with unpack(str(path)) as packed, open(target, "wb") as file:
            shutil.copyfileobj(packed, file)
    except (zipfile.BadZipFile, lzma.LZMAError, OSError, EOFError, RuntimeError) as error:  # RuntimeError: a password
        raise ValueError(f"{path}: cannot be unpacked: {error}") from None
    return target


def _as_lines(path: Path, folder: Path) -> Path:
    """JSON or Python's dicts with an object a line; another file as it is."""
    kind = format_of(path)
    if kind == "parquet" or not path.stat().st_size or (kind != "jsonl" and not OBJECT_LINE.match(head_of(path))):
        return path
    _, first = next(text_lines(path), (0, ""))
    if first.lstrip().startswith("["):
        rows = _of_array(_whole(path), path)
    elif PYTHON_DICT.match(first):
        rows = _objects(path, _python_dict, "no dict of Python")
    elif (whole := _wrapped(path, first)) is not None:
        rows = _of_array(whole, path)
    elif kind == "jsonl":
        return path
    else:
        rows = _objects(path, parse_json, "no JSON")
    target = folder / "rows.jsonl"
    with open(target, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)
    checked_file(target)
    return target


def _python_dict(line: str) -> Any:
    """A dict as Python writes it; `nan`, which it cannot read again and pandas has for what is missing, is None."""
    try:
        return ast.literal_eval(line)
    except ValueError:
        return ast.literal_eval(_NoNan().visit(ast.parse(line.strip(), mode="eval")))


class _NoNan(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.AST:
        return ast.copy_location(ast.Constant(None), node) if node.id == "nan" else node


def _whole(path: Path) -> Any:
    try:
        return parse_json("\n".join(line for _, line in text_lines(path)), keys_once=False)
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as JSON: {error!s:.200}") from None


def _wrapped(path: Path, first: str) -> list[Any] | None:
    """The only list of objects in a file that is one object; None of JSON lines."""
    try:
        whole, others = parse_json(first, keys_once=False), sum(1 for _ in text_lines(path)) - 1
    except ValueError:  # it goes on below
        whole, others = _whole(path), 0
    lists = [value for value in whole.values() if _are_objects(value)] if isinstance(whole, dict) else []
    return lists[0] if len(lists) == 1 and not others else None


def _are_objects(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, dict) for row in value)


def _of_array(rows: Any, path: Path) -> Iterable[Any]:
    if not _are_objects(rows):
        raise ValueError(f"{path}: a JSON array whose entries are no objects; accepted: one of rows, an object each.")
    return rows


def _objects(path: Path, read: Callable[[str], Any], problem: str) -> Iterator[Any]:
    for number, line in text_lines(path):
        try:
            yield read(line)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            raise ValueError(f"{path}: line {number} is {problem}: {line[:60]!r}") from None


def _with_own_names(path: Path, folder: Path, say: Callable[[str], None]) -> Path:
    """A text file whose line of names has none twice; one that has some as a copy, where these are counted: `score`, `score_2`."""
    if format_of(path) not in ("csv", "tsv") or not path.stat().st_size or len(sign := _sign_of(path)) > 1:
        return path
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig", newline="") as stream:
        try:
            names, counts = next(csv.reader(stream, delimiter=sign), []), Counter()
            doubled = sorted({name for name in names if name and names.count(name) > 1})
            if not doubled or are_values(names, doubled):
                return path
            own = []
            for name in names:
                counts[name] += 1
                while counts[name] > 1 and f"{name}_{counts[name]}" in names:
                    counts[name] += 1
                own.append(name if counts[name] == 1 else f"{name}_{counts[name]}")
            say(f"{path.name}: columns of one name are told apart: {', '.join(n for n in own if n not in names)}")
            target = folder / f"rows{suffix_of(path)}"
            with open(target, "w", encoding="utf-8", newline="") as file:
                csv.writer(file, delimiter=sign, lineterminator="\n").writerow(own)
                shutil.copyfileobj(stream, file)
        except UnicodeDecodeError:
            return path  # whose reader will say so
    return target


def _sign_of(path: Path) -> str:
    return "\t" if format_of(path) == "tsv" else delimiter_of(path)


def have_plain_quotes(lines: Iterable[str], sign: str) -> bool:
    """Whether quotes are signs of texts and part nothing, as in MIND's news.tsv: all lines have as many columns without them, and on one a quote stands alone."""
    counts, alone = set(), False
    for line in lines:
        counts.add(line.count(sign))
        if len(counts) > 1:
            return False
        alone |= line.count('"') % 2 == 1
    return alone and counts != {0}


def with_plain_quotes(path: Path, folder: Path, sign: str | None, first: int | None = None) -> Path | None:
    """A copy of a text file of plain quotes in which they are written as such; None of another file. first: lines that are looked at before the others."""
    if path.is_dir() or format_of(path) not in ("csv", "tsv") or len(sign := sign or _sign_of(path)) > 1:
        return None
    for count in dict.fromkeys((first, None)):
        if not have_plain_quotes((line for _, line in islice(text_lines(path), count)), sign):
            return None
    target = folder / f"rows{suffix_of(path)}"
    with open(target, "w", encoding="utf-8", newline="") as file:
        csv.writer(file, delimiter=sign, lineterminator="\n").writerows(
            line.split(sign) for _, line in text_lines(path)
        )
    return target


def flat(table: pa.Table, source: Path) -> pa.Table:
    """The table with a column for each entry of its objects: `os_name` of `{"os": {"name": ...}}`; lists of objects stay.

    Raises:
        ValueError: a column that is called so already.
    """
    while any(pa.types.is_struct(field.type) for field in table.schema):
        columns: list[tuple[str, pa.ChunkedArray]] = []
        for name, column in zip(table.column_names, table.columns):
            if pa.types.is_struct(column.type):
                names = [f"{name}_{field.name}" for field in column.type]
                columns += zip(names, column.flatten())
            else:
                columns.append((name, column))
        names = [name for name, _ in columns]
        if doubled := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(
                f"{source}: an entry of an object would be called {doubled!r}, as another column is; rename one."
            )
        table = pa.table([column for _, column in columns], names=names)
    return table
