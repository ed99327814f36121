"""What is guessed of files: roles of columns with the reasons, and the schema that follows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lmctr.data.reading import printable
from lmctr.utils.suggest import LISTED, first_of

from .sample import FileSample

OF_IMPRESSIONS = ("impression", "rank", "position", "ecpm")
STATED = ("user", "item", "time", "label", "weight", *OF_IMPRESSIONS)  # options of `lmctr init` and `lmctr train FILE`
TEXT_BOUND = 200  # characters that a prompt reads of a text that may be long
_WIDE = 40  # signs of a name, up to which what is said of columns stands below one another
Ask = Callable[[str, Sequence[str], str], str]
"""Asked where a guess is not sure: a question, the accepted answers, the guess; returns the answer."""


@dataclass(frozen=True)
class Guess:
    """What one column is, why, and whether that is sure."""

    role: str
    column: str
    why: str
    sure: bool = True


@dataclass
class LogGuess:
    """A log that was guessed: samples of its files, what each column is, and the schema that follows."""

    events: FileSample
    items: FileSample | None
    users: FileSample | None
    guesses: list[Guess] = field(default_factory=list)
    schema: dict[str, Any] = field(default_factory=dict)
    title: str | None = None  # column of the catalogue
    title_is_long: bool = False  # whether it is, or may be: a prompt reads `TEXT_BOUND` characters of it only
    item_categories: list[str] = field(default_factory=list)
    user_categories: list[str] = field(default_factory=list)
    lacks: tuple[str, ...] = ()  # of a table: which of user, item and time no column looks like, so that it is no log

    @property
    def kind(self) -> str:
        """What it is: a "log", a "table" of clicks, or the ads of "impressions"."""
        return "table" if "fields" in self.schema else "impressions" if "ad_fields" in self.schema else "log"

    @property
    def is_table(self) -> bool:
        """Whether it is a table of clicks, no log."""
        return self.kind == "table"

    @property
    def repeat_share(self) -> float:
        """Share of the sample's rows whose user has met the item before."""
        keys = [
            column["column"] if isinstance(column := self.schema["columns"][role], dict) else column
            for role in ("user", "item")
        ]
        pairs = self.events.table.select(keys).rename_columns(["user", "item"])  # `.id` would be a path to a field
        pairs = pairs.group_by(["user", "item"]).aggregate([])
        return 1 - pairs.num_rows / max(self.events.table.num_rows, 1)

    def options(self) -> dict[str, Any]:
        """The schema as options of the loader of the file."""
        schema = dict(self.schema)
        events = {key: value for key, value in schema.pop("events").items() if key != "path"}
        return {**events, **schema}

    def lines(self) -> list[str]:
        """What was taken for what, and why."""
        files = {"": self.events, "items": self.items, "users": self.users}
        width = max((len(guess.column) for guess in self.guesses if len(guess.column) <= _WIDE), default=0)
        lines = []
        for start, sample in files.items():
            if sample is None:
                continue
            how = ", ".join(
                f"names {first_of(value, LISTED)}" if key == "names" else f"{key} {value!r}"
                for key, value in sample.reading.items()
            )
            rows = (
                f"{sample.rows:,} rows"
                if sample.whole
                else f"about {sample.rows:,} rows, of which {sample.table.num_rows:,} were read"
            )
            lines.append(f"{sample.path}: {rows}{', ' if how else ''}{how}")
            for guess in self.guesses:
                if guess.role.partition(" ")[0] == start or (not start and guess.role.partition(" ")[0] not in files):
                    other = f"; another one: --{guess.role} COLUMN" if guess.role in STATED else ""
                    sure = "" if guess.sure else f"  (not sure{other})"
                    lines.append(
                        f"  {guess.role.removeprefix(f'{start} '):<16} {guess.column:<{width}}  {guess.why}{sure}"
                    )
        return [*map(printable, lines)]


class NotToldError(ValueError):
    """What no column tells, and the user may state: `options` are the options of `lmctr init` and `lmctr train FILE` that do."""

    def __init__(self, message: str, *options: str):
        super().__init__(message)
        self.options = options


class NoLogError(NotToldError):
    """A file without a user, an item or a time: perhaps a table, no log."""
