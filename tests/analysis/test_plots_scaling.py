"""Pictures of scaling: what is drawn, read from the figures."""

import itertools
import re

import numpy as np
import pytest

pytest.importorskip("matplotlib")

from lmctr.analysis import plots_scaling
from lmctr.analysis.plots_scaling import plot_designs, plot_law, plot_machine_cost, plot_revenue


@pytest.fixture
def figures(monkeypatch):
    """Figures that were saved."""
    kept, save = [], plots_scaling.save_figure
    monkeypatch.setattr(
        plots_scaling, "save_figure", lambda figure, path: (kept.append(figure), save(figure, path))[1]
    )
    return kept


def test_law_in_log_axes(figures, tmp_path):
    x, y = np.array([1e6, 1e7, 1e8]), np.array([0.8, 0.9, 0.95])
    band = (y - 0.01, y + 0.01)
    path = plot_law(x, y, x, y, tmp_path / "new" / "a.png", band=band, held_out=(x, y), complement=True, y_name="r")
    assert path.stat().st_size > 5_000
    (axes,) = figures[0].axes
    assert (axes.get_xscale(), axes.get_yscale(), axes.get_ylabel()) == ("log", "log", "1 - r")
    for line in axes.lines:  # law, law without the largest sizes, points: all of 1 - y
        assert line.get_ydata() == pytest.approx(1 - y)
    assert {text.get_text() for text in axes.get_legend().get_texts()} == {
        "95 % bootstrap band", "law of all points", "law without the largest sizes", "measured"
    }  # fmt: skip
    assert plot_law(x, y, x, y, tmp_path / "d.svg", band=band, level=0.8).is_file()
    assert "80 % bootstrap band" in {text.get_text() for text in figures.pop().axes[0].get_legend().get_texts()}
    plot_law(x, y, x, y, tmp_path / "c.svg", held_out=(x, y), held_from=1e7)
    *_, measured, held = figures[1].axes[0].lines
    assert (list(measured.get_xdata()), list(held.get_xdata())) == ([1e6], [1e7, 1e8])
    assert (measured.get_fillstyle(), held.get_fillstyle(), held.get_label()) == ("full", "none", "held out")
    plot_law(x, y, x, y, tmp_path / "b.svg")
    assert figures[2].axes[0].lines[-1].get_ydata() == pytest.approx(y)


def test_designs(figures, tmp_path):
    plot_designs([1, 2, 3], [1, 3, 2], tmp_path / "a.png", front=([1, 2], [1, 3]), best=(2, 3), minimal_roi=1.5)
    (axes,) = figures[0].axes
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["designs", "Pareto front", "ROI 1.5", "chosen"]
    roi = axes.lines[2]
    assert roi.get_ydata() == pytest.approx(1.5 * roi.get_xdata())
    assert (axes.lines[3].get_xdata()[0], axes.lines[3].get_ydata()[0]) == (2, 3)
    assert not axes.texts
    many = list(range(1, 1001))
    plot_designs(many, many, tmp_path / "b.png")
    few, lot = axes.lines[0], figures[1].axes[0].lines[0]
    assert few.get_markersize() > 2 * lot.get_markersize()
    assert few.get_alpha() > 2 * lot.get_alpha()  # of a thousand, those that overlap look darker


def test_machine_cost_and_revenue(figures, tmp_path):
    plot_machine_cost([3e6, 1e6], [5, 2], tmp_path / "a.png", labels=["large", "small"])
    (axes,) = figures[0].axes
    assert axes.lines[0].get_xdata() == pytest.approx([1e6, 3e6])
    assert [text.get_text() for text in axes.texts] == ["large", "small"]
    metrics = {"r": [0.1, 0.2, 0.4], "opa": [1, 2, 3], "ndcg": [3, 2, 1], "recall": [1, 3, 2]}
    lines = dict.fromkeys(metrics, (2.0, 1.0, 0.5))
    plot_revenue(metrics, [1, 2, 3], lines, tmp_path / "b.png")
    panels = [axes for axes in figures[1].axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == [f"{name}: R² = 0.500" for name in metrics]
    assert panels[0].lines[1].get_ydata() == pytest.approx([1.2, 1.8])


@pytest.mark.parametrize("front", [([0.0, 0.02, 0.5, 3.0], [0.0, 0.4, 0.9, 1.0]), ([], [])])
def test_names_of_designs_hide_neither_points_nor_the_front(figures, tmp_path, front):
    cost, gain = [0.0, 0.02, 0.5, 0.51, 3.0, 2.0], [0.0, 0.4, 0.9, 0.85, 1.0, 0.2]
    labels = {f"design-{place}": point for place, point in enumerate(zip(cost, gain))}
    plot_designs(cost, gain, tmp_path / "a.png", front=front, best=(0.5, 0.9), best_name="design-2", labels=labels)
    (axes,) = figures[0].axes
    assert [text.get_text() for text in axes.texts] == [*labels]
    assert "chosen: design-2" in [text.get_text() for text in axes.get_legend().get_texts()]
    boxes = [text.get_window_extent() for text in axes.texts]
    steps = axes.transData.transform_path(axes.lines[1].get_path())
    assert not any(steps.intersects_bbox(box, filled=False) for box in boxes)
    dots = axes.transData.transform(list(zip(cost, gain)))
    assert not any(box.count_contains(dots) for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.parametrize(
    "cost",
    [
        [0.2, 0.25, 0.4, 0.9, 3.0],  # rises ever faster
        [3.0, 0.9, 0.4, 0.25, 0.2],
        [1.0, 1.0, 1.0, 1.0, 1.0],
        [1.0, 3.0, 0.9, 2.5, 1.1],
        [0.55, 0.57, 1.0, 1.02, 7.0],
    ],
)
def test_names_of_measured_costs_lie_beside_the_line_and_each_other(figures, tmp_path, cost):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    flops, labels = [1e6, 1.3e6, 4e6, 1.6e7, 6e7], ["w16", "w64-64", "w128", "a-longer-name", "w1024"]
    plot_machine_cost(flops, cost, tmp_path / "a.png", labels=labels)
    (axes,) = figures[0].axes
    renderer = FigureCanvasAgg(figures[0]).get_renderer()
    figures[0].draw(renderer)
    boxes = [text.get_window_extent(renderer) for text in axes.texts]
    line = axes.transData.transform_path(axes.lines[0].get_path())
    assert [text.get_text() for text in axes.texts] == labels
    assert not any(line.intersects_bbox(box, filled=False) for box in boxes)
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))
    assert all(axes.bbox.contains(*corner) for box in boxes for corner in (box.min, box.max))


def test_nothing_to_draw(tmp_path):
    for call in (
        lambda: plot_law([], [], [], [], tmp_path / "a.png"),
        lambda: plot_designs([], [], tmp_path / "a.png"),
        lambda: plot_machine_cost([], [], tmp_path / "a.png"),
        lambda: plot_revenue({}, [], {}, tmp_path / "a.png"),
    ):
        with pytest.raises(ValueError, match="to draw"):
            call()


def test_labels_of_the_revenue_panels_stay_apart(tmp_path, monkeypatch):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    figures = []
    monkeypatch.setattr(plots_scaling, "save_figure", lambda figure, path: figures.append(figure))
    metrics = {name: [0.812345, 0.812445, 0.8125] for name in ("a", "b", "c")}
    plot_revenue(metrics, [1, 2, 3], dict.fromkeys(metrics, (1.0, 0.0, 1.0)), tmp_path / "a.png")
    renderer = FigureCanvasAgg(figures[0]).get_renderer()
    figures[0].draw(renderer)
    for axes in figures[0].axes:
        low, high = axes.get_xlim()
        labels = [tick.label1 for tick in axes.xaxis.get_major_ticks() if low <= tick.get_loc() <= high]
        boxes = [label.get_window_extent(renderer) for label in labels]
        assert len(boxes) >= 2
        assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))


@pytest.mark.parametrize(
    ("x", "y", "x_labels", "y_labels"),
    [
        # a narrow axis has numbers, not one power of ten or none
        ([164, 9280], [0.21, 0.52], ["200", "500", "1,000", "2,000", "5,000", "10,000"], ["0.3", "0.4", "0.5"]),
        ([2e6, 3e7], [0.873, 1.051], ["2times10^6", "5times10^6", "10^7", "2times10^7"], ["0.9", "0.95", "1", "1.05"]),
        ([2e6, 3e9], [1e-6, 1e-3], ["10^7", "10^8", "10^9"], ["10^-6", "10^-5", "10^-4", "10^-3"]),
    ],
)
def test_ticks_of_log_axes_can_be_read(figures, tmp_path, x, y, x_labels, y_labels):
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    plot_machine_cost(x, y, tmp_path / "a.png")
    figure = figures[0]
    figure.draw(FigureCanvasAgg(figure).get_renderer())

    def shown(axis):
        low, high = axis.get_view_interval()
        texts = [tick.label1.get_text() for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        assert not any(tick.label1.get_text() for tick in axis.get_minor_ticks())
        return [re.sub(r"[${}\\ ]|mathdefault", "", text) for text in texts]

    assert shown(figure.axes[0].xaxis) == x_labels
    assert shown(figure.axes[0].yaxis) == y_labels
