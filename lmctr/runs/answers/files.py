"""Input and output of `lmctr predict`: files, or "-" for the standard streams."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from lmctr.utils.files import holds_parquet, is_utf_8, replacing

_TABLES = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet")


def is_table_file(path: str) -> bool:
    """Whether an input is a table by its name, and holds no JSON lines."""
    return path.endswith(_TABLES) or (Path(path).is_dir() and holds_parquet(path))


def check_input(path: str, table: bool) -> None:
    """Make sure that there is such a file; where the model reads JSON lines (not `table`), that it is none of a table.

    Raises:
        FileNotFoundError, ValueError: names the option and the file.
    """
    if path == "-":
        return
    if Path(path).is_dir() and not (table and holds_parquet(path)):
        raise ValueError(
            f"--input {path} is a folder{' without .parquet files, which alone may be several' if table else ''}; give a file, or - for "
            "standard input"
        )
    if not Path(path).exists():
        raise FileNotFoundError(f"--input {path}: no such file")
    if not table and path.endswith(_TABLES):
        raise ValueError(
            f"--input {path}: this run reads JSON lines, one request per line, no table; `lmctr predict --help` shows requests"
        )


def check_output(path: str, formats: tuple[str, ...] | None = None) -> None:
    """Make sure that a file can be written there before anything is computed; `formats` are the suffixes that a table may have, None for JSON lines.

    Raises:
        FileNotFoundError, ValueError: names the option and the file.
    """
    if path == "-":
        return
    if formats is not None and Path(path).suffix not in formats:
        raise ValueError(f"--output {path}: give a file that ends in {', '.join(formats)}, or - for standard output")
    if formats is None and path.endswith(_TABLES):
        raise ValueError(
            f"--output {path}: answers to requests are JSON lines, no table; give a .jsonl file, or - for standard output"
        )
    if Path(path).is_dir():
        raise ValueError(f"--output {path} is a folder; give a file, or - for standard output")
    if not Path(path).parent.is_dir():
        raise FileNotFoundError(f"--output {path}: there is no folder {Path(path).parent}")


@contextmanager
def whole_output(path: str, binary: bool = False) -> Iterator[IO[Any]]:
    """A stream to write to; a file takes its name (and the place of an older one) only when all was written. What was written before a
    `ValueError` or an interrupt stays beside it, in a file whose name the error tells."""
    kind: dict[str, Any] = {"mode": "wb"} if binary else {"mode": "w", "encoding": "utf-8", "newline": ""}
    if path == "-":
        if not is_utf_8(sys.stdout):  # as data are in files
            sys.stdout.reconfigure(encoding="utf-8", errors="strict")
        yield sys.stdout
        sys.stdout.flush()
    elif Path(path).exists() and not Path(path).is_file():  # a pipe or a device
        with open(path, **kind) as stream:
            yield stream
    else:
        target = Path(path).resolve()
        with replacing(target) as temporary:
            try:
                with open(temporary, **kind) as stream:
                    yield stream
            except (ValueError, KeyboardInterrupt) as error:
                kept = target.with_name(f"{target.stem}.partial{target.suffix}")
                if not temporary.stat().st_size:
                    raise
                shutil.copyfile(temporary, kept)
                stands = f"what was scored before stands in {Path(path).with_name(kept.name)}"
                if isinstance(error, KeyboardInterrupt):
                    raise type(error)(stands) from error
                told = str(error).rstrip(".")
                raise ValueError(f"{told}; {stands}") from error
