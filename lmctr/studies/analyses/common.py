"""What the analyses of runs share: opening runs, measuring one after the other, and writing what was found."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import lmctr.auto  # noqa: F401 (registers the model types)
from lmctr.analysis.plots import require_matplotlib
from lmctr.models.families import family_of
from lmctr.runs.download import is_hub_id, local_folder, place_beside
from lmctr.runs.evaluation import free_data_keys, recipe_of
from lmctr.runs.folder import RunFolder
from lmctr.runs.inputs import input_of
from lmctr.runs.inputs.base import InputKind, RunContext
from lmctr.runs.loading import load_run
from lmctr.runs.recipe import Recipe
from lmctr.utils.files import check_may_hold, write_json
from lmctr.utils.measure import usable_device
from lmctr.utils.options import check_counts
from lmctr.utils.progress import Work
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import write_csv

_WANTED = {
    "samples": "the family {family!r} ranks ads of impressions, which have no clicks; this measure is for families of texts, tables and sequences",
    "text": "the family {family!r} reads no texts; this measure is for CTR-Sink",
    "tabular": "the family {family!r} reads no tables; this measure is for tabular families",
    "sequence": "a run of the family {family!r} has no event sequences; this measure is for sequence families, for example astro and "
    "behavior_transformer",
}


@dataclass(frozen=True)
class Analysis:
    """What was found.

    Attributes:
        results: by name of the run, what [`lmctr.analysis`] measured.
        content: what the JSON file holds.
        written: the files.
    """

    results: dict[str, Any]
    content: dict[str, Any]
    written: list[Path]


@dataclass(frozen=True)
class OpenedRun:
    """A run with its data. inputs: loaded, not yet opened for a part. model: on its device."""

    folder: RunFolder
    inputs: InputKind
    model: Any
    processor: Any

    def open(self, part: str) -> None:
        """Make a part of the data ready to be read."""
        self.inputs.open(self.processor, (part,), RunContext(self.folder.path))


class Measure(ABC):
    """One measure of `lmctr analyze`.

    Attributes:
        name: what its files are called. input: the kind of input that its families read, "samples" for every one whose samples have a label each.
    """

    name: ClassVar[str]
    input: ClassVar[str]

    def __init__(self, options: Any, say: Callable[[str], None]):
        self.options, self.say = options, say
        self.has_plots = not getattr(options, "no_plots", True)

    @classmethod
    def analyze(cls, options: Any, say: Callable[[str], None] = print) -> Analysis:
        """Measure the runs of the options, print and write what was found.

        Raises:
            FileNotFoundError, ValueError: options out of range, no finished runs, runs of another kind of family, no matplotlib.
        """
        return cls(options, say).run(getattr(options, "runs", None) or [options.run])

    def opened(self, folder: RunFolder, recipe: Recipe) -> AbstractContextManager[Any]:
        """What [`measure`] takes of a run, for the time of a block."""
        return opened(folder, recipe, self.options.device)

    @abstractmethod
    def measure(self, run: Any) -> Any:
        """What one run gives."""

    @abstractmethod
    def text(self, name: str, result: Any) -> str:
        """What is printed of a run."""

    @abstractmethod
    def content(self, results: dict[str, Any], folders: dict[str, RunFolder]) -> dict[str, Any]:
        """The JSON file."""

    def rows(self, name: str, result: Any) -> list[dict[str, Any]]:
        """Rows of the CSV file for a run; none: there is no such file."""
        return []

    def plots(self, results: dict[str, Any], stem: Path) -> Iterable[Path]:
        """Write pictures whose names begin with `stem`."""
        return ()

    def run(self, runs: Sequence[str | Path]) -> Analysis:
        """One run after the other."""
        options = self.options
        counts = ("num_samples", "num_users", "batch_size", "top")
        check_counts(options, [name for name in counts if hasattr(options, name)])
        found = [RunFolder(local_folder(run)) for run in runs]
        recipes = [check_run(folder, self.input, options.overrides, str(run)) for folder, run in zip(found, runs)]
        names = [str(run) if is_hub_id(run) else name for run, name in zip(runs, run_names(found))]
        folders = dict(zip(names, found))
        check_may_hold(self.place(folders, runs[0]))
        if self.has_plots:
            require_matplotlib()
        results = {}
        for (name, folder), recipe, given in zip(folders.items(), recipes, runs):
            with errors_of(given), self.opened(folder, recipe) as run, Work(f"measuring {name}"):
                results[name] = self.measure(run)
            self.say(self.text(name, results[name]))
        return self.write(results, folders, runs[0])

    def place(self, folders: dict[str, RunFolder], first: str | Path) -> Path:
        """The folder that the options name, else one beside the first run."""
        return Path(self.options.output or place_beside(first, next(iter(folders.values())).path, "analysis"))

    def write(self, results: dict[str, Any], folders: dict[str, RunFolder], first: str | Path) -> Analysis:
        """Write numbers and pictures to their [`place`]."""
        output = self.place(folders, first)
        output.mkdir(parents=True, exist_ok=True)
        stem = output / (self.name if len(results) == 1 else f"{self.name}_comparison")
        content = {"measure": self.name, "command": self.options.command, **self.content(results, folders)}
        written = [Path(f"{stem}.json")]
        write_json(written[0], content)
        rows = [row for name, result in results.items() for row in self.rows(name, result)]
        if rows:
            written.append(write_csv(f"{stem}.csv", rows))
        if self.has_plots:
            written += self.plots(results, stem)
        self.say("wrote " + ", ".join(map(str, written)))
        return Analysis(results, content, written)

    def of_runs(self, entries: Iterable[dict[str, Any]], folders: dict[str, RunFolder], **more: Any) -> dict[str, Any]:
        """The JSON file of a measure that compares runs: an entry for each."""
        named = ({"name": name, "run": str(folder.path)} for name, folder in folders.items())
        runs = [{**head, **entry} for head, entry in zip(named, entries)]
        return {"split": self.options.split, "seed": self.options.seed, **more, "runs": runs}


def check_run(folder: RunFolder, kind: str, overrides: Sequence[tuple[str, str]], name: str) -> Recipe:
    """The recipe of a run whose family reads this kind of input, or the one around a bare model; overrides say where the data lie.

    Raises:
        FileNotFoundError: nothing there, or a bare model without data. ValueError: no finished run, another kind of family, an override
            without effect.
    """
    if (folder.path / "config.json").is_file():
        own = family_of(folder.model_type).input
        if own != kind and (kind != "samples" or own == "impressions"):
            raise ValueError(f"{name}: {_WANTED[kind].format(family=folder.model_type)}")
        free = free_data_keys(folder)
        for key, _ in overrides:
            group, own = key.split(".")[:2]
            if group != "data" or own not in free:
                raise ValueError(
                    f"--{key} has no effect on an analysis of a trained run; free are data.{', data.'.join(free)}"
                )
    return recipe_of(folder, overrides, name)


@contextmanager
def opened(folder: RunFolder, recipe: Recipe, device: str | None) -> Iterator[OpenedRun]:
    """Load a run with its data, as `lmctr evaluate` does."""
    inputs = input_of(recipe)
    with tempfile.TemporaryDirectory() as scratch:
        inputs.load(Path(scratch))
        model, processor = load_run(folder.path)
        model.to(usable_device(device))
        yield OpenedRun(folder, inputs, model, processor)


def run_names(folders: list[RunFolder]) -> list[str]:
    """A short name per run: its folder, with as many parents as it takes to tell the runs apart."""
    paths = [folder.path.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise ValueError(f"the same run is given twice: {', '.join(str(folder.path) for folder in folders)}")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]
