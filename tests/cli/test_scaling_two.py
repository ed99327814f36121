"""`lmctr scaling fit` with two sizes, and returns that no design reaches."""

import json

import numpy as np
import pytest
from cli_helpers import read
from scipy import stats

from lmctr.cli.main import main
from lmctr.scaling.surface import best_split
from lmctr.studies.scaling.fit_two import fit_two
from lmctr.studies.scaling.options import FitOptions
from lmctr.utils.resources import find_resource

POINTS = str(find_resource("recipes", "scaling/climber_table2.csv"))
WORDS = ("scaling", "fit", POINTS, "--x", "length", "--x2", "layers", "--y", "auc", "--complement")


def test_the_table_of_climber(tmp_path, capsys):
    """Its best pairs are near those of the paper's Table 2: 400 x 4, 400 x 8 and 800 x 8."""
    asked = ("--product", "1600", "3200", "6400", "--predict", "800", "16", "--resamples", "20", "--held-out", "1")
    assert main([*WORDS, *asked, "--output", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr()
    assert "11 points, 11 pairs of sizes: auc by length and layers" in printed.out
    assert "law: additive with a constant (chosen by leave-one-out error)" in printed.out
    assert "no pair of sizes was measured twice" in printed.err
    assert "no pair of sizes was measured twice" not in printed.out  # said once
    assert "additive with a constant and additive apart" in printed.err
    assert "3 products of the sizes" in printed.err
    found = read(tmp_path / "out", "fit.json")
    assert [row["form"] for row in found["fit"]["candidates"]][:2] == ["additive_constant", "additive"]
    for row, length in zip(found["splits"], (400, 400, 800)):
        assert length / 1.5 < row["x"] < length * 1.5
        assert row["band"][0] <= row["x"] <= row["band"][1]
    assert found["predictions"][0]["y"] > 0.8382
    assert [row["x"] * row["x2"] for row in found["held_out"]] == [6400.0] * 3
    assert (tmp_path / "out" / "fit.png").stat().st_size > 5_000
    assert "error, leave one out" in (tmp_path / "out" / "fit.md").read_text()
    json.loads((tmp_path / "out" / "fit.json").read_text(), parse_constant=pytest.fail)


def test_every_band_is_widened_for_few_points():
    """Those of parameters, of predictions and of best pairs, by Student's quantile of the 6 points left over."""
    words = {"x": "length", "x2": "layers", "y": "auc", "complement": True, "form": "additive_constant"}
    asked = {"product": [3200.0, 6400.0], "predict": [800.0, 16.0], "resamples": 20, "seed": 3}
    found = fit_two(FitOptions(points=POINTS, **words, **asked))
    fit, refits, ratio = found.fit, found.refits, stats.t.ppf(0.95, 6) / stats.norm.ppf(0.95)
    assert ratio > 1.15

    def widened(drawn, center):
        return center + (np.quantile(drawn, [0.05, 0.95], axis=0) - center) * ratio

    bands = found.to_dict()["bands"]
    for name, own in fit.parameters.items():
        expected = widened([law.parameters[name] for law in refits], own)
        assert bands[name] == pytest.approx(np.maximum(expected, 0.0), rel=1e-9)
    assert bands["a"][0] == 0.0  # a constant below 0 is none
    assert found.predictions[0]["band"] == pytest.approx(np.ravel(fit.band(800.0, 16.0, refits=refits)))
    for row in found.splits:
        drawn = np.log([best_split(law, row["product"]).u for law in refits])
        expected = np.exp(widened(drawn, np.log(row["x"])))
        assert row["band"] == pytest.approx(np.clip(expected, 200.0, 1600.0))
        assert row["band"][0] > 200.0


def test_the_best_pair_at_equal_flops(capsys):
    asked = ("--flops", "flops", "--budget", "4.11e8", "1.01e9", "--resamples", "20")
    assert main([*WORDS, *asked]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    rows = {line[0]: line for line in lines if line and line[0] in ("4.11e+08", "1.01e+09")}
    assert [row[1:3] for row in rows.values()] == [["400", "4"], ["400", "8"]]
    assert all(row[4].endswith("%") for row in rows.values())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((*WORDS, "--model", "bnsl"), "belong to a law of one size"),
        ((*WORDS, "--predict", "800"), "--predict takes pairs"),
        ((*WORDS, "--budget", "1e9"), "--flops COLUMN and --budget F belong together"),
        ((*WORDS, "--resamples", "0", "--flops", "flops", "--budget", "1e8"), "1e+08 FLOPs are fewer than any"),
        ((*WORDS, "--held-out", "3"), "--held-out must be below 3"),
        ((*WORDS, "--resamples", "0", "--product", "1e9"), "no measured pair"),
        (("scaling", "fit", POINTS, "--x", "length", "--y", "auc", "--product", "1600"), "give --x2 COLUMN"),
        (("scaling", "fit", POINTS, "--x", "length", "--x2", "layer", "--y", "auc"), "layer"),
    ],
)
def test_wrong_words(words, message, capsys):
    assert main(list(words)) == 2
    assert message in capsys.readouterr().err
