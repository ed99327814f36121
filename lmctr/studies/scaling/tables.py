"""What the actions of `lmctr scaling` share: numbers as text, folders of results."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from lmctr.analysis.plots import require_matplotlib
from lmctr.studies.scaling.options import ResultFile, ResultFolder
from lmctr.utils.files import write_json, write_text
from lmctr.utils.results import write_result
from lmctr.utils.tables import Table, markdown_table, text_table

Asked = TypeVar("Asked", bound=ResultFolder)
Found = TypeVar("Found")


def with_folder(options: Asked, find: Callable[[Asked], Found]) -> tuple[Path | None, Found]:
    """The folder for results (None where none was asked for), and `find(options)`, after which it is made.

    Raises:
        ValueError: the path is a file, or leads through one. MissingExtraError: pictures are wanted and matplotlib is missing.
    """
    if options.output is None:
        return None, find(options)
    folder = Path(options.output)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise ValueError(f"--output {options.output}: {there} is a file; give a folder")
    if not options.no_plots:
        require_matplotlib()
    found = find(options)
    folder.mkdir(parents=True, exist_ok=True)
    return folder, found


def save_results(
    folder: Path,
    name: str,
    values: Mapping[str, Any],
    parts: Sequence[str],
    options: ResultFolder,
    draw: Callable[[Path], Any],
    picture: str,
    alt: str,
    before: Sequence[str] = (),
) -> None:
    """Write NAME.json, NAME.md and a picture, and say so.

    Args:
        values: of the JSON file. parts: paragraphs of the Markdown file. options: what was asked for.
        draw: draws the picture into the file `picture`; alt: what it shows. before: files that the caller has written.
    """
    write_json(folder / f"{name}.json", {**values, "command": options.command})
    written = [*before, f"{name}.json", f"{name}.md"]
    if not options.no_plots:
        draw(folder / picture)
        parts, written = [*parts, f"![{alt}]({picture})"], [*written, picture]
    write_text(folder / f"{name}.md", document(parts, options.command))
    print(f"\nwritten to {folder}: {', '.join(written)}")


def show_and_write(options: ResultFile, lines: Sequence[str], table: Table, values: Mapping[str, Any]) -> None:
    """Print lines and a table; write them, or the values, to the file that was asked for."""
    print("\n".join([*lines, text_table(table)]))
    text = "\n\n".join([*lines, markdown_table(table), f"`{options.command}`"])
    write_result(options.output, {**values, "command": options.command}, text)


def document(parts: Iterable[str], command: str) -> str:
    """Paragraphs as a Markdown document that ends with the command that made it."""
    return "\n\n".join([*parts, f"```\n{command}\n```"]) + "\n"


def parse_sizes(text: str, where: str) -> tuple[int, ...]:
    """`3328-1024-256-256-256-1` (or with commas, spaces, brackets) as numbers. Raises `ValueError` that starts with `where`."""
    words = text.strip().strip("[]()").replace(",", " ").replace("-", " ").split()
    try:
        sizes = tuple(int(word) for word in words)
    except ValueError:
        sizes = ()
    if len(sizes) < 2 or min(sizes) < 1:
        raise ValueError(f"{where}: {text!r} is no list of sizes; accepted: 3328-1024-256-256-256-1, the input first")
    return sizes


def sizes_text(sizes: Iterable[int] | str) -> str:
    """`3328-1024-256-256-256-1`; a name stays as it is."""
    return sizes if isinstance(sizes, str) else "-".join(map(str, sizes))


_UNITS = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def flops_text(value: float) -> str:
    """12,600,320 as `12.60M`."""
    for size, unit in _UNITS:
        if abs(value) >= size:
            return f"{value / size:.2f}{unit}"
    return f"{value:.0f}"


def compact(value: float | None, digits: int = 5) -> str:
    """A number of so many digits; "-" for None and NaN."""
    return "-" if value is None or value != value else f"{value:.{digits}g}"
