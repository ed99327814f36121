"""Pictures: what they label and mark, and that they are written."""

import builtins
import re
import sys
from itertools import pairwise

import numpy as np
import pytest

from lmctr.analysis import AttentionMap, SinkAttention, plots_report
from lmctr.analysis.plots import _fonts, _labels, _short, plot_attention_map, plot_layer_curves


def map_of(length, sinks, target=(), tokens=None, causal=False, buckets=None):
    generator = np.random.default_rng(0)
    weights = generator.random((length, length)).astype(np.float32)
    weights = np.tril(weights) if causal else weights
    tokens = list(tokens or [f"t{place}" for place in range(length)])
    for place in sinks:
        tokens[place] = "[SINK]"
    return AttentionMap(
        weights=weights / weights.sum(1, keepdims=True),
        tokens=tokens,
        is_sink=np.isin(np.arange(length), sinks),
        is_target=np.isin(np.arange(length), target),
        buckets=[((buckets or (lambda p: (p,)))(place)) if place in sinks else () for place in range(length)],
        layer=0,
        head="mean",
    )


def measured_of(layers, sinks=2):
    share = np.full((4, layers), 0.3 if sinks else 0.0)
    undefined = np.full((4, layers), 0.5 if sinks else np.nan)
    level = np.full(4, 0.1 if sinks else 0.0)
    return SinkAttention(share, undefined, level, undefined[:, 0], np.full(4, sinks), np.full(4, 9))


def is_png(path):
    return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 5000


def test_short_texts_have_a_label_at_every_token():
    places, labels = _labels(map_of(12, [3, 7], [9, 10]), 64)
    assert places == list(range(12))
    assert labels[:4] == ["t0", "t1", "t2", "[SINK] 3"]
    assert labels[7] == "[SINK] 7"
    same = map_of(12, [3, 7], buckets=lambda place: (0,))
    assert _labels(same, 64)[1][3] == "[SINK]"  # buckets that are all alike say nothing


def test_long_texts_are_labelled_at_sinks_and_target():
    sinks = [*range(20, 280, 10), 283]
    shown = map_of(300, sinks, [290, 291])
    places, labels = _labels(shown, 64)
    assert len(places) <= 64
    assert np.diff(places).min() >= 300 // 64
    assert 290 in places
    assert set(places) <= {*sinks, 290}
    assert labels[places.index(290)] == "target: t290 t291"
    assert labels[places.index(40)] == "t31 t32 t33 t34 t35 t… [SINK] 40"
    assert labels[places.index(20)].startswith("…")  # the end of the head and of the first behaviour
    assert labels[places.index(20)].endswith("t18 t19 [SINK] 20")


def test_crowded_sinks_are_thinned_out():
    sinks = list(range(4, 996, 4))
    places, _ = _labels(map_of(1000, sinks, [998]), 50)
    assert 40 <= len(places) <= 50
    assert np.diff(places).min() >= 20


def test_long_text_without_sinks():
    places, labels = _labels(map_of(500, [], [450]), 64)
    assert 50 <= len(places) <= 64
    assert "target: t450" in labels
    assert _labels(map_of(500, []), 64)[0][-1] > 480


def test_behaviour_texts_are_put_together_from_tokens():
    def label(tokens):
        tokens = ["x"] * 100 + ["[SINK]"] + tokens + ["[SINK]"]
        shown = map_of(len(tokens), [100, len(tokens) - 1], tokens=tokens, buckets=lambda place: (0,))
        return _labels(shown, 64)[1][-1].removesuffix(" [SINK]")

    assert label(["god", "##zilla", "(", "1998", ")", ";"]) == "godzilla (1998);"
    assert label([" God", "zilla", " (", "1998", ")", ";"]) == "Godzilla (1998);"
    assert label(["电", "影", "：", "##a"]) == "电影：a"
    assert label([" A", "影", "·", "·"]) == "A影"


def test_labels_are_no_formulas():
    assert _short("$x$ costs") == r"\$x\$ costs"
    assert _short("\n") == r"\n"
    assert _short("a" * 20) == "a" * 13 + "…"


@pytest.mark.parametrize(
    "shown",
    [
        map_of(10, [3, 6], [8], causal=True),
        map_of(300, list(range(20, 280, 10)), [290]),
        map_of(3, []),
        map_of(1, []),
        map_of(9, [2], tokens=["$", "_{", "^", "\n", "\\frac", "%", "#", " ", "é"]),
    ],
    ids=["causal", "long", "no sinks", "one token", "odd characters"],
)
def test_map_is_written(shown, tmp_path):
    assert is_png(plot_attention_map(shown, tmp_path / "new" / "map.png"))


def test_map_marks_sinks_and_hides_the_future(tmp_path, monkeypatch):
    """The drawn figure: red labels at sinks, green at the target, white above the diagonal of a causal model."""
    import matplotlib.figure
    from matplotlib.colors import to_hex

    figures = []
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda self, *args, **kwargs: figures.append(self))
    plot_attention_map(map_of(10, [3, 6], [8], causal=True), tmp_path / "a.png")
    plot_attention_map(map_of(10, [3, 6], [8]), tmp_path / "b.png")
    axes = figures[0].axes[0]
    for ticks in (axes.get_xticklabels(), axes.get_yticklabels()):
        colours = [to_hex(tick.get_color()) for tick in ticks]
        assert [place for place, colour in enumerate(colours) if colour == "#c1272d"] == [3, 6]
        assert [place for place, colour in enumerate(colours) if colour == "#0b6e4f"] == [8]
        assert [tick.get_text() for tick in ticks][:4] == ["t0", "t1", "t2", "[SINK] 3"]
    drawn = axes.images[0].get_array()
    assert np.array_equal(np.ma.getmaskarray(drawn), ~np.tril(np.ones((10, 10), dtype=bool)))
    assert not np.ma.getmaskarray(figures[1].axes[0].images[0].get_array()).any()


@pytest.mark.parametrize(
    "shown",
    [map_of(64, [9, 30]), map_of(500, list(range(20, 480, 9)), [490]), map_of(500, [20, 30, 40, 300]), map_of(2, [])],
    ids=["all tokens", "sinks", "close sinks", "tiny"],
)
def test_labels_do_not_overlap(shown, tmp_path, monkeypatch):
    import matplotlib.figure

    figures = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    plot_attention_map(shown, tmp_path / "map.png")
    figure = figures[0]
    figure.canvas.draw()
    axes = figure.axes[0]
    for ticks, low, high in ((axes.get_yticklabels(), "y0", "y1"), (axes.get_xticklabels(), "x0", "x1")):
        boxes = sorted((tick.get_window_extent() for tick in ticks), key=lambda box: getattr(box, low))
        assert all(getattr(first, high) <= getattr(second, low) + 0.5 for first, second in pairwise(boxes))
    whole = figure.get_tightbbox()
    from matplotlib.image import imread

    height, width = imread(tmp_path / "map.png").shape[:2]  # nothing that is drawn is cut off
    assert width >= 150 * whole.width
    assert height >= 150 * whole.height


def test_curves_show_each_run_and_its_bias_layers(tmp_path, monkeypatch):
    import matplotlib.figure

    figures = []
    save = matplotlib.figure.Figure.savefig
    monkeypatch.setattr(
        matplotlib.figure.Figure, "savefig", lambda self, *a, **k: (figures.append(self), save(self, *a, **k))
    )
    runs = {"before": measured_of(3), "after": measured_of(5), "none": measured_of(3, sinks=0)}
    assert is_png(plot_layer_curves(runs, tmp_path / "curves.png", {"after": [0, 1]}))
    left, right = figures[0].axes
    lines = [line for line in left.get_lines() if len(line.get_xdata()) > 2]
    assert [len(line.get_xdata()) for line in lines] == [3, 5, 3]
    assert list(lines[0].get_ydata()) == [0.3, 0.3, 0.3]
    points = left.collections[1].get_facecolors()
    assert [tuple(point[:3]) == (1, 1, 1) for point in points] == [False, False, True, True, True]
    assert [text.get_text() for text in figures[0].legends[0].get_texts()][:3] == ["before", "after", "none"]
    assert list(right.get_lines()[1].get_ydata()) == [0.5] * 5
    assert is_png(plot_layer_curves({"none": runs["none"]}, tmp_path / "none.png"))
    assert "no sinks" in [text.get_text() for text in figures[1].axes[1].texts]
    with pytest.raises(ValueError, match="nothing to draw"):
        plot_layer_curves({}, tmp_path / "x.png")


def test_missing_matplotlib_names_the_extra(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.split(".")[0] == "matplotlib":
            raise ModuleNotFoundError("No module named 'matplotlib'")
        return real(name, *args, **kwargs)

    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without)
    for plot in (
        lambda: plot_attention_map(map_of(3, []), tmp_path / "a.png"),
        lambda: plot_layer_curves({"a": measured_of(2)}, tmp_path / "a.png"),
    ):
        with pytest.raises(ImportError, match=r"pip install 'lmctr\[plots\]'"):
            plot()
    assert not (tmp_path / "a.png").exists()


def test_fonts_are_those_that_have_the_characters(monkeypatch):
    import matplotlib
    from matplotlib import font_manager

    default = matplotlib.rcParams["font.family"]
    assert _fonts("plain text") == (default, "")
    script = "\u1d81"  # of a font that matplotlib brings, and not of its default one
    fonts, missing = _fonts(f"a{script}")
    assert (fonts[:-1], missing) == (default, "")
    chosen = font_manager.findfont(font_manager.FontProperties(family=fonts[-1:]))
    assert font_manager.get_font(chosen).get_char_index(ord(script))
    only = [one for one in font_manager.fontManager.ttflist if one.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", only)
    assert _fonts(f"a{script}") == (default, script)


def test_labels_that_no_font_can_draw_are_places(tmp_path, monkeypatch, caplog, recwarn):
    from matplotlib import font_manager

    only = [one for one in font_manager.fontManager.ttflist if one.name == "DejaVu Sans"]
    monkeypatch.setattr(font_manager.fontManager, "ttflist", only)
    shown = map_of(4, [2], tokens=["\u9738\u738b", "Heat", "", "X\u59ec"])
    path = plot_attention_map(shown, tmp_path / "map.svg")
    assert [str(warning.message) for warning in recwarn if "missing" in str(warning.message)] == []
    (line,) = caplog.messages
    assert "no installed font has \u59ec\u738b\u9738: such texts are labelled by their places" in line
    words = re.findall(r"<!-- (.*) -->", path.read_text())
    assert {"#0", "Heat", "X#3"} <= set(words)


def test_a_run_has_one_colour_in_all_pictures_of_a_report(tmp_path, monkeypatch):
    kept = []
    monkeypatch.setattr(plots_report, "save_figure", lambda figure, path: kept.append(figure) or path)
    plots_report.plot_curves({"a": ([4], [0.5])}, tmp_path / "a.png", "AUC", among=["a", "b"])
    plots_report.plot_curves({"b": ([6], [0.5])}, tmp_path / "b.png", "R/R*", among=["a", "b"])
    bins = (np.array([0.1, 0.3]), np.array([0.2, 0.3]), np.array([50, 50]))
    plots_report.plot_calibration({"b": bins}, tmp_path / "c.png", among=["a", "b"])
    one, other, third = (next(line for line in figure.axes[0].lines if line.get_marker() == "o") for figure in kept)
    assert one.get_color() != other.get_color() == third.get_color()
    assert [tick for tick in kept[0].axes[0].get_xticks() if tick % 1] == []  # of a single step too


def test_a_curve_says_its_values_whole(tmp_path, monkeypatch):
    """An AUC that hardly moves is not a small number and a sum above the axis."""
    kept = []
    monkeypatch.setattr(plots_report, "save_figure", lambda figure, path: kept.append(figure) or path)
    plots_report.plot_curves({"a": ([87, 174], [0.99842, 0.998412])}, tmp_path / "a.png", "AUC")
    (axes,) = kept[0].axes
    kept[0].canvas.draw()
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert axes.yaxis.get_offset_text().get_text() == ""
    assert all(label.startswith("0.998") for label in labels)
