"""A picture of what a model's answers hang on."""

from __future__ import annotations

from pathlib import Path

from .importance import Importance
from .plots import new_figure, plain_axes, save_figure

_COLOUR, _MOST = "#1f4e9c", 30


def plot_importance(found: Importance, path: str | Path) -> Path:
    """Bars of the AUC that is lost where one thing is shuffled, the dearest on top, with its 95 % interval; of more than thirty the dearest.

    Args:
        found: the result of [`column_importance`]. path: image file; the suffix decides the format. Folders are made.

    Raises:
        MissingExtraError: matplotlib is missing.
    """
    losses = found.losses[:_MOST][::-1]
    figure = new_figure(7.0, 1.2 + 0.24 * len(losses))
    axes = figure.subplots()
    axes.barh([loss.column for loss in losses], [loss.auc for loss in losses], color=_COLOUR, height=0.7)
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
