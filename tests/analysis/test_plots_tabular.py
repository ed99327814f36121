"""Pictures of tabular models: what is drawn, and that nothing is cut off."""

from itertools import pairwise

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from lmctr.analysis.effective_rank import EffectiveRanks
from lmctr.analysis.field_interactions import FieldInteractions
from lmctr.analysis.plots_tabular import plot_field_interactions, plot_rank_curves, plot_rank_distributions


def ranks_of(stages, seed=0, samples=50):
    rng = np.random.default_rng(seed)
    values = {kind: rng.uniform(1, 4, (len(stages), samples)) for kind in ("stable", "entropy")}
    return EffectiveRanks(tuple(stages), ((4, 6),) * len(stages), values, {})


@pytest.fixture
def figures(monkeypatch):
    """The figures that are saved, in order."""
    saved, save = [], Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda self, *a, **k: (saved.append(self), save(self, *a, **k)))
    return saved


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_curves(figures, tmp_path):
    runs = {"mixer": ranks_of(["embedding", "mixing_1", "ffn_1"]), "dcn": ranks_of(["embedding", "cross.0"], 1)}
    assert is_png(plot_rank_curves(runs, tmp_path / "new" / "a.png", "entropy", normalized=True))
    axes = figures[0].axes[0]
    lines = axes.get_lines()
    assert [line.get_label() for line in lines] == ["mixer", "dcn"]
    for line, ranks in zip(lines, runs.values()):
        np.testing.assert_allclose(line.get_ydata(), ranks.mean("entropy", normalized=True))
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["embedding", "mixing_1\ncross.0", "ffn_1"]
    bands = axes.collections  # the middle half and the interval of the mean, per run
    assert len(bands) == 4
    assert to_hex(bands[0].get_facecolor()[0]) == to_hex(lines[0].get_color())
    top = bands[0].get_paths()[0].vertices[:, 1].max()
    assert np.isclose(top, runs["mixer"].quantiles((0.75,), "entropy", True).max())
    assert "min(T, D)" in axes.get_ylabel()
    with pytest.raises(ValueError, match="at least one run"):
        plot_rank_curves({}, tmp_path / "b.png")


def test_one_sample_has_no_interval(tmp_path):
    assert is_png(plot_rank_curves({"a": ranks_of(["x", "y"], samples=1)}, tmp_path / "a.png"))
    assert is_png(plot_rank_distributions(ranks_of(["x", "y"], samples=1), tmp_path / "b.png"))


def test_distributions(figures, tmp_path):
    ranks = ranks_of(["embedding", "mixing_1", "ffn_1", "mixing_2", "ffn_2"])
    assert is_png(plot_rank_distributions(ranks, tmp_path / "a.png", title="run"))
    panels = [axes for axes in figures[0].axes if axes.get_visible()]
    assert len(panels) == 4
    mean = ranks.mean()
    for number, axes in enumerate(panels):
        stages = f"{ranks.stages[number]} → {ranks.stages[number + 1]}"
        assert axes.get_title() == f"{stages} ({mean[number]:.2f} → {mean[number + 1]:.2f})"
        np.testing.assert_allclose([line.get_xdata()[0] for line in axes.get_lines()], mean[number : number + 2])
        areas = [sum(patch.get_height() * patch.get_width() for patch in bars) for bars in axes.containers]
        np.testing.assert_allclose(areas, 1.0)
    with pytest.raises(ValueError, match="1 stages"):
        plot_rank_distributions(ranks_of(["x"]), tmp_path / "b.png")


@pytest.mark.parametrize("count", [2, 12, 40, 91])
def test_field_map(figures, tmp_path, count):
    """The map is the matrix, with a name at each row and column whose labels stay apart and inside the image."""
    weights = np.random.default_rng(0).normal(1.0, 0.1, (2, 3, count, count))
    found = FieldInteractions(weights, tuple(f"field_$_{n}" for n in range(count)))
    path = plot_field_interactions(found, tmp_path / "map.png", layer=1)
    axes = figures[0].axes[0]
    np.testing.assert_allclose(axes.images[0].get_array(), found.matrix(1, scaled=True))
    names = [tick.get_text().replace("\\$", "$") for tick in axes.get_yticklabels()]
    step = 1 if count <= 90 else 2
    assert names == list(found.field_names)[::step]
    assert "layer 2" in axes.get_title()
    figures[0].canvas.draw()
    for ticks, low, high in ((axes.get_yticklabels(), "y0", "y1"), (axes.get_xticklabels(), "x0", "x1")):
        boxes = sorted((tick.get_window_extent() for tick in ticks), key=lambda box: getattr(box, low))
        assert all(getattr(a, high) <= getattr(b, low) + 0.5 for a, b in pairwise(boxes))
    from matplotlib.image import imread

    whole = figures[0].get_tightbbox()
    height, width = imread(path).shape[:2]
    assert width >= 150 * whole.width
    assert height >= 150 * whole.height
    plot_field_interactions(found, tmp_path / "raw.png", scaled=False)
    np.testing.assert_allclose(figures[1].axes[0].images[0].get_array(), found.matrix())


def test_the_scale_of_a_field_map_tells_its_ends_apart(figures, tmp_path):
    weights = np.array([[0.9963, 1.0047], [1.0, 0.9991]])[None, None]
    plot_field_interactions(FieldInteractions(weights, ("a", "b")), tmp_path / "a.png")
    labels = [axes.get_ylabel() for axes in (*figures[0].axes, *figures[0].axes[0].child_axes)]
    assert "w, scaled from 0.9963 to 1.0047" in labels
