"""Runs side by side: mean and spread over seeds, and paired tests between two groups of runs of the same seeds.

Only what a run folder keeps of its scores is read, `metrics.json` and `predictions/<split>.parquet`: no model, no data set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from lmctr.evaluation import metrics
from lmctr.evaluation.evaluator import RANKING_METRIC_NAMES, evaluate_predictions
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking, ranking_per_impression
from lmctr.evaluation.significance import (
    PairedTest,
    cluster_bootstrap_tests,
    delong_test,
    paired_bootstrap_test,
    paired_t_test,
)
from lmctr.models.common.base import IGNORED_LABEL
from lmctr.utils.files import for_arrow, read_json, read_yaml
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import spread_cells

__all__ = [
    "COMPARED_METRICS",
    "RunPredictions",
    "SeedTest",
    "check_group",
    "compare_groups",
    "differing_keys",
    "dotted_keys",
    "mean_and_spread",
    "metric_cells",
    "read_predictions",
    "value_at",
]

COMPARED_METRICS = ("auc", "log_loss", "grouped_auc", "expected_calibration_error")
"""Metrics that runs are compared by, in the order in which they are shown; runs on impressions by `RANKING_METRIC_NAMES`."""

_NEEDED = ("event", "label", "logit")
_SAME = ("label", "impression", "ecpm", "item", "time", "weight")
"""Columns that must agree where two runs have them. A view of the data may lack items or times, and may number the users anew;
who shares a user must agree."""


@dataclass(frozen=True, eq=False)
class RunPredictions:
    """Scores of one run on one split: the result of `read_predictions`.

    Attributes:
        path: the run folder.
        seed: seed of the training.
        columns: event, label, logit and, where the data have them, user, item, time and weight: (S,) each, sorted by event.
            Of a run on impressions a row is an ad, label is v, and impression and ecpm are there too.
        baselines: metrics of the run's baselines on this split, by name.
        ranking: what the metrics of impressions count; None for a run on clicks.
    """

    path: Path
    seed: int
    columns: dict[str, np.ndarray]
    baselines: dict[str, dict[str, float]]
    ranking: RankingSettings | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Metrics that such runs are compared by."""
        return COMPARED_METRICS if self.ranking is None else RANKING_METRIC_NAMES

    @property
    def weight(self) -> np.ndarray | None:
        """(S,) sample weights, or None."""
        return self.columns.get("weight")

    @cached_property
    def users(self) -> np.ndarray | None:
        """(S,) user of each sample as a number, None where samples have no users."""
        if "user" not in self.columns:
            return None
        return np.unique(self.columns["user"], return_inverse=True)[1].reshape(-1)

    @property
    def drawn(self) -> str:
        """What a bootstrap draws."""
        if self.ranking is not None:
            return "impressions"
        return "samples" if self.users is None else "users (values of the group column, in tables)"

    def count_samples(self) -> str:
        """ "3,000 samples of 44 users"."""
        if self.ranking is not None:
            return f"{len(self._ads['counts']):,} impressions with {len(self.columns['label']):,} ads"
        samples = f"{len(self.columns['label']):,} samples"
        return samples if self.users is None else f"{samples} of {self.users.max() + 1:,} users"

    @cached_property
    def metrics(self) -> dict[str, float]:
        """`evaluate_predictions` of the scores, with users as groups where there are some; `evaluate_ranking` of impressions."""
        with errors_of(self.path):
            if self.ranking is not None:
                return evaluate_ranking(**self._ads, settings=self.ranking)
            return evaluate_predictions(self.columns["label"], self.columns["logit"], self.users, self.weight)

    @cached_property
    def per_impression(self) -> dict[str, np.ndarray]:
        """`ranking_per_impression` of a run on impressions."""
        ads = {name: values for name, values in self._ads.items() if name != "weight"}
        return ranking_per_impression(**ads, settings=self.ranking)

    @property
    def _ads(self) -> dict[str, np.ndarray | None]:
        columns = self.columns
        # ads stand together
        _, first, counts = np.unique(columns["impression"], return_index=True, return_counts=True)
        ads = {"counts": counts, "ranks": columns["label"], "scores": columns["logit"], "ecpm": columns["ecpm"]}
        return ads | {"weight": None if self.weight is None else self.weight[first]}


@dataclass(frozen=True)
class SeedTest:
    """A paired test of one metric: `seed` is the pair's seed, or None for a test over all seeds."""

    metric: str
    seed: int | None
    test: PairedTest


def read_predictions(run_dir: str | Path, split: str = "test", label: str | None = None) -> RunPredictions:
    """Read the scores that a run keeps, of samples whose label is known.

    Args:
        run_dir: the run folder.
        split: "validation" or "test".
        label: of a run with several labels, the one to read, without baselines, which score the first; None: the first.

    Raises:
        FileNotFoundError: no such folder, no `metrics.json` in it, no stored scores of this split.
        ValueError: a file is damaged, lacks a column, names no seed, or holds an event twice; no such label.
    """
    folder = Path(run_dir)
    if not folder.is_dir():
        what = "is a file; of a grid's folder seed-*/ names the runs alone" if folder.exists() else "does not exist"
        raise FileNotFoundError(f"run folder {run_dir} {what}")
    path = folder / "metrics.json"
    if not path.is_file():
        raise FileNotFoundError(f"{folder} has no metrics.json: it holds no finished run of `lmctr train`")
    written = read_json(path)
    seed = written.get("seed")
    if not isinstance(seed, int):
        raise ValueError(f"{path}: seed is {seed!r}; it must be the whole number that the run was trained with")
    path = folder / "predictions" / f"{split}.parquet"
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: the run keeps no scores of the {split} split")
    try:
        table = pq.read_table(for_arrow(path))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} is damaged and cannot be read ({error})") from error
    missing = [name for name in _NEEDED if name not in table.column_names]
    if missing:
        raise ValueError(f"{path} has no column {missing[0]!r}; it holds {', '.join(table.column_names)}")
    columns = {name: table[name].to_numpy() for name in (*_NEEDED, "user", *_SAME) if name in table.column_names}
    if label is not None:
        columns |= {name: table[own].to_numpy() for name, own in _columns_of(label, table.column_names, path).items()}
    order = np.argsort(columns["event"], kind="stable")
    order = order[columns["label"][order] != IGNORED_LABEL]
    columns = {name: values[order] for name, values in columns.items()}
    repeated = np.flatnonzero(columns["event"][1:] == columns["event"][:-1])
    if len(repeated):
        raise ValueError(f"{path} holds event {columns['event'][repeated[0]]} more than once")
    baselines = {
        name: parts[split]
        for name, parts in (written.get("baselines") or {}).items()
        if label is None and isinstance(parts, dict) and isinstance(parts.get(split), dict)
    }
    ranking = None
    if "impression" in columns:
        recipe = folder / "recipe.yaml"
        if "ecpm" not in columns or not recipe.is_file():
            missing = f"{path} has no column 'ecpm'" if recipe.is_file() else f"{recipe} is missing"
            raise ValueError(f"{missing}: scores of impressions cannot be measured without")
        ranking = RankingSettings(**read_yaml(recipe)["data"]["metrics"])
        if (np.diff(columns["impression"]) < 0).any():
            raise ValueError(f"{path}: the ads of an impression do not stand together in the order of event")
    return RunPredictions(folder, seed, columns, baselines, ranking)


def _columns_of(label: str, names: Sequence[str], path: Path) -> dict[str, str]:
    """The columns of one of the labels behind the first."""
    others = [name.removeprefix("logit_") for name in names if name.startswith("logit_")]
    if label not in others:
        accepted = ", ".join(map(repr, others)) or "none, it has one label"
        raise ValueError(f"label={label!r}: {path} has no such label behind the first; accepted: {accepted}")
    return {"label": f"label_{label}", "logit": f"logit_{label}"}


def check_group(runs: Sequence[RunPredictions]) -> None:
    """Check that runs can be averaged: different seeds, scores of the same samples.

    Raises:
        ValueError: two runs of one seed; events, users, items, times, labels or weights that differ.
    """
    by_seed: dict[int, RunPredictions] = {}
    for run in runs:
        if run.seed in by_seed:
            raise ValueError(
                f"{by_seed[run.seed].path} and {run.path} are both of seed {run.seed}; give runs of different seeds"
            )
        by_seed[run.seed] = run
    for run in runs[1:]:
        check_same_samples(runs[0], run)


def differing_keys(left: dict[str, Any] | None, right: dict[str, Any] | None) -> list[str]:
    """Dotted keys that two recipes differ in, other than the seed and the name of the run."""
    left, right = dotted_keys(left or {}), dotted_keys(right or {})
    ignored = {"training.seed", "training.data_seed", "training.output_dir", "training.run_name"}
    return sorted(key for key in (left.keys() | right.keys()) - ignored if left.get(key) != right.get(key))


def dotted_keys(value: Any, prefix: str = "") -> dict[str, Any]:
    """The values of a recipe by dotted keys."""
    if not isinstance(value, dict):
        return {prefix: value}
    return {
        k: v
        for key, inner in value.items()
        for k, v in dotted_keys(inner, f"{prefix}.{key}" if prefix else key).items()
    }


def value_at(recipe: Mapping[str, Any], key: str, missing: Any = None) -> Any:
    """The value of a dotted key; `missing` without one."""
    value: Any = recipe
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return missing
        value = value[part]
    return value


def mean_and_spread(runs: Sequence[RunPredictions | dict[str, float]]) -> dict[str, tuple[float, float | None]]:
    """Mean and sample standard deviation (None for one run) of each metric that all runs (or metrics dicts) have."""
    found = [run.metrics if isinstance(run, RunPredictions) else run for run in runs]
    result = {}
    for name in (*RANKING_METRIC_NAMES, *COMPARED_METRICS):
        values = [run[name] for run in found if run.get(name) is not None]
        if values and len(values) == len(found):
            result[name] = float(np.mean(values)), float(np.std(values, ddof=1)) if len(values) > 1 else None
    return result


def metric_cells(runs: Sequence[RunPredictions | dict[str, float]], names: Sequence[str]) -> list[str]:
    """Cells "mean ± spread" of the metrics of runs (or metrics dicts), "-" for one that not all of them have."""
    return spread_cells(mean_and_spread(runs), names)


def compare_groups(
    runs: Sequence[RunPredictions],
    others: Sequence[RunPredictions],
    num_resamples: int = 1000,
    names: Sequence[str] | None = None,
) -> list[SeedTest]:
    """Paired tests of `runs` against `others`: for each metric in `names` (default: all that such runs are compared by) one test per seed and
    draw of the test samples, then one over the seeds. Differences are runs - others.

    Raises:
        ValueError: groups of different seeds, and what `check_group` refuses.
    """
    check_group(runs)
    check_group(others)
    check_same_samples(runs[0], others[0])
    first, second = {run.seed: run for run in runs}, {run.seed: run for run in others}
    if first.keys() != second.keys():
        raise ValueError(
            f"the runs have the seeds {_listed(first)}, those to compare with {_listed(second)}; runs are compared in "
            "pairs of one seed: give the same seeds on both sides"
        )
    pairs = [(first[seed], second[seed]) for seed in sorted(first)]
    names = [
        name
        for name in (runs[0].names if names is None else names)
        if all(name in run.metrics for pair in pairs for run in pair)
    ]
    bootstraps = _bootstraps(names, pairs, num_resamples)
    tests = []
    for name in names:
        for run, other in pairs:
            if name == "auc" and run.ranking is None and run.weight is None:
                delong = delong_test(run.columns["label"], run.columns["logit"], other.columns["logit"])
                tests.append(SeedTest(name, run.seed, delong))
            tests.append(SeedTest(name, run.seed, bootstraps[name, run.seed]))
        if len(pairs) > 1:
            values = ([run.metrics[name] for run in side] for side in zip(*pairs))
            tests.append(SeedTest(name, None, paired_t_test(*values)))
    return tests


def _bootstraps(
    names: Sequence[str], pairs: Sequence[tuple[RunPredictions, RunPredictions]], num_resamples: int
) -> dict[tuple[str, int], PairedTest]:
    """For each metric and seed a bootstrap that draws what `drawn` says."""
    tests = {}
    first = pairs[0][0]
    if first.ranking is not None:
        for name in names:
            for run, other in pairs:
                mine, theirs = run.per_impression[name], other.per_impression[name]
                weight = np.ones(len(mine)) if run.weight is None else run._ads["weight"]
                defined = ~np.isnan(mine) & (weight > 0)  # the same ones in both runs
                own = None if run.weight is None else weight[defined]
                test = paired_bootstrap_test(mine[defined], theirs[defined], num_resamples, sample_weight=own)
                tests[name, run.seed] = replace(test, method="impression bootstrap")
        return tests
    users = first.users
    fixed = {"auc": {}, "grouped_auc": {"groups": users}}
    measures = [partial(getattr(metrics, name), **fixed.get(name, {"from_logits": True})) for name in names]
    clusters = np.arange(len(first.columns["label"])) if users is None else users
    logits = [(run.columns["logit"], other.columns["logit"]) for run, other in pairs]
    of_pairs = cluster_bootstrap_tests(first.columns["label"], logits, clusters, measures, first.weight, num_resamples)
    for (run, _), of_pair in zip(pairs, of_pairs):
        for name, test in zip(names, of_pair):
            tests[name, run.seed] = test if users is not None else replace(test, method="bootstrap")
    return tests


def check_same_samples(run: RunPredictions, other: RunPredictions) -> None:
    """Check that the numbers of two runs can be set side by side.

    Raises:
        ValueError: events, users, items, times, labels or weights that differ, or metrics that are counted otherwise.
    """
    differ = f"{run.path} and {other.path} were not scored on the same samples"
    if (run.ranking is None) != (other.ranking is None):
        ranked, single = (run, other) if other.ranking is None else (other, run)
        raise ValueError(
            f"{ranked.path} orders the ads of impressions and {single.path} scores single samples: no metric is of both"
        )
    if run.ranking != other.ranking:
        mine, theirs = (asdict(each.ranking) for each in (run, other))
        told = ", ".join(
            f"data.metrics.{key} {value} and {theirs[key]}" for key, value in mine.items() if value != theirs[key]
        )
        raise ValueError(
            f"{run.path} and {other.path} count other metrics: {told}; evaluate both with the same data.metrics"
        )
    mine, theirs = run.columns, other.columns
    if not np.array_equal(mine["event"], theirs["event"]) and not _told_by_users_items_times(run, other):
        only_mine = np.setdiff1d(mine["event"], theirs["event"])
        only_theirs = np.setdiff1d(theirs["event"], mine["event"])
        raise ValueError(
            f"{differ}: {len(only_mine)} of {len(mine['event'])} events are only in the first, {len(only_theirs)} of "
            f"{len(theirs['event'])} only in the second; train both with the same data, split and data.max_eval_samples"
        )
    for name in _SAME:
        if name == "weight" and (name in mine) != (name in theirs):
            raise ValueError(f"{(run if name in mine else other).path} has sample weights, the other run has none")
        if name in mine and name in theirs and not np.array_equal(mine[name], theirs[name]):
            row = int(np.flatnonzero(mine[name] != theirs[name])[0]) if len(mine[name]) == len(theirs[name]) else 0
            raise ValueError(
                f"{differ}: event {mine['event'][row]} has the {name} {mine[name][row]} in the first and "
                f"{theirs[name][row]} in the second; train both on the same data"
            )
    if run.users is None or other.users is None:
        if run.users is not other.users:
            raise ValueError(f"{(other if run.users is None else run).path} has users, the other run has none")
        return
    pairs = len(np.unique(np.stack([run.users, other.users]), axis=1).T)
    if not pairs == run.users.max() + 1 == other.users.max() + 1:
        raise ValueError(f"{differ}: they part the same events into other users")


def _told_by_users_items_times(run: RunPredictions, other: RunPredictions) -> bool:
    """Whether samples of other event numbers are the same in the same order: a log that holds further events, such as tags, numbers them
    otherwise. Told where user, item and time of a sample are those of no other one."""
    mine, theirs = run.columns, other.columns
    if not all({"user", "item", "time"} <= own.keys() for own in (mine, theirs)):
        return False
    if not all(np.array_equal(mine[name], theirs[name]) for name in ("item", "time")):
        return False
    keys = [run.users, *(np.unique(mine[name], return_inverse=True)[1].reshape(-1) for name in ("item", "time"))]
    return len(np.unique(np.stack(keys), axis=1).T) == len(mine["event"])


def _listed(seeds: Sequence[Any]) -> str:
    return ", ".join(map(str, sorted(seeds)))
