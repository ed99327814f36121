"""Pictures of sequence models: compression plans and attention by behaviour type."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from .behavior_attention import BehaviorAttention
from .plots import new_figure, save_figure

_SIZE_COLOUR, _FLOPS_COLOUR = "#1f4e9c", "#c1272d"


def plot_compression(plan: Mapping[str, Any], path: str | Path, title: str | None = None) -> Path:
    """Size and training FLOPs of SUMI rows over N_c (Climber, Fig. 4): formulas as lines, measured values as points.

    Args:
        plan: `CompressionPlan.to_dict()`. path: image file; the suffix decides the format. Folders are made.
        title: default: the number of samples.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    points = sorted(plan["points"], key=lambda point: point["num_candidates"])
    degrees = [point["num_candidates"] for point in points]
    figure = new_figure(6.4, 4)
    from matplotlib.ticker import MaxNLocator

    left = figure.subplots()
    right = left.twinx()
    sides = (
        (left, _SIZE_COLOUR, "--o", "ratio", "measured_ratio", "size, relative to one row per sample"),
        (right, _FLOPS_COLOUR, ":s", "flops", "measured_flops", "training FLOPs of one epoch"),
    )
    lines = []
    for axes, colour, (*dashes, marker), formula, measured, label in sides:
        what = "size" if axes is left else "FLOPs"
        style = {"color": colour, "label": f"{what}, formula"}
        lines += axes.plot(degrees, [point[formula] for point in points], "".join(dashes), **style)
        lines += axes.plot(degrees, [point[measured] for point in points], marker, color=colour, label=f"{what}, rows")
        best = min(points, key=lambda point: (point[measured], point["num_candidates"]))
        axes.axvline(best["num_candidates"], color=colour, alpha=0.3)
        axes.set_ylabel(f"{label} (best N_c = {best['num_candidates']})", color=colour)
        axes.set_ylim(bottom=0)
    left.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    left.set_xlabel("N_c, candidates per row")
    left.legend(handles=lines, loc="upper center")
    left.set_title(title or f"{plan['num_samples']:,} samples")
    return save_figure(figure, path)


def plot_behavior_attention(measured: Mapping[str, BehaviorAttention], path: str | Path) -> Path:
    """Bars of the attention on each behaviour type, one group of bars per model (Climber, Fig. 7), with a line at the share of events.

    Both are means over the blocks of a model. Behaviour types that no model reads have no bar.

    Args:
        measured: model name to what [`behavior_attention`] found; the models know the same behaviour types.
        path: image file.

    Raises:
        ValueError: no model, or models with different behaviour types. MissingExtraError: matplotlib is missing.
    """
    kinds = {found.behavior_names for found in measured.values()}
    if len(kinds) != 1:
        raise ValueError(f"measured: expected models with the same behaviour types, got {sorted(kinds)}")
    (names,) = kinds
    figure = new_figure(max(4.8, 1.2 * len(measured) * len(names)), 4)
    axes = figure.subplots()
    events = np.array([np.nan_to_num(np.nanmean(found.events, axis=0)) for found in measured.values()])  # (models, G)
    kept = [place for place in range(len(names)) if events[:, place].any()] or list(range(len(names)))
    width = 0.8 / len(kept)
    for bar, place in enumerate(kept):
        shares = [float(np.nan_to_num(found.overall()[place])) for found in measured.values()]
        at = np.arange(len(measured)) + (bar - (len(kept) - 1) / 2) * width
        bars = axes.bar(at, shares, width, label=names[place])
        line = "share of events" if bar == 0 else None
        axes.hlines(events[:, place], at - 0.45 * width, at + 0.45 * width, "black", linewidth=1.5, label=line)
        axes.bar_label(bars, [f"{share:.0%}" for share in shares], label_type="center", fontsize=8)
    axes.set_xticks(range(len(measured)), list(measured))
    axes.set(ylabel="share of the attention on events", ylim=(0, 1.05))
    figure.legend(loc="outside right upper")
    return save_figure(figure, path)
