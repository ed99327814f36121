"""The results of a model card: the run's metrics beside its baselines, over one or more seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from lmctr.evaluation.comparison import differing_keys
from lmctr.evaluation.evaluator import METRIC_TITLES, RANKING_METRIC_NAMES
from lmctr.evaluation.impression_baselines import BOUND
from lmctr.hub.checks import split_metrics
from lmctr.runs.folder import RunFolder, check_same_data, open_run
from lmctr.utils.tables import markdown_table, seed_cells

METRIC_TYPES = {"auc": "roc_auc", "grouped_auc": "grouped_roc_auc", "user_auc": "user_roc_auc"}
"""What the card's metadata call a metric, where that isn't its name."""
METRICS = [key for key in METRIC_TITLES if key not in ("revenue_ratio_dropped", "num_samples", "positive_rate")]
_BASELINES = {
    BOUND: "best reachable (generated data)",
    "mean_ecpm": "mean eCPM of the ad",
    "popularity": "popularity of the ad",
    "ad_gradient_boosting": "gradient boosting (user and ad fields)",
    "random": "random order",
    "counting": "counting (user and item rate)",
    "gradient_boosting": "gradient boosting (history features)",
    "field_counting": "counting (rate per field)",
    "field_gradient_boosting": "gradient boosting (rates and numbers)",
}


def seed_metrics(
    folder: RunFolder, recipe: dict[str, Any] | None, metrics: dict[str, Any] | None, seed_runs: Sequence[str | Path]
) -> list[dict[str, Any]]:
    """One dict {seed, splits, baselines, training_samples, before_refit} per run; empty where the run holds no metrics."""
    if metrics is None:
        if seed_runs:
            folder.check_finished()
        return []
    runs, others = [_one_run(folder, metrics)], [open_run(other) for other in seed_runs]
    for second in others:
        differing = differing_keys(recipe, second.recipe())
        if differing:
            raise ValueError(
                f"{second.path} is no other seed of {folder.path}: their recipes differ in {', '.join(differing)}"
            )
        runs.append(_one_run(second, second.metrics()))
    seeds = [run["seed"] for run in runs]
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"the runs have the seeds {seeds}: give runs of different seeds")
    check_same_data([folder, *others])
    return runs


def _one_run(folder: RunFolder, metrics: dict[str, Any]) -> dict[str, Any]:
    kept = {key: metrics.get(key) or {} for key in ("baselines", "training_samples", "before_refit")}
    return {"seed": metrics.get("seed"), "splits": split_metrics(folder, metrics), **kept}


def common_splits(runs: list[dict[str, Any]]) -> list[str]:
    """Splits that every run has, the test split first."""
    common = [split for split in (runs[0]["splits"] if runs else {}) if all(split in run["splits"] for run in runs)]
    return sorted(common, key=lambda split: (split != "test", split != "validation"))


def tells_of_model(runs: list[dict[str, Any]], split: str) -> bool:
    """Whether the metrics of a split are those of the weights that were saved; not on validation where these were trained on it."""
    return split != "validation" or not any(run["before_refit"] for run in runs)


def results_table(runs: list[dict[str, Any]]) -> str:
    """A Markdown table: model and baselines by split; mean and spread where there are several runs."""
    splits = common_splits(runs)
    rows = []
    is_ranking = _is_ranking(runs)
    metrics = [key for key in METRICS if (key in RANKING_METRIC_NAMES) == is_ranking]
    for split in splits:
        own = [run["splits"][split] for run in runs]
        model = "this model" if tells_of_model(runs, split) else "the model chosen, before it was trained on these too"
        rows.append([split, f"**{model}**", *seed_cells(own, metrics), _count(own[0])])
        for task in (key.removesuffix("_log_loss") for key in own[0] if key.endswith("_log_loss")):
            of_task = [
                {key.removeprefix(f"{task}_"): value for key, value in run.items() if key.startswith(f"{task}_")}
                for run in own
            ]
            rows.append([split, f"{model}, {task}", *seed_cells(of_task, metrics), _count(of_task[0])])
        for name in runs[0]["baselines"]:
            per_run = [run["baselines"].get(name, {}).get(split) for run in runs]
            if all(per_run):
                rows.append([split, _BASELINES.get(name, name), *seed_cells(per_run, metrics), _count(per_run[0])])
    if not rows:
        return ""
    titles = ["split", "", *(METRIC_TITLES[key] for key in metrics), "impressions" if is_ranking else "samples"]
    return markdown_table([titles, *rows], left=(0, 1))


def _is_ranking(runs: list[dict[str, Any]]) -> bool:
    return any("ordered_pair_accuracy" in values for run in runs for values in run["splits"].values())


def main_metric(runs: list[dict[str, Any]]) -> str:
    """The metric that rivals are compared by."""
    return "revenue_ratio" if _is_ranking(runs) else "auc"


def _count(metrics: dict[str, float]) -> str:
    return f"{metrics['num_samples']:,}" if "num_samples" in metrics else "-"


def better_baselines(runs: list[dict[str, Any]]) -> list[str]:
    """The baselines whose AUC (on impressions: R/R*) on the test split is above the model's, with both numbers."""
    if "test" not in common_splits(runs):
        return []
    key = main_metric(runs)
    own = fmean([run["splits"]["test"].get(key, math.nan) for run in runs])
    found = []
    for name in (name for name in runs[0]["baselines"] if name != BOUND):
        values = [run["baselines"].get(name, {}).get("test", {}).get(key) for run in runs]
        if all(value is not None for value in values) and own < fmean(values):
            found.append(f"{_BASELINES.get(name, name)}, {own:.4f} against {fmean(values):.4f}")
    return found
