"""Pictures of plans and of attention by behaviour: what they draw, and that they are written."""

import dataclasses

import numpy as np
import pytest
from matplotlib.axes import Axes
from sequence_rows import sequence_log, sequence_view

from lmctr import ASTROConfig
from lmctr.analysis import plots_sequence
from lmctr.analysis.behavior_attention import BehaviorAttention
from lmctr.analysis.plots_sequence import plot_behavior_attention, plot_compression
from lmctr.scaling.compression import plan_compression


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_plan(tmp_path, monkeypatch):
    log = sequence_log(num_users=20, most_events=30)
    view = sequence_view(log)
    config = ASTROConfig(**view.processor.model_config_values())
    plan = plan_compression(view, log.sample_events(), config, degrees=[5, 1, 2]).to_dict()
    drawn, plot = [], Axes.plot
    monkeypatch.setattr(Axes, "plot", lambda self, x, y, *a, **k: drawn.append((x, y)) or plot(self, x, y, *a, **k))
    assert is_png(plot_compression(plan, tmp_path / "deep" / "plan.png"))
    by_degree = {point["num_candidates"]: point for point in plan["points"]}
    for (x, y), name in zip(drawn, ("ratio", "measured_ratio", "flops", "measured_flops"), strict=True):
        assert x == [1, 2, 5]
        assert y == [by_degree[degree][name] for degree in x]


def test_ticks_of_candidates_are_whole(tmp_path, monkeypatch):
    point = {"ratio": 1.0, "measured_ratio": 1.0, "flops": 1.0, "measured_flops": 1.0}
    plan = {"points": [{"num_candidates": 2, **point}, {"num_candidates": 3, **point}], "num_samples": 9}
    kept = []
    monkeypatch.setattr(plots_sequence, "save_figure", lambda figure, path: kept.append(figure) or path)
    plot_compression(plan, tmp_path / "plan.png")
    assert [tick for tick in kept[0].axes[0].get_xticks() if tick % 1] == []
    lines = kept[0].axes[0].get_legend().get_lines()  # of both axes, told apart without their colours
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == len(lines) == 4


def measured(names=("play", "like"), like=0.3):
    shares = np.array([[[1 - like, like]], [[np.nan, np.nan]]])
    return BehaviorAttention(names, ("all",), shares, np.zeros((2, 1)), np.array([[0.9, 0.1]]), 5)


def test_behaviours(tmp_path, monkeypatch):
    heights, bar, lines, hlines = [], Axes.bar, [], Axes.hlines
    monkeypatch.setattr(Axes, "bar", lambda self, x, h, *a, **k: heights.append(h) or bar(self, x, h, *a, **k))
    monkeypatch.setattr(Axes, "hlines", lambda self, y, *a, **k: lines.append(y) or hlines(self, y, *a, **k))
    path = plot_behavior_attention({"ASTRO": measured(like=0.4), "plain": measured()}, tmp_path / "b.png")
    assert is_png(path)
    np.testing.assert_allclose(heights, [[0.6, 0.7], [0.4, 0.3]])
    np.testing.assert_allclose(lines, [[0.9, 0.9], [0.1, 0.1]])  # share of events
    with pytest.raises(ValueError, match="same behaviour types"):
        plot_behavior_attention({"a": measured(), "b": measured(("x", "y"))}, path)
    with pytest.raises(ValueError, match="same behaviour types"):
        plot_behavior_attention({}, path)


def test_behaviours_that_nobody_reads_have_no_bar(tmp_path, monkeypatch):
    names, bar = [], Axes.bar
    monkeypatch.setattr(
        Axes, "bar", lambda self, *a, label, **k: names.append(label) or bar(self, *a, label=label, **k)
    )
    found = measured()
    shares = np.concatenate([np.zeros((2, 1, 1)), found.shares], axis=2)
    found = dataclasses.replace(
        found, behavior_names=("unknown", *found.behavior_names), shares=shares, events=np.array([[0.0, 0.9, 0.1]])
    )
    plot_behavior_attention({"a": found}, tmp_path / "b.png")
    assert names == ["play", "like"]
