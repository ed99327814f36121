"""Pictures of reports: training curves, calibration, AUC by slice, what a model's answers hang on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.importance import Importance
from lmctr.analysis.plots import new_figure, plain_axes, run_colours, save_figure

_Z = 1.959964  # of a 95 % interval
_BARS, _MOST_BARS = "#1f4e9c", 30


def plot_curves(
    runs: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    path: str | Path,
    title: str,
    among: Sequence[str] = (),
) -> Path:
    """Steps and values, a curve per run, as an image file.

    Args:
        runs: name of each run -> steps (N,) and values (N,).
        path: image file; the suffix decides the format. Folders are made.
        title: what the values are. among: names of all runs of several pictures, in which a run keeps its colour (default: these runs).

    Raises:
        ValueError: no runs. MissingExtraError: matplotlib is missing.
    """
    colours = run_colours(dict.fromkeys([*among, *runs]))
    from matplotlib.ticker import MaxNLocator

    figure = new_figure(6.4, 3.6)
    axes = figure.subplots()
    for name, (steps, values) in runs.items():
        axes.plot(steps, values, color=colours[name], linewidth=1.5, marker="o" if len(steps) < 40 else "", label=name)
    axes.set(xlabel="step", ylabel=title)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    axes.ticklabel_format(axis="y", useOffset=False)  # 0.9984, not 8 and a sum above
    plain_axes(axes)
    if len(runs) > 1:
        axes.legend(fontsize=8, frameon=False)
    return save_figure(figure, path)


def plot_calibration(
    runs: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]], path: str | Path, among: Sequence[str] = ()
) -> Path:
    """Positive rate by mean probability, a curve per run, as an image file; bars are 95 % intervals of the rate (Wilson), which take the
    samples of a bin as independent. A calibrated model lies on the dotted line.

    Args:
        runs: name of each run -> what [`calibration_curve`] gives.
        path: image file; the suffix decides the format. Folders are made. among: as of `plot_curves`.

    Raises:
        ValueError: no runs. MissingExtraError: matplotlib is missing.
    """
    colours = run_colours(dict.fromkeys([*among, *runs]))
    figure = new_figure(4.6, 4.6)
    axes = figure.subplots()
    top = 1.05 * max(float(np.maximum(mean, rate).max()) for mean, rate, _ in runs.values())
    axes.plot([0, top], [0, top], color="0.4", linestyle=":", linewidth=1.0)
    for name, (mean, rate, count) in runs.items():
        low, high = wilson_interval(rate, count)
        bars = np.maximum([rate - low, high - rate], 0.0)
        style = {"marker": "o", "markersize": 4, "linewidth": 1.3, "elinewidth": 0.9, "capsize": 2}
        axes.errorbar(mean, rate, bars, color=colours[name], label=name, **style)
    axes.set(xlim=(0, top), ylim=(0, top))
    axes.set(xlabel="predicted probability, mean of the bin", ylabel="share of positives in the bin")
    plain_axes(axes)
    if len(runs) > 1:
        axes.legend(fontsize=8, frameon=False)
    return save_figure(figure, path)


def wilson_interval(rate: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of a rate by the score test (Wilson 1927)."""
    share = _Z**2 / count
    middle = (rate + share / 2) / (1 + share)
    half = np.sqrt(share * (rate * (1 - rate) + share / 4)) / (1 + share)
    return middle - half, middle + half


def plot_slices(rows: Sequence[Mapping[str, Any]], names: Sequence[str], path: str | Path) -> Path:
    """AUC by slice, points of a colour per prediction, as an image file.

    Args:
        rows: those of `slice_metrics`: `slice`, `value` and `NAME_auc` (None where not defined). names: of the predictions.
        path: image file; the suffix decides the format. Folders are made.

    Raises:
        ValueError: no names. MissingExtraError: matplotlib is missing.
    """
    colours = run_colours(dict.fromkeys(names))
    figure = new_figure(6.4, 0.9 + 0.26 * len(rows))
    axes = figure.subplots()
    places = np.arange(len(rows))
    for name in names:
        values = [np.nan if row[f"{name}_auc"] is None else row[f"{name}_auc"] for row in rows]
        axes.plot(values, places, "o", color=colours[name], markersize=5, label=name.replace("_", " "))
    axes.axvline(0.5, color="0.4", linestyle=":", linewidth=1.0)
    axes.set_yticks(places, [f"{row['slice']}: {row['value']}" for row in rows], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel("AUC")
    plain_axes(axes)
    axes.legend(fontsize=8, frameon=False)
    return save_figure(figure, path)


def plot_importance(found: Importance, path: str | Path) -> Path:
    """Bars of the AUC that is lost where one thing is shuffled, the dearest on top, with its 95 % interval; of more than thirty the dearest.

    Args:
        found: the result of [`column_importance`]. path: image file; the suffix decides the format. Folders are made.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    losses = found.losses[:_MOST_BARS][::-1]
    figure = new_figure(7.0, 1.2 + 0.24 * len(losses))
    axes = figure.subplots()
    axes.barh([loss.column for loss in losses], [loss.auc for loss in losses], color=_BARS, height=0.7)
    for place, loss in enumerate(losses):
        if loss.low is not None and loss.high is not None:
            axes.hlines(place, loss.low, loss.high, "black", linewidth=1.2)
    axes.tick_params(axis="y", labelsize=8)
    axes.margins(y=0.01)
    more = len(found.losses) - len(losses)
    axes.set_xlabel("AUC lost where it is shuffled" + (f" ({more} more lose less)" if more else ""))
    axes.set_title(f"{found.num_samples:,} samples, AUC {found.auc:.4f}", fontsize=10)
    plain_axes(axes)
    return save_figure(figure, path)
