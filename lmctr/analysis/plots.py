"""Pictures of attention. The only module of lmctr that imports matplotlib (`pip install 'lmctr[plots]'`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmctr.data.text_encoders import MissingExtraError

from .attention import AttentionMap, SinkAttention

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["plot_attention_map", "plot_layer_curves", "require_matplotlib"]

_SINK_COLOUR = "#c1272d"
_TARGET_COLOUR = "#0b6e4f"
# Fonts with Chinese, Japanese and Korean characters, used after the default one where they are installed.
_CJK_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "WenQuanYi Micro Hei",
    "WenQuanYi Zen Hei",
    "PingFang SC",
    "Hiragino Sans GB",
    "Microsoft YaHei",
    "SimHei",
    "Arial Unicode MS",
)


def require_matplotlib() -> None:
    """Raise `MissingExtraError` (an `ImportError` and a `ValueError`) that names the extra when matplotlib is missing."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            "plots need matplotlib; install it with: pip install 'lmctr[plots]', or leave the plots out (--no-plots on the command line)"
        ) from error


def plot_attention_map(
    attention: AttentionMap, path: str | Path, title: str | None = None, max_labels: int = 64
) -> Path:
    """Heat map of one sample's attention as an image file (the paper's Figs. 1, 3, 6).

    Rows are queries, columns keys; colours follow the square root of the weight, so that small weights show; what a causal model
    cannot see stays white. A text of up to `max_labels` tokens has a label at every token; a longer one at its sinks, each with the
    text of its behaviour, and at the target. Sinks are red, the target green.

    Args:
        attention: the result of [`attention_map`].
        path: image file; the suffix decides the format (`.png`, `.pdf`, `.svg`). Folders are made.
        title: default: layer and head.
        max_labels: most labels per axis; beyond it every second, third, ... sink is labelled.

    Returns:
        `path`.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.colors import PowerNorm
    from matplotlib.figure import Figure

    count = len(attention.tokens)
    places, labels = _labels(attention, max_labels)
    with rc_context({"font.family": _fonts()}):
        side = float(np.clip(0.17 * max(len(places), 24), 5.0, 10.0))
        figure = Figure(figsize=(side + 3.2, side + 2.2), layout="constrained")
        axes = figure.add_subplot()
        weights = attention.weights.astype(np.float64)
        if not np.triu(weights, 1).any():
            weights = np.ma.masked_array(weights, np.triu(np.ones_like(weights, dtype=bool), 1))
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(float(weights.max()), 1e-9))
        image = axes.imshow(weights, cmap="magma_r", norm=norm, interpolation="nearest", aspect="equal")
        size = float(np.clip(side * 72 * 0.8 / max(len(places), 1), 4.5, 8.0))
        axes.set_xticks(places, labels, rotation=90, fontsize=size)
        axes.set_yticks(places, labels, fontsize=size)
        axes.tick_params(length=2, pad=2)
        for place, *ticks in zip(places, axes.get_xticklabels(), axes.get_yticklabels()):
            for tick in ticks:
                if attention.is_sink[place]:
                    tick.set(color=_SINK_COLOUR, fontweight="bold")
                elif attention.is_target[place]:
                    tick.set(color=_TARGET_COLOUR, fontweight="bold")
        _mark(axes, np.flatnonzero(attention.is_sink), _SINK_COLOUR)
        _mark(axes, np.flatnonzero(attention.is_target), _TARGET_COLOUR)
        axes.set_xlim(-0.5, count - 0.5)
        axes.set_ylim(count - 0.5, -0.5)
        axes.set_xlabel("key (attended to)")
        axes.set_ylabel("query")
        axes.set_title(title if title is not None else _map_title(attention), fontsize=10, pad=12)
        bar = figure.colorbar(image, ax=axes, shrink=0.7, pad=0.02)
        bar.set_label("attention weight (square-root scale)", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        return _save(figure, path)


def plot_layer_curves(
    runs: Mapping[str, SinkAttention],
    path: str | Path,
    bias_layers: Mapping[str, Sequence[int]] | None = None,
    title: str | None = None,
) -> Path:
    """Eq. 7 and Eq. 8 by layer, a curve per run (the paper's Figs. 4, 5), as an image file.

    Dotted lines show what evenly spread attention would give. Filled points are layers with sink bias.

    Args:
        runs: name of each run -> the result of [`sink_attention`]. A run without sinks has no curve for Eq. 8.
        path: image file.
        bias_layers: name of a run -> its layers with sink bias.
        title: over both panels.

    Returns:
        `path`.

    Raises:
        ValueError: no runs. MissingExtraError: matplotlib is missing.
    """
    if not runs:
        raise ValueError("runs: nothing to draw; give at least one run")
    require_matplotlib()
    from matplotlib import colormaps, rc_context
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    panels = (
        ("Attention to sinks (Eq. 7)", "mean_to_sinks", "mean_uniform_to_sinks"),
        ("Attention between sinks (Eq. 8)", "mean_between_sinks", "mean_uniform_between_sinks"),
    )
    colours = colormaps["tab10" if len(runs) <= 10 else "tab20"].colors
    with rc_context({"font.family": _fonts()}):
        figure = Figure(figsize=(9.5, 4.2), layout="constrained")
        for axes, (name, curve, level) in zip(figure.subplots(1, 2), panels):
            for number, (run, measured) in enumerate(runs.items()):
                values, colour = getattr(measured, curve), colours[number % len(colours)]
                axes.plot(range(len(values)), values, color=colour, linewidth=1.6)
                biased = set((bias_layers or {}).get(run, ()))
                faces = [colour if layer in biased else "white" for layer in range(len(values))]
                axes.scatter(range(len(values)), values, s=26, c=faces, edgecolors=[colour], linewidths=1.3, zorder=3)
                if np.isfinite(getattr(measured, level)):
                    axes.axhline(getattr(measured, level), color=colour, linewidth=1.0, linestyle=":")
            if not any(np.isfinite(getattr(measured, curve)).any() for measured in runs.values()):
                axes.text(0.5, 0.5, "no sinks", transform=axes.transAxes, ha="center", color="0.4")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("layer (0 = first)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            axes.set_ylim(bottom=0.0)
            axes.grid(color="0.9", linewidth=0.8)
            axes.set_axisbelow(True)
            for side in ("top", "right"):
                axes.spines[side].set_visible(False)
        handles = [
            Line2D([], [], color=colours[number % len(colours)], marker="o", markersize=5, label=run)
            for number, run in enumerate(runs)
        ]
        handles.append(Line2D([], [], color="0.4", linestyle=":", label="evenly spread attention"))
        if any((bias_layers or {}).values()):
            handles.append(
                Line2D([], [], color="0.4", linestyle="", marker="o", markersize=5, label="layer with sink bias")
            )
        figure.legend(
            handles=handles, loc="outside lower center", ncols=min(len(handles), 3), fontsize=8, frameon=False
        )
        if title:
            figure.suptitle(title, fontsize=11)
        return _save(figure, path)


def _labels(attention: AttentionMap, max_labels: int) -> tuple[list[int], list[str]]:
    """Places and texts of the labels of both axes."""
    count = len(attention.tokens)
    texts = [_short(text) for text in attention.tokens]
    for place in np.flatnonzero(attention.is_sink):
        texts[place] = f"{texts[place]} {','.join(map(str, attention.buckets[place]))}"
    if count <= max_labels:
        return list(range(count)), texts
    sinks = np.flatnonzero(attention.is_sink).tolist()
    target = np.flatnonzero(attention.is_target).tolist()
    if sinks:
        places = sinks[:: -(-len(sinks) // max(max_labels - 1, 1))]
        before = dict(zip(sinks, [-1, *sinks[:-1]]))
        for place in places:
            texts[place] = f"{_span(attention.tokens, before[place] + 1, place)} {texts[place]}".strip()
    else:
        places = list(range(0, count, -(-count // max_labels)))
    if target:
        first = target[0]
        texts[first] = f"target: {_span(attention.tokens, first, target[-1] + 1)}"
        space = max(count // max_labels, 1)
        places = sorted([place for place in places if abs(place - first) >= space] + [first])
    return places, [texts[place] for place in places]


def _span(tokens: list[str], start: int, stop: int) -> str:
    """The text of a span of tokens, cut to be a label."""
    text = ""
    for token in tokens[start:stop]:
        if token == "·":
            continue
        glued = token.startswith("##") or not text or (ord(token[0]) > 0x2E7F and ord(text[-1]) > 0x2E7F)
        text += token.removeprefix("##") if glued else f" {token}"
    return _short(text, 22)


def _short(text: str, most: int = 14) -> str:
    text = text.replace("\n", "\\n").replace("$", r"\$")  # a pair of dollars would start a formula
    return text if len(text) <= most else text[: most - 1] + "…"


def _mark(axes: Axes, places: np.ndarray, colour: str) -> None:
    """Small triangles at the columns (above) and at the rows (right) of some tokens."""
    options: dict[str, Any] = {"color": colour, "s": 9, "clip_on": False, "linewidths": 0}
    axes.scatter(places, np.full(len(places), 1.012), marker="v", transform=axes.get_xaxis_transform(), **options)
    axes.scatter(np.full(len(places), 1.012), places, marker="<", transform=axes.get_yaxis_transform(), **options)


def _map_title(attention: AttentionMap) -> str:
    layer = "mean over layers" if attention.layer == "mean" else f"layer {attention.layer}"
    head = "mean over heads" if attention.head == "mean" else f"head {attention.head}"
    return f"Attention, {layer}, {head}"


def _fonts() -> list[str]:
    from matplotlib import font_manager, rcParams

    installed = {entry.name for entry in font_manager.fontManager.ttflist}
    return [*rcParams["font.family"], *(name for name in _CJK_FONTS if name in installed)]


def _save(figure: Any, path: str | Path) -> Path:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path
