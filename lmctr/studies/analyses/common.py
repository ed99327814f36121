"""What the analyses of runs share: opening runs, measuring one after the other, and writing what was found."""

from __future__ import annotations

import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import transformers

import lmctr.auto  # noqa: F401 (registers the model types)
from lmctr.analysis.plots import require_matplotlib
from lmctr.models.families import family_of
from lmctr.runs.folder import RECIPE, RunFolder, open_run
from lmctr.runs.inputs import input_of
from lmctr.runs.inputs.base import InputKind, RunContext
from lmctr.runs.loading import load_run
from lmctr.runs.recipe import load_recipe
from lmctr.utils.files import write_json
from lmctr.utils.measure import usable_device
from lmctr.utils.options import check_counts
from lmctr.utils.progress import Work
from lmctr.utils.tables import write_csv

_WANTED = {
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
        name: what its files are called. input: the kind of input that its families read.
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

    @abstractmethod
    def measure(self, run: OpenedRun, name: str) -> Any:
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
        check_counts(options, ("num_samples", "batch_size"))
        found = [open_run(path) for path in runs]
        folders = dict(zip(run_names(found), found))
        for folder in found:
            check_run(folder, self.input, options.overrides)
        if self.has_plots:
            require_matplotlib()
        transformers.utils.logging.disable_progress_bar()
        results = {}
        for name, folder in folders.items():
            with opened(folder, options) as run, Work(f"measuring {name}"):
                results[name] = self.measure(run, name)
            self.say(self.text(name, results[name]))
        return self.write(results, folders)

    def write(self, results: dict[str, Any], folders: dict[str, RunFolder]) -> Analysis:
        """Write numbers and pictures to the folder that the options name, else to analysis/ in the first run's."""
        output = Path(self.options.output or next(iter(folders.values())).path / "analysis")
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


def check_run(folder: RunFolder, kind: str, overrides: Sequence[tuple[str, str]]) -> None:
    """Check by the recipe that a run's family reads this kind of input, and that overrides say only where its data lie.

    Raises:
        ValueError: another kind of family, an override without effect.
    """
    recipe = load_recipe(folder.path / RECIPE)
    family = recipe.model["family"]
    if family_of(family).input != kind:
        raise ValueError(f"{folder.path}: {_WANTED[kind].format(family=family)}")
    free = input_of(recipe).free_data_keys
    for key, _ in overrides:
        group, name = key.split(".")[:2]
        if group != "data" or name not in free:
            raise ValueError(
                f"--{key} has no effect on an analysis of a trained run; free are data.{', data.'.join(free)}"
            )


@contextmanager
def opened(folder: RunFolder, options: Any) -> Iterator[OpenedRun]:
    """Load a run with its data, as `lmctr evaluate` does."""
    inputs = input_of(load_recipe(folder.path / RECIPE, options.overrides))
    with tempfile.TemporaryDirectory() as scratch:
        inputs.load(Path(scratch))
        model, processor = load_run(folder.path)
        model.to(usable_device(options.device))
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
