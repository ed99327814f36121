"""Pictures of attention. The only module of lmctr that imports matplotlib (`pip install 'lmctr[plots]'`)."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lmctr.data.logs.text_encoders import MissingExtraError

from .attention import AttentionMap, SinkAttention, text_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


logger = logging.getLogger(__name__)

_SINK_COLOUR = "#c1272d"
_TARGET_COLOUR = "#0b6e4f"
_SATURATED = 0.995  # weights above this quantile share the darkest colour


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

    Rows are queries, columns keys. Colours follow the square root of the weight, so that small weights show, and the largest half
    percent of the weights share the darkest one; what a causal model cannot see stays white. A text of up to `max_labels` tokens has a label at every token; a longer one at its sinks, each with the
    text of its behaviour, and at the target. Sinks are red, followed by their buckets where these differ, the target green.

    Args:
        attention: the result of [`attention_map`].
        path: image file; the suffix decides the format (`.png`, `.pdf`, `.svg`). Folders are made.
        title: default: layer and head.
        max_labels: most labels per axis; sinks closer to a labelled one than 1 / max_labels of the text have no label.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    require_matplotlib()
    from matplotlib import rc_context
    from matplotlib.colors import PowerNorm

    count = len(attention.tokens)
    places, labels = _labels(attention, max_labels)
    title = title if title is not None else f"Attention, {attention.where}"
    fonts, missing = _fonts("".join([*labels, title]))
    if missing:
        labels = [re.sub(f"[{re.escape(missing)}]+", f"#{place}", label) for place, label in zip(places, labels)]
        logger.warning(
            "%s: no installed font has %s: such texts are labelled by their places (#7), which attention_map(...).tokens and the JSON file of "
            "`lmctr analyze attention` resolve; a font such as Noto Sans CJK, once installed, is found",
            path,
            _short(missing),
        )
    with rc_context({"font.family": fonts}):
        # Wide enough for labels of 7 points at the places that are closest to each other, within bounds.
        slots = count / min(np.diff(places), default=count)
        side = float(np.clip(0.15 * slots, 5.0, 10.0))
        axes = new_square(side)
        weights = attention.weights.astype(np.float64)
        if not np.triu(weights, 1).any():
            weights = np.ma.masked_array(weights, np.triu(np.ones_like(weights, dtype=bool), 1))
        # The few largest weights (of the first token, mostly) would leave the rest pale.
        top = float(np.quantile(np.ma.compressed(weights), _SATURATED))
        norm = PowerNorm(0.5, vmin=0.0, vmax=max(top, 1e-9))
        image = axes.imshow(weights, cmap="Blues", norm=norm, interpolation="nearest", aspect="auto")
        size = float(np.clip(side * 72 / slots * 0.68, 4.0, 8.0))
        axes.set_xticks(places, labels, rotation=90, fontsize=size)
        axes.set_yticks(places, labels, fontsize=size)
        axes.tick_params(length=2, pad=2)
        for place, *ticks in zip(places, axes.get_xticklabels(), axes.get_yticklabels()):
            for tick in ticks:
                if attention.is_sink[place]:
                    tick.set_color(_SINK_COLOUR)
                elif attention.is_target[place]:
                    tick.set_color(_TARGET_COLOUR)
        _mark(axes, np.flatnonzero(attention.is_sink), _SINK_COLOUR)
        _mark(axes, np.flatnonzero(attention.is_target), _TARGET_COLOUR)
        axes.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5))
        note = "; numbers after a sink are its buckets" if _buckets_differ(attention) else ""
        axes.set(xlabel=f"key (attended to){note}", ylabel="query")
        axes.set_title(title, fontsize=10, pad=12)
        bar = axes.figure.colorbar(image, cax=axes.inset_axes((1 + 0.35 / side, 0.15, 0.2 / side, 0.7)), extend="max")
        bar.set_label("attention weight (square-root scale)", fontsize=8)
        bar.ax.tick_params(labelsize=7)
        return save_figure(axes.figure, path)


def plot_layer_curves(
    runs: Mapping[str, SinkAttention],
    path: str | Path,
    bias_layers: Mapping[str, Sequence[int]] | None = None,
) -> Path:
    """Eq. 7 and Eq. 8 by layer, a curve per run (the paper's Figs. 4, 5), as an image file.

    Dotted lines show what evenly spread attention would give. Filled points are layers with sink bias.

    Args:
        runs: name of each run -> the result of [`sink_attention`]. A run without sinks has no curve for Eq. 8.
        path: image file.
        bias_layers: name of a run -> its layers with sink bias.

    Raises:
        ValueError: no runs. MissingExtraError: matplotlib is missing.
    """
    colours = run_colours(runs)
    from matplotlib import rc_context
    from matplotlib.lines import Line2D
    from matplotlib.ticker import MaxNLocator, PercentFormatter

    panels = (
        ("Attention to sinks (Eq. 7)", "mean_to_sinks", "mean_uniform_to_sinks"),
        ("Attention between sinks (Eq. 8)", "mean_between_sinks", "mean_uniform_between_sinks"),
    )
    with rc_context({"font.family": _fonts("".join(runs))[0]}):
        figure = new_figure(9.5, 4.2)
        for axes, (name, curve, level) in zip(figure.subplots(1, 2), panels):
            levels = [getattr(m, level) for m in runs.values() if m.num_without_sinks < m.num_samples]
            one_level = not levels or max(levels) - min(levels) < 1e-3
            for run, measured in runs.items():
                values, colour = getattr(measured, curve), colours[run]
                layers = range(measured.first_layer, measured.first_layer + len(values))
                axes.plot(layers, values, color=colour, linewidth=1.6)
                biased = set((bias_layers or {}).get(run, ()))
                faces = [colour if layer in biased else "white" for layer in layers]
                rim = {"edgecolors": [colour], "linewidths": 1.3}
                axes.scatter(layers, values, s=26, c=faces, zorder=3, clip_on=False, **rim)
                if not one_level and measured.num_without_sinks < measured.num_samples:
                    axes.axhline(getattr(measured, level), color=colour, linewidth=1.0, linestyle=":")
            if one_level and levels:
                axes.axhline(levels[0], color="0.4", linewidth=1.0, linestyle=":")
            if not any(np.isfinite(getattr(measured, curve)).any() for measured in runs.values()):
                axes.text(0.5, 0.5, "no sinks", transform=axes.transAxes, ha="center", color="0.4")
            axes.set_title(name, fontsize=10)
            axes.set_xlabel("layer (0 = first)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.yaxis.set_major_formatter(PercentFormatter(1.0))
            shown = [getattr(measured, key) for measured in runs.values() for key in (curve, level)]
            top = np.nanmax(np.concatenate([[0.0], *map(np.atleast_1d, shown)]))
            axes.set_ylim(0.0, 1.08 * top if top > 0 else 1.0)
            plain_axes(axes, "0.9")
        handles = [Line2D([], [], color=colour, label=run) for run, colour in colours.items()]
        handles.append(Line2D([], [], color="0.4", linestyle=":", label="evenly spread attention"))
        if any((bias_layers or {}).values()):
            point = {"linestyle": "", "marker": "o", "markersize": 5}
            handles.append(Line2D([], [], color="0.4", label="layer with sink bias", **point))
        longest = max(len(handle.get_label()) for handle in handles)
        columns = max(1, min(len(handles), 170 // (8 + longest)))
        figure.legend(handles=handles, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
        return save_figure(figure, path)


def _labels(attention: AttentionMap, max_labels: int) -> tuple[list[int], list[str]]:
    """Places and texts of the labels of both axes."""
    count = len(attention.tokens)
    texts = [_short(text) for text in attention.tokens]
    for place in np.flatnonzero(attention.is_sink) if _buckets_differ(attention) else ():
        texts[place] = f"{texts[place]} {','.join(map(str, attention.buckets[place]))}"
    if count <= max_labels:
        return list(range(count)), texts
    sinks = np.flatnonzero(attention.is_sink).tolist()
    target = np.flatnonzero(attention.is_target).tolist()
    places = target[:1]
    if target:
        texts[target[0]] = f"target: {_span(attention.tokens[target[0] : target[-1] + 1])}"
    behaviour = dict(zip(sinks, [0, *(place + 1 for place in sinks[:-1])]))
    for place, start in behaviour.items():
        # What stands before the first sink opens with the prompt's head, so its end is shown.
        text = _span(attention.tokens[start:place], keep_end=place == sinks[0])
        texts[place] = f"{text} {texts[place]}".strip()
    space = -(-count // max_labels)
    for place in reversed(sinks if sinks else range(0, count, space)):  # from the target back
        if all(abs(place - other) >= space for other in places):
            places.append(place)
    places.sort()
    return places, [texts[place] for place in places]


def _buckets_differ(attention: AttentionMap) -> bool:
    """Whether the buckets tell one sink from another (those of [CLS] tokens are all 0)."""
    return len(set(attention.buckets) - {()}) > 1


def _span(tokens: list[str], keep_end: bool = False) -> str:
    """The text of some tokens in a row, cut to be a label."""
    return _short(text_of(tokens), 22, keep_end)


def _short(text: str, most: int = 14, keep_end: bool = False) -> str:
    """At most `most` characters of a text, in a form that is not read as a formula."""
    text = (text.strip() or text).replace("\n", "\\n")
    if len(text) > most:
        text = "…" + text[len(text) - most + 1 :] if keep_end else text[: most - 1] + "…"
    return text.replace("$", r"\$")


def _mark(axes: Axes, places: np.ndarray, colour: str) -> None:
    """Small triangles at the columns (above) and at the rows (right) of some tokens."""
    options: dict[str, Any] = {"color": colour, "s": 9, "clip_on": False, "linewidths": 0}
    axes.scatter(places, np.full(len(places), 1.012), marker="v", transform=axes.get_xaxis_transform(), **options)
    axes.scatter(np.full(len(places), 1.012), places, marker="<", transform=axes.get_yaxis_transform(), **options)


def _fonts(text: str) -> tuple[list[str], str]:
    """The default fonts and, for what they lack of a text, those installed that have most of it; the characters that none has."""
    from matplotlib import font_manager, rcParams

    names, missing = list(rcParams["font.family"]), {sign for sign in text if not sign.isspace()}
    for name in names:
        missing -= _covered(missing, name)
    # Last Resort fonts have a box for everything.
    others = sorted({entry.name for entry in font_manager.fontManager.ttflist if "Last Resort" not in entry.name})
    while (
        missing
        and (found := max(((_covered(missing, name), name) for name in others), key=lambda one: len(one[0])))[0]
    ):
        names.append(found[1])
        missing -= found[0]
    return names, "".join(sorted(missing))


def _covered(signs: set[str], name: str) -> set[str]:
    """The characters that a font has a glyph for."""
    from matplotlib import font_manager

    with suppress(OSError, RuntimeError):  # the list that matplotlib keeps may name a file that is gone
        font = font_manager.get_font(font_manager.findfont(font_manager.FontProperties(family=[name])))
        return {sign for sign in signs if font.scalable and font.get_char_index(ord(sign))}
    return set()


def new_figure(width: float, height: float, layout: str | None = "constrained") -> Figure:
    """An empty figure of this many inches. Raises `MissingExtraError` when matplotlib is missing."""
    require_matplotlib()
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def new_square(side: float) -> Axes:
    """Axes that fill a square figure; labels, title and bar lie outside, and the image is cut to what is drawn."""
    return new_figure(side, side, None).add_axes((0.0, 0.0, 1.0, 1.0))


def new_panels(count: int, width: float, height: float, more: float = 0.0) -> tuple[Figure, list[Axes]]:
    """A figure with `count` panels of this many inches, three beside each other, and `more` inches of height."""
    columns = min(count, 3)
    rows = -(-count // columns)
    figure = new_figure(width * columns, height * rows + more)
    panels = figure.subplots(rows, columns, squeeze=False).flatten().tolist()
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def run_colours(runs: Mapping[str, Any]) -> dict[str, Any]:
    """A colour per run. Raises `ValueError` when there are no runs, `MissingExtraError` when matplotlib is missing."""
    if not runs:
        raise ValueError("runs: nothing to draw; give at least one run")
    require_matplotlib()
    from matplotlib import colormaps

    colours = colormaps["tab10" if len(runs) <= 10 else "tab20"].colors
    return {run: colours[number % len(colours)] for number, run in enumerate(runs)}


def plain_axes(axes: Axes, colour: str = "0.92") -> None:
    """A pale grid behind what is drawn, and no frame above and to the right."""
    axes.grid(color=colour, linewidth=0.8, which="both")
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_figure(figure: Figure, path: str | Path) -> Path:
    """Write a figure, cut to what is drawn, as the suffix says; folders are made. Returns the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150, bbox_inches="tight", pad_inches=0.12)
    return path
