"""Pictures of scaling: laws in log axes, return against machine cost, the metric-to-revenue line."""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .plots import new_figure, new_panels, plain_axes, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.lines import Line2D


_MANY = 100  # designs, above which they are drawn small and pale
# offsets in points and alignment of a name beside its point, the first choice first
_BESIDE = tuple(
    (x, y, across, up)
    for y, up in ((7, "bottom"), (-7, "top"), (0, "center"), (16, "bottom"), (-16, "top"))
    for x, across in (((0, "center"), (-4, "right"), (4, "left")) if y else ((-8, "right"), (8, "left")))
)
_LAW, _POINT, _HELD, _BASE = "#1f4e9c", "#333333", "#c1272d", "#0b6e4f"


def plot_law(
    x: Sequence[float],
    y: Sequence[float],
    curve_x: Sequence[float],
    curve_y: Sequence[float],
    path: str | Path,
    *,
    band: tuple[Sequence[float], Sequence[float]] | None = None,
    level: float = 0.95,
    held_out: tuple[Sequence[float], Sequence[float]] | None = None,
    held_from: float = np.inf,
    complement: bool = False,
    x_name: str = "x",
    y_name: str = "metric",
    title: str | None = None,
) -> Path:
    """A scaling law and its points in log axes (Figure 7 of arXiv 2411.13322 has a linear y axis), as an image file.

    Args:
        x, y: (P,) all points, y the metric. curve_x, curve_y: (M,) the law of all points.
        path: image file; the suffix decides the format. Folders are made.
        band: lower and upper ends (M,) of its band. level: of that band. held_out: curve (M,), (M,) of the law fitted without the largest sizes, dashed.
        held_from: the smallest of these sizes; points from there on are hollow.
        complement: draw 1 - metric, which is what was fitted. x_name, y_name: of the axes.

    Raises:
        ValueError: no points. MissingExtraError: matplotlib is missing.
    """

    def shown(values: Sequence[float]) -> np.ndarray:
        values = np.asarray(values, dtype=np.float64)
        return 1.0 - values if complement else values

    axes = _axes("x", x, "points")
    if band is not None:
        edges = sorted((shown(band[0]), shown(band[1])), key=lambda edge: edge.sum())
        axes.fill_between(
            curve_x, *edges, color=_LAW, alpha=0.18, linewidth=0, label=f"{100 * level:g} % bootstrap band"
        )
    axes.plot(curve_x, shown(curve_y), color=_LAW, linewidth=1.6, label="law of all points")
    if held_out is not None:
        label = "law without the largest sizes"
        axes.plot(held_out[0], shown(held_out[1]), "--", color=_HELD, linewidth=1.4, label=label)
    points, held = (np.asarray(x), shown(y)), np.asarray(x) >= held_from
    axes.plot(*(values[~held] for values in points), "o", color=_POINT, markersize=4, alpha=0.7, label="measured")
    if held.any():
        axes.plot(
            *(values[held] for values in points), "o", color=_POINT, markersize=5, fillstyle="none", label="held out"
        )
    axes.legend(fontsize=8, frameon=False)
    x_name, y_name = x_name.replace("_", " "), y_name.replace("_", " ")
    drawn = f"1 - {y_name}" if complement else y_name
    return _finish(axes, path, x_name, drawn, title or f"{y_name} by {x_name}", "log")


def plot_surface(
    curves: Mapping[str, tuple[Sequence[float], Sequence[float], Sequence[float], Sequence[float]]],
    path: str | Path,
    *,
    x_name: str = "x",
    y_name: str = "metric",
) -> Path:
    """A law of two sizes: the metric by the first, a curve and its points for each value of the second, as an image file.

    Args:
        curves: words of the second size to points x (P,), y (P,) and the law's curve x (M,), y (M,).
        path: image file. x_name, y_name: of the axes.
    """
    axes = _axes("curves", list(curves), "curves")
    for label, (x, y, curve_x, curve_y) in curves.items():
        (line,) = axes.plot(curve_x, curve_y, linewidth=1.4, label=label.replace("_", " "))
        axes.plot(x, y, "o", color=line.get_color(), markersize=4)
    axes.legend(fontsize=8, frameon=False)
    x_name, y_name = x_name.replace("_", " "), y_name.replace("_", " ")
    return _finish(axes, path, x_name, y_name, f"{y_name} by {x_name}", "linear")


def plot_designs(
    cost: Sequence[float],
    gain: Sequence[float],
    path: str | Path,
    *,
    front: tuple[Sequence[float], Sequence[float]] = ((), ()),
    best: tuple[float, float] | None = None,
    best_name: str = "",
    labels: Mapping[str, tuple[float, float]] = types.MappingProxyType({}),
    minimal_roi: float | None = None,
    cost_name: str = "machine cost",
    gain_name: str = "gain",
    title: str | None = None,
) -> Path:
    """Gain against cost of all designs, the Pareto front, the line of the minimal ROI and the chosen design, as an image file.

    Args:
        cost, gain: (N,) of the candidates, relative to the base where that is asked for. path: image file; the suffix decides the format.
        front: cost and gain of the Pareto front. best: cost and gain of the choice. best_name: its name, in the legend.
        labels: names beside points, each at its cost and gain. minimal_roi: slope of the line through (0, 0).

    Raises:
        ValueError: no candidates. MissingExtraError: matplotlib is missing.
    """
    axes = _axes("cost", cost, "designs")
    size, alpha = (5, 0.35) if len(cost) > _MANY else (11, 0.9)
    axes.plot(cost, gain, ".", color=_POINT, alpha=alpha, markersize=size, label="designs")
    (steps,) = axes.step(
        *front, where="post", color=_LAW, linewidth=1.4, label="Pareto front" if len(front[0]) else None
    )
    if labels:
        axes.margins(0.1, 0.12)
    low, high = axes.get_xlim(), axes.get_ylim()
    if minimal_roi is not None:
        ends = np.array([min(0.0, low[0]), low[1]])
        axes.plot(ends, minimal_roi * ends, "--", color=_HELD, linewidth=1.2, label=f"ROI {minimal_roi:g}")
    if best is not None:
        axes.plot(*best, "*", color=_BASE, markersize=13, label=f"chosen: {best_name}" if best_name else "chosen")
    axes.set_xlim(low)
    axes.set_ylim(high)  # the line may leave it
    _name_axes(axes, cost_name, gain_name, title or "Gain and cost of the designs", "linear")
    _name_points(axes, steps, list(labels.values()), list(labels))
    axes.legend(fontsize=8, frameon=False)
    return save_figure(axes.figure, path)


def plot_machine_cost(
    flops: Sequence[float],
    cost: Sequence[float],
    path: str | Path,
    *,
    labels: Sequence[str] = (),
    x_name: str = "FLOPs per request",
) -> Path:
    """Measured machine cost by FLOPs in log axes, as an image file. Arguments: (P,) each; `path` as in the other pictures.

    Raises:
        ValueError: no points. MissingExtraError: matplotlib is missing.
    """
    axes = _axes("flops", flops, "points", 4.2)
    order = np.argsort(flops)
    (line,) = axes.plot(
        np.asarray(flops)[order], np.asarray(cost)[order], "o-", color=_LAW, markersize=5, linewidth=1.2
    )
    if len(labels):
        axes.margins(0.1, 0.12)
    _name_axes(axes, x_name, "machines relative to the base", "Machine cost by FLOPs", "log")
    _name_points(axes, line, list(zip(flops, cost)), labels)
    return save_figure(axes.figure, path)


def plot_revenue(
    metrics: Mapping[str, Sequence[float]],
    revenue: Sequence[float],
    lines: Mapping[str, tuple[float, float, float]],
    path: str | Path,
    revenue_name: str = "revenue",
) -> Path:
    """Revenue against each metric with its regression line (Figures 3-6 of arXiv 2411.13322), a panel per metric, as an image file.

    Args:
        metrics: name -> (P,). revenue: (P,). lines: name -> slope, intercept, R^2, in the order of the panels. path: image file.

    Raises:
        ValueError: no metrics. MissingExtraError: matplotlib is missing.
    """
    if not lines:
        raise ValueError("lines: there are no metrics to draw")
    figure, panels = new_panels(len(lines), 3.4, 2.9)
    for axes, (name, (slope, intercept, r2)) in zip(panels, lines.items()):
        values = np.asarray(metrics[name], dtype=np.float64)
        ends = np.array([values.min(), values.max()])
        axes.plot(values, revenue, "o", color=_POINT, markersize=4)
        axes.plot(ends, slope * ends + intercept, color=_LAW, linewidth=1.4)
        axes.set_title(f"{name.replace('_', ' ')}: R² = {r2:.3f}", fontsize=9)
        axes.set_xlabel(name.replace("_", " "), fontsize=8)
        axes.tick_params(labelsize=7)
        axes.locator_params(axis="x", nbins=5)  # a panel is narrow: more labels run into each other
        plain_axes(axes)
    figure.supylabel(revenue_name.replace("_", " "), fontsize=9)
    return save_figure(figure, path)


def _axes(name: str, values: Sequence[float], what: str, height: float = 4.4) -> Axes:
    """The axes of a picture of `values`. Raises `ValueError` when there are none."""
    if not len(values):
        raise ValueError(f"{name}: there are no {what} to draw")
    return new_figure(6.4, height).subplots()


def _finish(axes: Axes, path: str | Path, x_name: str, y_name: str, title: str, scale: str = "linear") -> Path:
    _name_axes(axes, x_name, y_name, title, scale)
    return save_figure(axes.figure, path)


def _name_points(axes: Axes, line: Line2D, points: Sequence[tuple[float, float]], labels: Sequence[str]) -> None:
    """Names beside points: each where it is free of the line, the points, the names before and the border, and nearest to its own, if it can be."""
    if not points:
        return
    axes.figure.draw_without_rendering()  # lays out, so that places are those of the picture
    path, dots, taken = axes.transData.transform_path(line.get_path()), axes.transData.transform(points), []

    def faults(text: Any) -> int:
        box = text.get_window_extent()
        inside = axes.bbox.contains(*box.min) and axes.bbox.contains(*box.max)
        hidden = path.intersects_bbox(box, filled=False) + sum(map(box.overlaps, taken)) + box.count_contains(dots)
        far = np.hypot(*(dots - (box.min + box.max) / 2).T)
        closer = far.min() < far[points.index(text.xy)]  # another point
        return 2 * hidden + (not inside) + bool(closer)

    for point, label in zip(points, labels):
        texts = [
            axes.annotate(label, point, (x, y), textcoords="offset points", fontsize=7, ha=across, va=up)
            for x, y, across, up in _BESIDE
        ]
        best = min(texts, key=faults)
        taken.append(best.get_window_extent())
        for text in texts:
            if text is not best:
                text.remove()


def _name_axes(axes: Axes, x_name: str, y_name: str, title: str, scale: str) -> None:
    axes.set(xscale=scale, yscale=scale, xlabel=x_name, ylabel=y_name)
    if scale == "log":
        for axis in (axes.xaxis, axes.yaxis):
            _log_ticks(axis)
    axes.set_title(title, fontsize=10)
    plain_axes(axes)


def _log_ticks(axis: Axis) -> None:
    """Ticks of a log axis, of which an axis below two decades has too few: evenly spaced numbers, or 1, 2 and 5 of each decade. Numbers from
    0.001 to a million are written out."""
    from matplotlib.ticker import FuncFormatter, LogFormatterSciNotation, LogLocator, MaxNLocator, NullFormatter

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    if decades < 2:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]) if decades < 0.8 else LogLocator(subs=(1, 2, 5)))
    axis.set_minor_formatter(NullFormatter())
    if low >= 1e-3 and high <= 1e6:
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.6g}"))
    else:
        axis.set_major_formatter(LogFormatterSciNotation(labelOnlyBase=False, minor_thresholds=(np.inf, np.inf)))
