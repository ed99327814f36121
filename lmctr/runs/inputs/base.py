"""The interface between the verbs and a kind of input (text, table, ...): one object per run."""

from __future__ import annotations

import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lmctr.auto import AutoModelForCTR
from lmctr.data.logs.splits import PARTS
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.runs.inputs import config_class
from lmctr.runs.inputs.keys import DataKeys
from lmctr.runs.inputs.linear_start import LinearSamples
from lmctr.training.checks import check_labels
from lmctr.utils.progress import step
from lmctr.utils.values import Values


@dataclass(frozen=True)
class RunContext:
    """Where an input is opened.

    Attributes:
        folder: the run folder, where there is one.
        is_first: whether this process does what only one must do.
        wait: waits for the other processes.
        writes: whether things that belong to the run may be written to `folder` (training), or only read.
        measures: whether metrics are wanted, so that parts need positives and negatives.
    """

    folder: Path | None = None
    is_first: bool = True
    wait: Callable[[], None] = lambda: None
    writes: bool = False
    measures: bool = True


ALONE = RunContext()
"""One process, and no folder to write to."""


_STEPS = {
    "load": "reading the data",
    "load_shared": "reading the data",
    "share": "sharing the data",
    "check": "checking the data",
    "with_validation": "adding validation to training",
    "make_processor": "fitting the processor",
    "open": "preparing the samples",
    "describe": "describing the data",
    "baselines": "measuring the baselines",
    "slices": "measuring slices",
    "save_beside": "counting for requests",
}


class InputKind(ABC):
    """What a recipe's data are to a model: keys of the recipe, data, processor, model, datasets.

    A verb makes one object per run and calls, in this order: [`load`] or [`load_shared`]; [`check`],
    [`make_processor`] and [`share`] in the process that prepares a training; [`load_processor`], [`open`]; then
    what it needs of the rest.

    Args:
        data, model: these groups of a checked recipe whose family has this kind of input.

    Attributes:
        data_keys: keys of the recipe's data group.
        free_data_keys: data keys that an evaluation may set anew: where the data lie and how they are parted.
        training_defaults: training arguments whose default is another one for this kind.
        has_stages: whether trainings have two stages, each with its number of epochs.
        shares_histories: whether a row of the model may hold several candidates behind one history.
        ranks: whether logits only rank, and are no log-odds of a label.
        log: the interaction log whose events the samples are, once it is read; None where they come from elsewhere.
        view: what the opened data are read through.
    """

    data_keys: ClassVar[type[DataKeys]]
    free_data_keys: ClassVar[tuple[str, ...]]
    training_defaults: ClassVar[dict[str, Any]] = {}
    has_stages: ClassVar[bool] = False
    shares_histories: ClassVar[bool] = False
    ranks: ClassVar[bool] = False
    log: Any = None
    view: Any = None
    _training: tuple[Any, Any] = (None, None)
    before: Path | None = None  # the run folder that a training goes on from, where the kind can

    def __init_subclass__(cls) -> None:
        """What takes long of any kind of input is shown."""
        for name in _STEPS.keys() & vars(cls).keys():
            setattr(cls, name, step(_STEPS[name])(vars(cls)[name]))

    def __init__(self, data: dict[str, Any], model: dict[str, Any]):
        self.data = data
        self.model_group = model

    # ---- the recipe ----

    @classmethod
    @abstractmethod
    def model_keys(cls, family: str) -> type[Values]:
        """Keys of the model group besides `family`."""

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        """Model keys that a recipe does not set, and what to do instead: `{"sink_order": "set data.order"}`."""
        return {}

    @classmethod
    def check_recipe(cls, data: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, str]]:
        """What is wrong with values that depend on each other: the key (`data.order`), and a sentence that names it, its value and
        what is accepted."""
        return iter(())

    @classmethod
    def baseline_data_keys(cls, data: dict[str, Any]) -> tuple[str, ...]:
        """Data keys that baselines depend on: which samples there are, and what the baselines see of them.

        `max_train_samples` is none of them, because baselines are fitted on the whole training part; `path` says only where
        the data lie.
        """
        return ("name", "options", "split", "fractions", "seed", "max_eval_samples")

    # ---- data ----

    @abstractmethod
    def load(self, scratch: Path | None = None) -> None:
        """Read the data and cut them into parts; `scratch` is a folder for what is worked out of them, kept as long as the verb."""

    def freeze(self, part: str) -> None:
        """Of a loaded log, hide what happened since a part began from histories and statistics.

        Raises:
            ValueError: data that are no log, or parts that are cut by user.
        """
        raise ValueError(
            f"frozen_histories: {self.data['name']!r} is no interaction log, whose samples have events before them; leave it out"
        )

    @abstractmethod
    def check(self) -> list[str]:
        """Check loaded data before a training. Returns lines to print.

        Raises:
            ValueError: a part without positives or negatives, leakage, ...
        """

    @abstractmethod
    def share(self, folder: Path) -> None:
        """Write what the other processes of a launch need, to read it with [`load_shared`]."""

    @abstractmethod
    def load_shared(self, folder: Path) -> None:
        """[`load`], from what another process wrote with [`share`]."""

    @abstractmethod
    def with_validation(self, folder: Path, is_first: bool) -> InputKind:
        """These data, loaded, with the validation part added to the training part and empty itself, for a training on both
        (`training.refit`): of either the samples that were drawn before (`max_train_samples`, `max_eval_samples`). What the first
        process has to prepare it leaves in `folder`, where the others, later, find it."""

    def earlier(self, count: int) -> InputKind:
        """These data, loaded, as they were `count` validation parts earlier, without a test part: for `training.rolling_origin`.

        Raises:
            ValueError: data that are no interaction log; see [`~lmctr.data.logs.splits.Splits.earlier`].
        """
        raise ValueError(
            f"training.rolling_origin tries earlier cuts of an interaction log, but {self.data['name']!r} is read as another kind of data; "
            "leave it out"
        )

    @abstractmethod
    def make_processor(self) -> Any:
        """The processor, fitted on the training part only."""

    @abstractmethod
    def load_processor(self, folder: Path) -> Any:
        """The processor that a run folder holds."""

    @abstractmethod
    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        """Make the parts ready to be read.

        Args:
            processor: the run's processor.
            parts: the parts that will be asked for.
            run: where.

        Raises:
            ValueError: a part without positives or negatives; data that do not go with the processor.
        """

    def unknown_warnings(self, part: str, kept: dict[str, Any] | None = None, allowed: bool = True) -> list[str]:
        """Sentences about fields of a part whose values the processor knows far fewer of than of the validation part's.

        Args:
            kept: what `data.json` of the run keeps of unknown values, where the processor itself keeps nothing.

        Raises:
            ValueError: unless `allowed`, a field with next to no known value.
        """
        return []

    @abstractmethod
    def num_samples(self, part: str) -> int:
        """Samples of a part."""

    @abstractmethod
    def dataset(self, part: str) -> Any:
        """The dataset of a part, as [`~lmctr.training.trainer.CTRTrainer`] takes it."""

    def training_dataset(self) -> Any:
        """The training part as it is trained on, which may gather several samples into a row; with `data.negative_share` it has the `loss_weight`
        of its samples. Made once for the opened data."""
        of, dataset = self._training
        if dataset is None or of is not self.view:
            dataset = self._training_rows()
            if self.data.get("negative_share") is not None:
                dataset.loss_weight = self._loss_weight(dataset.labels, dataset.rows.ndim)
            self._training = self.view, dataset
        return dataset

    def _training_rows(self) -> Any:
        return self.dataset("train")

    @abstractmethod
    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        """From items of the dataset to a batch."""

    @abstractmethod
    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        """The content of `data.json`: origin (`info`), counts, split, label rates, and `fingerprint`, a checksum by which
        a resumed run knows its data (with `inputs_fingerprint`, where that holds no inputs); `say` gets a summary in words."""

    @abstractmethod
    def data_fingerprint(self) -> str:
        """A checksum of the data and their parts, after [`check`], which all views have alike whose baselines are the same."""

    @property
    def lacks_times(self) -> bool:
        """Whether loaded data are known to have no times, before their rows are read."""
        return False

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the labels that the model predicts, the first of which metrics without a name measure."""
        return ("label",)

    @property
    @abstractmethod
    def best_auc(self) -> float | None:
        """The best reachable test AUC, where the data were generated."""

    @abstractmethod
    def identify(self, part: str) -> dict[str, Any]:
        """Columns that say which sample a prediction belongs to, as Arrow arrays in the order of the dataset: `event` (a
        number that is the same in every run on these data), `user` where there are groups, `weight` where samples
        are weighted, and what else helps to recognise a sample."""

    @abstractmethod
    def baselines(self, seed: int, refit: bool = False) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        """Metrics of simple rivals by name and part (validation and test), and the number of samples that they were fitted on; with `refit` they are
        fitted on training and validation for the test part."""

    def baseline_scores(self, name: str, part: str) -> tuple[np.ndarray, np.ndarray] | None:
        """After [`baselines`]: the `event` of each sample of a part, see [`identify`], and what a baseline gave it, both (S,); None where that is not
        kept."""
        return None

    def slices(
        self, part: str, events: np.ndarray, logits: np.ndarray, seed: int, **options: bool
    ) -> list[dict[str, Any]]:
        """Metrics by slice of samples of a part, see [`~lmctr.evaluation.slices.slice_metrics`]; none where the data are no interaction log.

        Args:
            events: (S,) the samples' `event`, see [`identify`]. logits: (S,) the model's. seed: of the baselines.
            options: `with_baseline`, whether the strongest baseline stands beside the model; `refit`, see [`baselines`].
        """
        return []

    @property
    def behaviors_read(self) -> int | None:
        """How many of a user's last events the model reads, where that limits `best_auc`; None without a limit."""
        return None

    def limited(self, rows: np.ndarray, part: str, labels_of: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """At most as many of a part's rows as the recipe allows, drawn at random with `data.seed`, in their order; of the training part's, first
        `data.negative_share` of the negative ones.

        Not the training seed, so that runs with different seeds see the same samples.

        Args:
            labels_of: see [`with_some_negatives`].
        """
        if part == "train":
            rows = self.with_some_negatives(rows, part, labels_of)
        limit = self.data["max_train_samples" if part == "train" else "max_eval_samples"]
        if limit is None or len(rows) <= limit:
            return rows
        chosen = np.random.default_rng([self.data["seed"], PARTS.index(part)]).permutation(len(rows))[:limit]
        return rows[np.sort(chosen)]

    def with_some_negatives(
        self, rows: np.ndarray, part: str, labels_of: Callable[[np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """`data.negative_share` of a part's rows without a positive label, drawn at random with `data.seed`, and all others, in their order.

        Args:
            labels_of: gives rows their labels, with a task axis for several tasks.
        """
        share = self.data.get("negative_share")
        if share is None:
            return rows
        drawn = np.random.default_rng([self.data["seed"], PARTS.index(part), 1]).random(len(rows)) < share
        return rows[drawn | _is_positive(labels_of(rows), 1)]

    def _loss_weight(self, labels: np.ndarray, axes: int) -> np.ndarray | None:
        """float32 what training samples of these labels, on so many axes, count for having been drawn; None where all were kept."""
        share = self.data.get("negative_share")
        return None if share is None else np.where(_is_positive(labels, axes), 1, 1 / share).astype(np.float32)

    def _as_drawn(self, samples: LinearSamples) -> LinearSamples:
        """Samples of the training part with what they count for having been drawn."""
        drawn = self._loss_weight(samples.labels, 1)
        if drawn is None:
            return samples
        return samples._replace(weight=drawn if samples.weight is None else drawn * samples.weight)

    def _positive_words(self, rate: float) -> str:
        share = self.data.get("negative_share")
        drawn = "" if share is None else f", {share:.3g} of whose negatives were drawn and count {1 / share:.3g} times"
        return f"positive {rate:.1%} of training{drawn}"

    def save_beside(self, folder: Path, processor: Any) -> None:
        """Write what requests need of the data besides model and processor into the run folder."""
        return None

    def go_on_from(self, run: str) -> None:
        """Extend the processor of a finished run by the training part, in place of fitting one; before [`check`] and [`open`].

        Raises:
            ValueError: a kind of input, or data, whose processors cannot be extended.
        """
        raise ValueError(
            f"training.from_run goes on with tables, and with logs for families of sequences and of texts; {self.data['name']!r} is read "
            "as another kind of data: train anew, on a file that holds the older rows too"
        )

    def carried(self, model: Any, processor: Any) -> Callable[[Any], str] | None:
        """After [`go_on_from`]: give a new model the run's weights. Returns what gives an optimiser the run's state, and says so."""
        return None

    def share_moved(self, model: Any) -> str:
        """After [`carried`]: words on the trees' share in the model's logits where it is not the earlier run's; else none."""
        return ""

    # ---- model ----

    def config(self, processor: Any) -> Any:
        """The model's configuration: the recipe's values, and what follows from the data."""
        values = {key: value for key, value in self.model_group.items() if key != "family"}
        return config_class(self.model_group["family"])(**values | self.config_values(processor))

    def config_values(self, processor: Any) -> dict[str, Any]:
        """What of the configuration follows from the data."""
        return processor.model_config_values()

    def model(self, processor: Any) -> Any:
        """The model with its initial weights; seed the random generators before."""
        return AutoModelForCTR.from_config(self.config(processor))

    def linear_samples(self) -> LinearSamples:
        """The opened training part as the linear way of a model, where it has one, reads it."""
        raise NotImplementedError(f"{type(self).__name__} has no linear_samples")

    def tree_samples(self, model: Any) -> LinearSamples:
        """The same as boosted trees beside a model read it: of the whole training part, as a limit on the model's samples saves the model's
        time, and trees take little."""
        return self.linear_samples()

    def describe_model(self, model: Any) -> str:
        """The model in words."""
        return type(model).__name__

    def cost(self, model: Any) -> dict[str, Any]:
        """What a run reports of the model's cost (counted FLOPs per sample, parameters); empty where nothing is counted."""
        return {}


def count_cost(model: Any, flops_of: Mapping[str, Iterable[tuple[dict[str, Any], int]]]) -> dict[str, Any]:
    """[`InputKind.cost`]: parameters, and by each name the counted forward FLOPs of a sample, as a mean over (batch, samples) pairs."""
    from lmctr.scaling.flops import count_parameters, mean_flops

    device = next(model.parameters()).device
    found = {
        name: mean_flops(model, (({k: v.to(device) for k, v in batch.items()}, count) for batch, count in batches))
        for name, batches in flops_of.items()
    }
    dense, tables = count_parameters(model)
    return {**found, "dense_parameters": dense, "embedding_parameters": tables}


def checksum(*arrays: np.ndarray | None) -> str:
    """Of the values of arrays one after the other, without those that are None."""
    value = 0
    for array in arrays:
        value = value if array is None else zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8), value)
    return f"{value:08x}"


def check_part(
    part: str,
    labels: Mapping[str, np.ndarray],
    weight: np.ndarray | None = None,
    unmet: Callable[[str], str] = lambda task: "",
) -> None:
    """Raises `ValueError` for labels of a part by task, below 0 where there is none, that are of one class only where the weight is above 0; `unmet`
    gives words on a task's label rule that no value of the data follows. Parts that only measure may go without the metrics of further tasks."""
    remedy = "change data.fractions, data.split, data.max_eval_samples or the label rule"
    for task, own in [*labels.items()][: None if part == "train" else 1]:
        name = f"the {part} part" if len(labels) == 1 else f"the {part} (label {task!r}) part"
        own = np.where(own < 0, IGNORED_LABEL, own)
        try:
            check_labels(name, own, remedy, weight)
        except ValueError:
            if not (words := unmet(task)):
                raise
            check_labels(name, own, f"{words}; change the label rule", weight)


def _is_positive(labels: np.ndarray, axes: int) -> np.ndarray:
    """Whether a sample has a positive label, for labels on so many axes and perhaps one of tasks."""
    positive = labels > 0
    return positive.any(axis=-1) if labels.ndim > axes else positive
