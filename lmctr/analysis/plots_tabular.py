"""Pictures of tabular models: effective rank by stage, its distributions, weights of field pairs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from .effective_rank import EffectiveRanks
from .field_interactions import FieldInteractions
from .plots import new_figure, new_panels, new_square, plain_axes, run_colours, save_figure

_BEFORE, _AFTER = "#0b6e4f", "#1f4e9c"


def plot_rank_curves(
    runs: Mapping[str, EffectiveRanks],
    path: str | Path,
    kind: str = "stable",
    normalized: bool = False,
) -> Path:
    """Mean effective rank from stage to stage, a curve per run (RankElastor's Figs. 2, 6), as an image file.

    The dark band is the 95 % interval of the mean (often thinner than the line), the light one the middle half of the
    samples. Stages of runs with different stages share the axis by position, with all their labels.

    Args:
        runs: name of each run -> the result of [`measure_effective_rank`].
        path: image file; the suffix decides the format. Folders are made.
        kind: `"stable"` or `"entropy"`.
        normalized: divided by min(T, D) of the stage.

    Raises:
        ValueError: no runs. MissingExtraError: matplotlib is missing.
    """
    colours = run_colours(runs)
    longest = max(len(ranks.stages) for ranks in runs.values())
    figure = new_figure(max(6.0, 1.0 + 0.95 * longest), 4.4)
    axes = figure.subplots()
    for name, ranks in runs.items():
        colour, places, mean = colours[name], np.arange(len(ranks.stages)), ranks.mean(kind, normalized)
        low, high = ranks.quantiles((0.25, 0.75), kind, normalized).T
        axes.fill_between(places, low, high, color=colour, alpha=0.12, linewidth=0)
        low, high = ranks.interval(kind, normalized).T
        axes.fill_between(places, low, high, color=colour, alpha=0.45, linewidth=0)
        axes.plot(places, mean, color=colour, marker="o", markersize=4, linewidth=1.5, label=name)
    labels = []
    for place in range(longest):
        found = dict.fromkeys(r.stages[place] for r in runs.values() if place < len(r.stages))
        labels.append("\n".join(found))
    widest = max(len(line) for label in labels for line in label.split("\n"))
    axes.set_xticks(range(longest), labels, rotation=90 if widest > 11 else 0, fontsize=8)
    what = f"{kind} effective rank" + (" / min(T, D)" if normalized else "")
    axes.set(ylabel=f"{what}, per sample", ylim=(0, None))
    axes.set_title(f"Mean {what} by stage", fontsize=10)
    plain_axes(axes)
    axes.legend(fontsize=8, frameon=False)
    return save_figure(figure, path)


def plot_rank_distributions(
    ranks: EffectiveRanks, path: str | Path, kind: str = "stable", title: str | None = None
) -> Path:
    """How the distribution over samples moves from each stage to the next (RankElastor's Figs. 1, 5), as an image file.

    Lines mark the means; their order is that of the data.

    Args:
        ranks: the result of [`measure_effective_rank`]; at least two stages.
        path: image file; the suffix decides the format. Folders are made.
        kind: `"stable"` or `"entropy"`.
        title: over all panels.

    Raises:
        ValueError: fewer than two stages. MissingExtraError: matplotlib is missing.
    """
    if len(ranks.stages) < 2:
        raise ValueError(f"ranks: {len(ranks.stages)} stages give no pair of one and the next")
    samples, mean = ranks.samples(kind), ranks.mean(kind)
    figure, panels = new_panels(len(ranks.stages) - 1, 3.4, 2.5, 0.4)
    for place, axes in enumerate(panels):
        pair = samples[place : place + 2]
        low, high = float(pair.min()), float(pair.max())
        margin = 0.02 * (high - low) + 1e-3 * max(high, 1.0)
        bins = np.linspace(low - margin, high + margin, 41)
        for values, colour, stage in zip(pair, (_BEFORE, _AFTER), ranks.stages[place : place + 2]):
            axes.hist(values, bins, density=True, color=colour, alpha=0.35, label=stage)
            axes.axvline(values.mean(), color=colour, linewidth=1.2)
        stages = f"{ranks.stages[place]} → {ranks.stages[place + 1]}"
        axes.set_title(f"{stages} ({mean[place]:.2f} → {mean[place + 1]:.2f})", fontsize=9)
        axes.set_yticks([])
        axes.legend(fontsize=7, frameon=False)
        plain_axes(axes)
    figure.supxlabel(f"{kind} effective rank of a sample", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    return save_figure(figure, path)


def plot_field_interactions(
    interactions: FieldInteractions,
    path: str | Path,
    layer: int | None = None,
    scaled: bool = True,
) -> Path:
    """Heat map of w over field pairs, mean over heads (FAT's Fig. 2), as an image file.

    Args:
        interactions: the result of [`field_interactions`].
        path: image file; the suffix decides the format. Folders are made.
        layer: 0 = first, -1 = last; `None`: mean over the layers.
        scaled: min-max scaled to 0..1, as in the paper; else the raw weights.

    Raises:
        ValueError: no such layer. MissingExtraError: matplotlib is missing.
    """
    matrix, names = interactions.matrix(layer, scaled), interactions.field_names
    count = len(names)
    side = float(np.clip(0.24 * count, 3.2, 14.0))
    axes = new_square(side)
    image = axes.imshow(matrix, cmap="Blues", interpolation="nearest", aspect="equal")
    step = max(1, -(-count // 90))
    size = float(np.clip(side * 72 / count * step * 0.62, 4.0, 9.0))
    shown = [name if len(name) <= 24 else name[:23] + "…" for name in names][::step]
    shown = [name.replace("$", r"\$") for name in shown]
    axes.set_xticks(range(0, count, step), shown, rotation=90, fontsize=size)
    axes.set_yticks(range(0, count, step), shown, fontsize=size)
    axes.tick_params(length=2, pad=2)
    axes.set(xlabel="key field (read)", ylabel="query field (reads)")
    where = "mean over layers" if layer is None else f"layer {layer % interactions.num_layers + 1}"
    axes.set_title(f"w of field pairs, mean over heads, {where}", fontsize=10, pad=8)
    bar = axes.figure.colorbar(image, cax=axes.inset_axes((1 + 0.25 / side, 0.15, 0.16 / side, 0.7)))
    low, high = interactions.matrix(layer).min(), interactions.matrix(layer).max()
    digits = max(2, 1 - int(np.floor(np.log10(high - low)))) if high > low else 2
    bar.set_label(f"w, scaled from {low:.{digits}f} to {high:.{digits}f}" if scaled else "w", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return save_figure(axes.figure, path)
