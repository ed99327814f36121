"""`lmctr scaling fit|revenue|design|allocate|flops|cost` on small files: what is printed, written and refused."""

import csv
import itertools
import json
import re

import numpy as np
import pytest
import torch
import yaml
from cli_helpers import error_of, read
from retrieval_tester import FIELDS

from lmctr import DNNConfig, DNNForCTR, RetrievalMLPConfig, RetrievalMLPForCTR
from lmctr.cli.main import main
from lmctr.scaling.bnsl import bnsl
from lmctr.scaling.design import mlp_flops
from lmctr.studies.scaling.allocate import allocate_file
from lmctr.studies.scaling.design import choose_size, read_costs
from lmctr.studies.scaling.fit import fit_points
from lmctr.studies.scaling.options import AllocateOptions, DesignOptions, FitOptions, RevenueOptions
from lmctr.studies.scaling.revenue import compare_pairs


def write_csv(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def run(capsys, *words):
    assert main(["scaling", *map(str, words)]) == 0
    return capsys.readouterr().out


LAW = {"a": 0.05, "b": 3.0, "c0": 0.2}
X = np.geomspace(1e6, 1.4e8, 9)


@pytest.fixture
def points(tmp_path):
    rng = np.random.default_rng(0)
    y = 1 - bnsl(X, **LAW) * np.exp(rng.normal(0, 0.002, len(X)))
    return write_csv(tmp_path / "points.csv", [{"flops": a, "r": b, "other": -1} for a, b in zip(X, y)])


# ---- fit ----------------------------------------------------------------------------------------------------------


def test_fit_prints_and_writes_the_law(points, tmp_path, capsys):
    out = tmp_path / "out"
    words = ("--x", "flops", "--y", "r", "--complement", "--held-out", "2", "--resamples", "50", "--predict", "2.8e8")
    text = run(capsys, "fit", points, *words, "--output", out)
    assert "9 points, 9 sizes: r by flops" in text
    assert "law: power law with a constant (chosen by aicc)" in text
    assert "held out: the 2 largest sizes" in text
    assert "1 - y = " in text
    written = read(out, "fit.json")
    assert written["fit"]["parameters"]["c0"] == pytest.approx(0.2, rel=0.1)
    assert written["held_out"]["x"] == pytest.approx(X[-2:])
    assert written["held_out"]["mean_error"] < 0.002 < written["held_out"]["constant_error"]
    (at,) = written["predictions"]
    truth = 1 - bnsl(np.array([2.8e8]), **LAW)[0]
    assert at["low"] < at["y"] < at["high"]
    assert at["y"] == pytest.approx(truth, abs=0.003)
    assert f"{at['y']:.5g}" in text
    json.loads((out / "fit.json").read_text(), parse_constant=pytest.fail)  # no NaN, which JSON does not know
    assert (out / "fit.png").stat().st_size > 10_000
    document = (out / "fit.md").read_text()
    assert "| law | breaks | parameters | AICc |" in document
    assert f"lmctr scaling fit {points}" in document


def test_fit_of_a_power_law_of_gains(tmp_path, capsys):
    # FAT's law (Section 5.5 of its paper): points of AUC gained, by parameters
    x = np.array([5e6, 20e6, 52e6, 0.54e9])
    file = write_csv(tmp_path / "fat.csv", [{"n": a, "gain": 5.81e-5 * a**0.433} for a in x])
    text = run(capsys, "fit", file, "--x", "n", "--y", "gain", "--model", "power", "--predict", 52e6, 0.54e9, 1.5e9)
    assert "y = 5.81e-05 x^(0.433)" in text
    values = [line.split()[2] for line in text.splitlines() if line.startswith("n ")]
    assert [round(float(value), 3) for value in values] == [0.127, 0.351, 0.546]


def test_fit_with_more_parameters_than_points_is_refused_or_warned_about(points, capsys):
    words = ("scaling", "fit", points, "--x", "flops", "--y", "r", "--complement")
    error = error_of(capsys, *words, "--model", "bnsl", "--breaks", "2")
    assert "9 parameters need 11 distinct values of x, there are 9" in error
    assert main([*map(str, words), "--model", "bnsl", "--breaks", "2", "--allow-overfit", "--restarts", "1"]) == 0
    said = capsys.readouterr()
    assert "the curve can pass through every point and predict nothing" in said.err
    assert "no bootstrap band: 9 points and 9 parameters leave no residuals" in said.err
    assert "no bootstrap band" not in said.out  # said once
    assert "BNSL with 2 breaks" in said.out


def test_fit_refuses_bad_points(points, tmp_path, capsys):
    def error(rows, *words):
        file = write_csv(tmp_path / "bad.csv", [{"x": a, "y": b} for a, b in rows])
        return error_of(capsys, "scaling", "fit", file, "--x", "x", "--y", "y", *words)

    rising = [(10.0**i, 0.5 + 0.05 * i) for i in range(6)]
    assert "x has 3 distinct values: a power law needs at least 4" in error(rising[:3])
    assert "bad.csv, line 3: x is 0, accepted: a number above 0" in error([(1, 0.5), (0, 0.6), (2, 0.7), (3, 0.8)])
    assert "y grows with x: pass complement=True" in error(rising)
    assert "without the 3 largest sizes" in error(rising, "--complement", "--held-out", "3")
    fewest = error(rising[:4], "--complement", "--held-out", "1")
    assert "without the largest size: no size can be held out of 4: a law needs 4 others" in fewest
    assert "1 - y must be positive" in error([(a, b + 0.5) for a, b in rising], "--complement")
    assert "--breaks belongs to --law bnsl" in error(rising, "--breaks", "1")
    assert "--resamples must be 0" in error(rising, "--resamples", "1")
    for words in (("--predict", "1e8", "0"), ("--predict", "nan")):
        assert main(["scaling", "fit", str(points), "--x", "flops", "--y", "r", "--complement", *words]) == 2
        said = capsys.readouterr()
        assert said.out == ""  # it came after the whole fit
        assert f"--predict, --product and --budget take numbers above 0, got {words[-1]}" in said.err
    assert "--seed is -1, accepted: from 0" in error(rising, "--seed", "-1")
    assert "has no column 'flop'" in error_of(capsys, "scaling", "fit", points, "--x", "flop", "--y", "r")
    assert "does not exist" in error_of(capsys, "scaling", "fit", tmp_path / "no.csv", "--x", "x", "--y", "y")


def test_overrides_belong_to_recipes_only(points, capsys):
    error = error_of(capsys, "scaling", "fit", points, "--x", "flops", "--y", "r", "--data.path", "x")
    assert "scaling fit takes no recipe overrides, got --data.path" in error


# ---- revenue ------------------------------------------------------------------------------------------------------


def test_revenue_compares_metrics(tmp_path, capsys):
    rng = np.random.default_rng(1)
    metric = rng.uniform(0.8, 0.9, 12)
    revenue = 5 * metric - 4 + rng.normal(0, 0.003, 12)
    rows = [{"model": f"m{i}", "rr": a, "opa": b, "revenue": c} for i, (a, b, c) in enumerate(zip(metric, rng.random(12), revenue))]  # fmt: skip
    file = write_csv(tmp_path / "pairs.csv", rows)
    text = run(capsys, "revenue", file, "--output", tmp_path / "out")
    lines = [line.split() for line in text.splitlines()]
    assert [line[0] for line in lines[2:4]] == ["rr", "opa"]  # by falling R^2; the names of the models are no metric
    slope, intercept = np.polyfit(metric, revenue, 1)
    deviation = np.abs(slope * metric + intercept - revenue)
    r2 = 1 - (deviation**2).sum() / ((revenue - revenue.mean()) ** 2).sum()
    expected = [r2, deviation.mean(), deviation.max(), slope, intercept]
    assert [float(cell) for cell in lines[2][1:]] == pytest.approx(expected, rel=1e-3)
    written = read(tmp_path / "out", "revenue.json")
    assert written["metrics"]["rr"]["slope"] == pytest.approx(slope)
    assert (tmp_path / "out" / "revenue.png").stat().st_size > 5_000
    assert "| rr |" in (tmp_path / "out" / "revenue.md").read_text()


def test_revenue_names_the_columns_that_it_leaves_out(tmp_path, capsys):
    rows = [{"model": f"m{i}", "rr": 0.1 * i, "opa": 0.2 * i if i != 2 else "", "revenue": i} for i in range(5)]
    file = write_csv(tmp_path / "p.csv", rows)
    assert main(["scaling", "revenue", str(file), "--output", str(tmp_path / "out"), "--no-plots"]) == 0
    warned = "opa is left out: no number in line 4; mend it, or choose by --metrics"
    assert capsys.readouterr().err == f"warning: {warned}\n"  # the names of the models are no metric with a gap
    assert read(tmp_path / "out", "revenue.json")["notes"] == [warned]
    assert warned in (tmp_path / "out" / "revenue.md").read_text()
    assert main(["scaling", "revenue", str(file), "--metrics", "rr"]) == 0
    assert capsys.readouterr().err == ""


def test_revenue_refuses_bad_pairs(tmp_path, capsys):
    file = write_csv(tmp_path / "p.csv", [{"m": 0.1 * i, "flat": 1, "revenue": i} for i in range(5)])
    assert "flat: metric has the same value" in error_of(capsys, "scaling", "revenue", file)
    assert "no column 'mm'; did you mean 'm'?" in error_of(capsys, "scaling", "revenue", file, "--metrics", "mm")
    assert "that column is the revenue" in error_of(capsys, "scaling", "revenue", file, "--metrics", "revenue")
    two = write_csv(tmp_path / "two.csv", [{"m": 1, "revenue": 1}, {"m": 2, "revenue": 2}])
    assert "at least 3 pairs, got 2" in error_of(capsys, "scaling", "revenue", two)


# ---- design -------------------------------------------------------------------------------------------------------

BASE = (3328, 1024, 256, 256, 256, 1)


@pytest.fixture
def law_file(tmp_path, points, capsys):
    run(capsys, "fit", points, "--x", "flops", "--y", "r", "--complement", "--model", "power_constant", "--resamples", "0", "--no-plots", "--output", tmp_path / "fit")  # fmt: skip
    return tmp_path / "fit" / "fit.json"


def costs(tmp_path, sizes, cost):
    rows = [{"sizes": "-".join(map(str, size)), "machines": cost(mlp_flops(size))} for size in sizes]
    return write_csv(tmp_path / "costs.csv", rows)


def test_the_counts_of_the_paper(capsys):
    assert run(capsys, "design", "--count") == "1,553 sizes\n"
    assert run(capsys, "design", "--count", "--no-ratio-on-input") == "9,191 sizes\n"


def test_design_over_the_grid_of_the_paper(law_file, tmp_path, capsys):
    # 10 machines at the base's 7.6 MFLOPs, the cost a power 0.8 of the FLOPs: what is interpolated in logarithms is exact
    def cost(flops):
        return 10 * (flops / 7602688) ** 0.8

    ends = [(2000, 128, 128, 128, 128, 1), BASE, (60_000, 1024, 1024, 1024, 1024, 1)]
    words = (
        "--fit",
        law_file,
        "--costs",
        costs(tmp_path, ends, cost),
        "--base",
        "3328-1024-256-256-256-1",
        "--slope",
        1000,
    )
    out = tmp_path / "out"
    text = run(capsys, "design", *words, "--minimal-roi", "0.5", "--output", out)
    fit = read(law_file.parent, "fit.json")["fit"]["parameters"]

    def value(flops):
        return 1000 * (1 - fit["a"] - fit["b"] * flops ** -fit["c0"])

    best = None
    from lmctr.scaling.design import DesignGrid

    for size in DesignGrid():
        flops = mlp_flops(size)
        gain, more = value(flops) - value(7602688), cost(flops) - 10
        if (gain >= 0.5 * more if more > 0 else gain >= 0) and (best is None or gain > best[1]):
            best = (size, gain, more)
    name = "-".join(map(str, best[0]))
    assert "1,553 designs, " in text
    assert f"chosen: {name}," in text
    assert "cost of 1 sizes measured, of 1,552 interpolated" in text  # the base is on the grid
    written = read(out, "design.json")
    assert written["best"]["design"] == name
    assert written["best"]["gain"] == pytest.approx(best[1], rel=1e-6)
    assert written["best"]["cost"] == pytest.approx(best[2], rel=1e-6)
    with open(out / "designs.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 1553
    assert [row["design"] for row in rows if row["chosen"] == "1"] == [name]
    assert (out / "pareto.png").stat().st_size > 10_000
    assert "![designs](pareto.png)" in (out / "design.md").read_text()
    # a measured size keeps its own cost, and sizes outside what was measured are left out and counted
    narrow = costs(tmp_path, [BASE, (5128, 1024, 512, 512, 512, 1)], lambda flops: 10 if flops == 7602688 else 1.0)
    text = run(
        capsys, "design", "--fit", law_file, "--costs", narrow, "--base", "3328-1024-256-256-256-1", "--minimal-roi", 1
    )
    assert "chosen: 5128-1024-512-512-512-1, 12.60M FLOPs" not in text  # not on the grid: 5128 = 25 x 200 + 128
    assert "lie outside the measured costs (7.60M to 12.60M FLOPs) and are left out" in text


def test_design_from_own_candidates_and_revenue_file(law_file, tmp_path, capsys):
    sizes = [BASE, (5128, 1024, 512, 512, 512, 1)]
    candidates = write_csv(tmp_path / "c.csv", [{"sizes": " ".join(map(str, size))} for size in sizes])
    (tmp_path / "g.json").write_text(json.dumps({"metrics": {"r": {"slope": 50.0, "intercept": 7.0}}}))
    words = (
        "--fit",
        law_file,
        "--costs",
        costs(tmp_path, sizes, lambda flops: flops / 1e6),
        "--candidates",
        candidates,
    )
    text = run(
        capsys, "design", *words, "--revenue", tmp_path / "g.json", "--absolute", "--minimal-roi", "1", "--price", 2
    )
    assert "chosen: 5128-1024-512-512-512-1, 12.60M FLOPs" in text
    assert "cost 25.201, ROI" in text
    assert "cost of 2 sizes measured" in text


def test_a_size_that_was_measured_twice_costs_the_mean(law_file, tmp_path, capsys):
    other = (60_000, 1024, 1024, 1024, 1024, 1)
    rows = [{"sizes": " ".join(map(str, size)), "cost": cost} for size, cost in ((BASE, 10), (BASE, 40), (other, 90))]
    curve = read_costs(write_csv(tmp_path / "twice.csv", rows))
    assert curve(mlp_flops(BASE), BASE) == pytest.approx(20.0)
    assert curve(mlp_flops(BASE)) == pytest.approx(20.0)
    assert curve(mlp_flops(other), other) == 90.0
    words = [
        "scaling",
        "design",
        "--fit",
        law_file,
        "--costs",
        tmp_path / "twice.csv",
        "--base",
        "3328-1024-256-256-256-1",
    ]
    (tmp_path / "g.json").write_text("{}")
    said = error_of(capsys, *words, "--minimal-roi", "1", "--revenue", tmp_path / "g.json", "--intercept", "5")
    assert "--revenue and --intercept both say what the metric is worth" in said


def test_costs_with_a_header_in_quotes(tmp_path):
    path = tmp_path / "quoted.csv"
    path.write_text('"sizes","machines"\n"8-4-1","2"\n"16-4-1","3"\n')
    assert read_costs(path)(mlp_flops((8, 4, 1)), (8, 4, 1)) == 2.0


def test_design_refuses_what_cannot_be(law_file, tmp_path, capsys):
    file = costs(tmp_path, [BASE, (60_000, 1024, 1024, 1024, 1024, 1)], lambda flops: flops / 1e6)
    words = ["scaling", "design", "--fit", law_file, "--costs", file]
    base = ["--base", "3328-1024-256-256-256-1"]
    candidates = write_csv(tmp_path / "c.csv", [{"sizes": "5128-1024-512-512-512-1"}])
    error = error_of(capsys, *words, *base, "--minimal-roi", "1e9", "--candidates", candidates, code=3)
    assert "no candidate of 1 reaches ROI 1e+09: the highest ROI of a gain is" in error
    assert "--base is missing" in error_of(capsys, *words, "--minimal-roi", "1")
    assert "--minimal-roi is missing" in error_of(capsys, *words, *base)
    assert "outside the measured range" in error_of(capsys, *words, "--base", "128-128-1", "--minimal-roi", "1")
    assert "'a-b' is no list of sizes" in error_of(capsys, *words, "--base", "a-b", "--minimal-roi", "1")
    for limit in (("--max-flops", "10"), ("--max-embedding-dim", "8")):
        error = error_of(capsys, *words, *base, "--minimal-roi", "1", *limit)
        assert "the grid has no size: none of 4 hidden layers meets --max-flops" in error
        assert " ".join(limit) in error
    no_law = tmp_path / "x.json"
    no_law.write_text("{}")
    assert "holds no law" in error_of(capsys, "scaling", "design", "--fit", no_law, "--costs", file, *base, "--minimal-roi", "1")  # fmt: skip
    assert "holds no machine costs" in error_of(capsys, "scaling", "design", "--fit", law_file, "--costs", no_law, *base, "--minimal-roi", "1")  # fmt: skip
    one = costs(tmp_path / "one", [BASE], lambda flops: 1)
    assert "at least 2 different FLOPs" in error_of(capsys, "scaling", "design", "--fit", law_file, "--costs", one, *base, "--minimal-roi", "1")  # fmt: skip


def test_a_law_of_something_else_than_flops_of_a_sample_is_refused(law_file, tmp_path, capsys):
    """A law by FLOPs of a request of 100 candidates would be read at a hundredth of its x."""
    file = costs(tmp_path, [BASE, (60_000, 1024, 1024, 1024, 1024, 1)], lambda flops: flops / 1e6)
    words = ["scaling", "design", "--fit", law_file, "--costs", file, "--absolute", "--minimal-roi", "0"]
    values = json.loads(law_file.read_text())
    for x in ("flops_per_request", "parameters"):
        law_file.write_text(json.dumps({**values, "x": x}))
        error = error_of(capsys, *words)
        assert f"{law_file}: a design knows its sizes' flops_per_sample only, but x is {x}; fit the law by" in error
    law_file.write_text(json.dumps({**values, "x": "flops_per_sample"}))
    assert main([str(word) for word in words]) == 0


def test_an_unreachable_return_keeps_the_base_and_says_so(law_file, tmp_path, capsys):
    """The size in use is always feasible: that it stays is no success of the search."""
    file = costs(tmp_path, [BASE, (60_000, 1024, 1024, 1024, 1024, 1)], lambda flops: flops / 1e6)
    sizes = [{"sizes": "3328-1024-256-256-256-1"}, {"sizes": "5128-1024-512-512-512-1"}]
    words = ["--fit", law_file, "--costs", file, "--candidates", write_csv(tmp_path / "c.csv", sizes)]
    words += ["--base", "3328-1024-256-256-256-1", "--output", tmp_path / "out", "--no-plots"]
    for minimal, code in (("1e9", 3), ("1e-9", 0)):
        assert main(["scaling", "design", *map(str, words), "--minimal-roi", minimal]) == code
        text, written = capsys.readouterr().out, read(tmp_path / "out", "design.json")
        assert written["is_reached"] is (code == 0)
        assert written["num_feasible"] == (code == 0)  # the size in use, whose return nobody asks for, is none of them
        assert ("is not reached by any design: the highest ROI of a gain is" in text) is (code == 3)
        assert ("the size in use stays" in text) is (code == 3)
        with open(tmp_path / "out" / "designs.csv") as rows:
            gains = [float(row["gain"]) / float(row["cost"]) for row in csv.DictReader(rows) if row["gain"] > "0.0"]
        assert written["highest_roi"] == pytest.approx(max(gains), rel=1e-3)


def test_a_size_in_use_that_was_not_measured_is_told(law_file, tmp_path, capsys):
    """Its cost is part of every difference."""
    sizes = [(2000, 128, 128, 128, 128, 1), (60_000, 1024, 1024, 1024, 1024, 1)]
    file = costs(tmp_path, sizes, lambda flops: flops / 1e6)
    candidates = write_csv(tmp_path / "c.csv", [{"sizes": " ".join(map(str, size))} for size in sizes])
    words = ["--fit", law_file, "--costs", file, "--candidates", candidates, "--minimal-roi", "-1e9"]
    told = "cost of 2 sizes measured, of 0 interpolated in log FLOPs"
    assert f"{told}\n" in run(capsys, "design", *words, "--absolute")
    text = run(capsys, "design", *words, "--base", "3328-1024-256-256-256-1")
    assert f"{told}; that of the size in use interpolated\n" in text
    assert "the law is extrapolated for 1 sizes: it was fitted on" in text
    text = run(capsys, "design", *words, "--base", "8-4-1", "--extrapolate")
    assert f"{told}; that of the size in use extrapolated\n" in text
    assert "the law is extrapolated for 1 sizes and the one in use: it was fitted on" in text


def test_a_failed_command_leaves_no_folder(law_file, tmp_path, capsys):
    bad = write_csv(tmp_path / "bad.csv", [{"flops": "many", "r": 1.0, "revenue": 2.0}])
    out = tmp_path / "made" / "out"
    for words in (
        ["fit", bad, "--x", "flops", "--y", "r"],
        ["fit", bad, "--x", "flops", "--x2", "revenue", "--y", "r"],
        ["revenue", bad],
        ["sumi", "no_such_log"],
        ["design", "--fit", law_file, "--costs", bad, "--absolute", "--minimal-roi", "1"],
    ):
        error_of(capsys, "scaling", *words, "--output", out, "--no-plots")
        assert not out.parent.exists()
    words = ["scaling", "fit", bad, "--x", "revenue", "--y", "r", "--output", bad / "out"]
    assert f"--output {bad}/out: {bad} is a file; give a folder" in error_of(capsys, *words)


def test_a_metric_worth_nothing_leaves_only_what_saves(law_file, tmp_path, capsys):
    sizes = [(2000, 128, 128, 128, 128, 1), BASE]
    file = costs(tmp_path, sizes, lambda flops: flops / 1e6)
    candidates = write_csv(tmp_path / "c.csv", [{"sizes": " ".join(map(str, size))} for size in sizes])
    words = ["--fit", law_file, "--costs", file, "--base", "3328-1024-256-256-256-1", "--candidates", candidates]
    assert main(["scaling", "design", *map(str, words), "--minimal-roi", "1", "--slope", "0"]) == 3
    text = capsys.readouterr().out
    assert "chosen: 2000-128-128-128-128-1" in text
    assert "no design gains; the chosen one gains nothing, and costs less than the size in use" in text
    assert "stays" not in text


def test_python_gives_what_the_command_line_writes_and_prints_nothing(points, law_file, tmp_path, capsys):
    capsys.readouterr()
    law = {"law": "power_constant", "complement": True, "resamples": 0}
    found = fit_points(FitOptions(points=str(points), x="flops", y="r", **law))
    written = read(law_file.parent, "fit.json")
    assert found.to_dict() == {key: value for key, value in written.items() if key not in ("predictions", "command")}
    revenue = write_csv(tmp_path / "p.csv", [{"m": 0.1 * i, "revenue": 3.0 * i + 1} for i in range(5)])
    assert compare_pairs(RevenueOptions(pairs=str(revenue))).fits["m"].slope == pytest.approx(30)
    file = costs(tmp_path, [BASE, (60_000, 1024, 1024, 1024, 1024, 1)], lambda flops: flops / 1e6)
    options = DesignOptions(fit=str(law_file), costs=str(file), absolute=True, minimal_roi=0.0, ratio_on_input=False)
    assert choose_size(options).result.num_feasible > 5000
    rows = [{"scenario": "s", "design": name, "gain": gain, "cost": 1} for name, gain in (("a", 2), ("b", 3))]
    found = allocate_file(AllocateOptions(file=str(write_csv(tmp_path / "s.csv", rows)), budget=1.0))
    assert (found.chosen["s"].sizes, found.minimal_roi) == ("b", 1.0)
    assert capsys.readouterr() == ("", "")


# ---- allocate -----------------------------------------------------------------------------------------------------

CANDIDATES = {
    "matching": [("small", 10.0, 4.0), ("large", 14.0, 9.0), ("poor", 1.0, 3.0)],
    "pre_ranking": [("a", 6.0, 2.0), ("b", 9.0, 5.0), ("c", 9.5, 8.0)],
}


def test_allocate_from_a_csv_file_as_brute_force(tmp_path, capsys):
    rows = [
        {"scenario": s, "design": d, "gain": g, "cost": c} for s, entries in CANDIDATES.items() for d, g, c in entries
    ]
    file = write_csv(tmp_path / "all.csv", rows)
    for budget in (7, 9, 12, 14, 20):
        text = run(capsys, "allocate", file, "--budget", budget, "--output", tmp_path / "out.json")
        possible = [pair for pair in itertools.product(*CANDIDATES.values()) if sum(d[2] for d in pair) <= budget and all(d[1] >= d[2] for d in pair)]  # fmt: skip
        best = max(possible, key=lambda pair: sum(d[1] for d in pair))
        written = read(tmp_path, "out.json")
        assert written["gain"] == sum(d[1] for d in best)
        assert {name: entry["design"] for name, entry in written["chosen"].items()} == dict(zip(CANDIDATES, (best[0][0], best[1][0])))  # fmt: skip
        assert f"gain {written['gain']:g} for {written['cost']:g} of the budget of {budget}" in text
    assert "2 scenarios, 6 candidates, 5 with ROI of at least 1" in text
    error = error_of(capsys, "scaling", "allocate", file, "--budget", "5")
    assert "budget 5 is too small: the cheapest admissible designs cost 6 together" in error
    error = error_of(capsys, "scaling", "allocate", file, "--budget", "50", "--minimal-roi", "2.6", code=3)
    assert "scenario 'matching' has no candidate with ROI of at least 2.6: the highest is 2.5" in error
    assert "sets no budget" in error_of(capsys, "scaling", "allocate", file)


def test_thousand_separators_are_no_further_columns(tmp_path, capsys):
    (tmp_path / "al.csv").write_text("scenario,design,gain,cost\na,x,1,000,4\n")
    error = error_of(capsys, "scaling", "allocate", tmp_path / "al.csv", "--budget", "12")
    assert "al.csv, line 2: 5 values for 4 columns; write numbers with a decimal point and without thousand" in error


def test_allocate_from_a_yaml_file(tmp_path, capsys):
    matching = [{"design": d, "worth": g / 2, "servers": c / 4} for d, g, c in CANDIDATES["matching"]]
    write_csv(tmp_path / "m.csv", matching)
    pre = [dict(zip(("design", "gain", "cost"), entry)) for entry in CANDIDATES["pre_ranking"]]
    first = {
        "name": "matching",
        "candidates": "m.csv",
        "gain": "worth",
        "cost": "servers",
        "gain_factor": 2,
        "cost_factor": 4,
    }
    content = {"budget": 12, "scenarios": [first, {"name": "pre_ranking", "candidates": pre}]}
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(content))
    text = run(capsys, "allocate", file)
    assert "gain 20 for 11 of the budget of 12" in text  # large and a
    assert "gain 16 for 6 of" in run(capsys, "allocate", file, "--budget", "7")
    file.write_text(yaml.safe_dump(content | {"budgett": 1}))
    assert "unknown key 'budgett'" in error_of(capsys, "scaling", "allocate", file)
    file.write_text(
        yaml.safe_dump({"budget": 1, "scenarios": [{"name": "x", "candidates": [{"design": "a", "gain": "?"}]}]})
    )
    assert "candidate 1: gain is '?', accepted: a number" in error_of(capsys, "scaling", "allocate", file)


# ---- flops and cost -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    for name, units in (("small", [8]), ("large", [512, 256])):
        torch.manual_seed(0)
        DNNForCTR(DNNConfig(vocab_sizes=[7, 11], num_numeric=3, embedding_dim=4, hidden_units=units)).save_pretrained(folder / name)  # fmt: skip
    return folder


def test_flops_of_saved_models(saved, tmp_path, capsys):
    text = run(
        capsys,
        "flops",
        saved / "small",
        saved / "large",
        "--candidates",
        5,
        "--modules",
        "--output",
        tmp_path / "f.json",
    )
    small, large = read(tmp_path, "f.json")["models"]
    assert small["per_sample"] == 2 * (20 * 8 + 8)
    assert large["per_request"] == 5 * 2 * (20 * 512 + 512 * 256 + 256)
    assert (small["dense_parameters"], small["embedding_parameters"]) == (20 * 8 + 8 + 8 + 1 + 2 * 3 * 4, 18 * 4)
    line = next(line.split() for line in text.splitlines() if "large" in line)
    assert line[1:6] == ["dnn", "5", "50", "283.14k", "1.42M"]
    assert re.search(r"FLOPs/request +dense params +embedding params\n", text)
    assert "FLOPs per request\n" in text


def test_flops_of_a_recipe(capsys):
    words = ("--data.options.num_rows", "1000", "--data.options.vocab_size", "200", "--model.hidden_units", "[4]")
    text = run(capsys, "flops", "dnn/synthetic", *words)
    line = next(line.split() for line in text.splitlines() if line.startswith("dnn/synthetic"))
    assert line[1] == "dnn"
    assert float(line[4].removesuffix("k")) * 1e3 == pytest.approx(2 * (39 * 8 * 4 + 4), rel=0.01)
    assert "FLOPs" in text


def test_flops_of_something_else(saved, tmp_path, capsys):
    assert "holds no saved model" in error_of(capsys, "scaling", "flops", tmp_path)
    assert f"; give a run in it, such as {saved}/" in error_of(capsys, "scaling", "flops", saved)
    words = ("scaling", "cost", saved / "small", saved / "small" / "config.json", "--latency-ms", "20")
    assert "config.json is a file" in error_of(capsys, *words)  # before anything is measured
    assert "only recipes take overrides" in error_of(capsys, "scaling", "flops", saved / "small", "--data.seed", "1")
    assert "candidates must be" in error_of(capsys, "scaling", "flops", saved / "small", "--candidates", "0")


FAST = [
    "--window-seconds",
    "0.1",
    "--warmup-seconds",
    "0.05",
    "--windows",
    "2",
    "--min-calls",
    "170",
    "--confidence",
    "0.8",
    "--max-concurrency",
    "1",
]


def test_cost_measures_once_and_compares(saved, tmp_path, capsys):
    words = (
        "cost",
        saved / "small",
        saved / "large",
        "--latency-ms",
        "500",
        "--candidates",
        "512",  # so many that the products, not the calls, take the time
        "--batch-sizes",
        "2",
    )
    words += ("--base-machines", "10", "--max-seconds", "8", "--cache", tmp_path / "cache", *FAST)
    text = run(capsys, *words, "--output", tmp_path / "cost.json")
    assert "highest requests/s with p99 <= 500 ms, each level at 80% confidence" in text
    small, large = read(tmp_path, "cost.json")["models"]
    assert (small["machines"], small["fraction"]) == (10, pytest.approx(10))
    assert large["fraction"] == pytest.approx(10 * small["qps"] / large["qps"])
    assert large["machines"] == np.ceil(large["fraction"])
    assert large["qps"] < small["qps"]  # 800 times the FLOPs
    assert not small["kept"]
    best = small["capacity"]["batched"]
    assert small["latency_ms"] == 1e3 * best["latency"]
    assert small["median_latency_ms"] == 1e3 * best["median_latency"]
    written = read(tmp_path, "cost.json")
    assert (written["options"]["latency_limit"], written["options"]["latency_ms"]) == (0.5, 500.0)
    units = written["units"]
    assert (units["latency"], units["latency_limit"], units["latency_ms"]) == ("seconds", "seconds", "milliseconds")
    again = run(capsys, *words, "--output", tmp_path / "again.json")
    assert all(row["kept"] for row in read(tmp_path, "again.json")["models"])
    assert again == text
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_cost_asks_the_hub_once_and_names_its_model(saved, tmp_path, capsys, monkeypatch):
    asked = []

    def found(name):
        asked.append(name)
        return saved / "small"

    monkeypatch.setattr("lmctr.studies.scaling.cost.local_folder", found)
    words = ("scaling", "cost", "user/name", "--latency-ms", "1e-6", "--batch-sizes", "1", "--no-cache", *FAST)
    assert main([*words]) == 2
    assert "\nerror: user/name: " in capsys.readouterr().err
    assert asked == ["user/name"]


def test_the_help_of_cost_says_that_the_plain_forward_is_measured(capsys):
    with pytest.raises(SystemExit):
        main(["scaling", "cost", "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "the model's plain forward, or with --split what serves a retrieval model whose ads are kept" in told


def test_cost_of_kept_ads(saved, tmp_path, capsys):
    RetrievalMLPForCTR(RetrievalMLPConfig(**FIELDS)).save_pretrained(tmp_path / "mlp")
    words = [
        "cost",
        tmp_path / "mlp",
        "--latency-ms",
        "500",
        "--candidates",
        "64",
        "--batch-sizes",
        "2",
        "--max-seconds",
        "8",
    ]
    words += ["--cache", tmp_path / "cache", *FAST]
    assert "ads kept in halves" not in run(capsys, *words, "--output", tmp_path / "plain.json")
    assert "; ads kept in halves" in run(capsys, *words, "--split", "--output", tmp_path / "split.json")
    (plain,), (split,) = (read(tmp_path, f"{name}.json")["models"] for name in ("plain", "split"))
    assert (plain["split"], split["split"], split["kept"]) == (False, True, False)
    assert split["flops_per_request"] == plain["flops_per_request"]
    assert len(list((tmp_path / "cache").iterdir())) == 2
    run(capsys, *words, "--split", "--output", tmp_path / "again.json")
    assert read(tmp_path, "again.json")["models"][0]["kept"]
    words = ("scaling", "cost", saved / "small", "--split", "--latency-ms", "5", "--no-cache", *FAST)
    assert main([str(word) for word in words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert (
        error == "error: model: DNNForCTR has no halves of user and ad; accepted: RetrievalMLPForCTR, TwoTowerForCTR"
    )


def test_cost_under_a_limit_that_no_load_meets(saved, tmp_path, capsys):
    words = ("scaling", "cost", saved / "large", "--latency-ms", "0.001", "--no-cache", *FAST)
    assert main([str(word) for word in words]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert error.startswith(f"error: {saved / 'large'}: no load meets the latency limit of 0.001 ms on p99")
    words = ("scaling", "cost", saved / "small", "--latency-ms", "5")
    assert "is none of the runs" in error_of(capsys, *words, "--base", "other")
    assert "--base-machines must be above 0" in error_of(capsys, *words, "--base-machines", "0")
    assert main(["scaling", "cost", str(tmp_path / "none"), "--latency-ms", "5"]) == 2
    assert "none does not exist" in capsys.readouterr().err
    assert "quantile must be between 0 and 1" in error_of(capsys, *words, "--quantile", "99")
    error = error_of(capsys, *words[:-1], "0")
    assert "--latency-ms must be a number of milliseconds above 0, got 0.0" in error
