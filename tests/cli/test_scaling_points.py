"""`lmctr scaling` with points of one's own: what is wrong with a file is told where it stands, and what points cannot tell is said."""

import numpy as np
import pytest
from cli_helpers import error_of

from lmctr.cli.main import main
from lmctr.scaling.fits import fit_scaling_law
from lmctr.scaling.surface import fit_surface

X = [1e6, 4e6, 1.6e7, 6.4e7, 2.56e8, 1e9, 4e9]
LOSS = [0.4 + 3 * x**-0.2 for x in X]


def write(path, *columns, head="flops,loss"):
    path.write_text("\n".join([head, *(",".join(map(str, row)) for row in zip(*columns))]) + "\n")
    return path


def fit_words(file, y="loss"):
    return ("scaling", "fit", file, "--x", "flops", "--y", y)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("flops,loss\n1e6,.5\n0,.4\n1e7,.3\n1e8,.2\n", "line 3: flops is 0, accepted: a number above 0"),
        ("flops,loss\n-1e6,.5\n2e6,.4\n1e7,.3\n1e8,.2\n", "line 2: flops is -1e6, accepted: a number above 0"),
        ("flops,loss\n1e6,.5\n2e6,nan\n", "line 3: loss is no number: 'nan'"),
        ("flops;loss\n1e6;.5\n2e6;.4\n", "its values are parted by ';'; write commas"),
        ("flops\tloss\n1e6\t.5\n", r"its values are parted by '\t'; write commas"),
        ("", "is empty: it needs a line of column names"),
        ("flops,loss\n1e6,.5\n", "x has 1 distinct values: a power law needs at least 4"),
        ("flops,loss\n" + "1e6,.5\n1e6,.4\n" * 4, "x has 1 distinct values: a power law needs at least 4"),
        (
            "flops,loss\n1e6,0\n2e6,.4\n1e7,.3\n1e8,.2\n",
            "x flops, y loss: y must be positive and finite, got 0.0 at point 0",
        ),
    ],
)
def test_wrong_points_are_told_where_they_stand(tmp_path, capsys, content, words):
    (tmp_path / "points.csv").write_text(content)
    error = error_of(capsys, *fit_words(tmp_path / "points.csv"))
    assert "points.csv" in error
    assert words in error


def test_a_metric_in_per_cent_is_no_share(tmp_path, capsys):
    file = write(tmp_path / "points.csv", X, [100 - 50 * y for y in LOSS], head="flops,auc")
    error = error_of(capsys, *fit_words(file, "auc"), "--complement")
    assert "y auc: 1 - y must be positive" in error
    assert "y is a share below 1, such as 0.72 (not 72 per cent)" in error


@pytest.mark.parametrize("law", ["auto", "power", "power_constant"])
def test_sizes_that_hardly_differ_have_no_law(law):
    """The exponent would be millions, and the factor no number; such a law was chosen before."""
    with pytest.raises(ValueError, match=r"x spans a factor of 1 only, too little for a law of it"):
        fit_scaling_law(1e9 + np.arange(6), LOSS[:6], law=law)


def test_predictions_beyond_the_points_say_how_far(tmp_path, capsys):
    noisy = [y * (1 + 0.01 * (-1) ** place) for place, y in enumerate(LOSS)]
    file = write(tmp_path / "points.csv", X, noisy)
    words = ("--predict", "1e8", "4e10", "1e30", "1e5", "--resamples", "20")
    assert main([*map(str, fit_words(file)), *words, "--output", str(tmp_path / "out")]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("flops ")]
    assert [line.count("beyond") for line in lines] == [0, 1, 1, 1]
    assert lines[1].endswith("10 times beyond the largest point")
    assert "2.5e+20 times beyond the largest point, further than all points span (4e+03)" in lines[2]
    assert lines[3].endswith("10 times beyond the smallest point")
    assert "2.5e+20 times beyond" in (tmp_path / "out/fit.md").read_text()


def test_points_of_two_metrics_are_no_law(tmp_path, capsys):
    both = [value for y in LOSS for value in (1 - y / 2, y)]
    file = write(tmp_path / "points.csv", np.repeat(X, 2), both)
    assert main([*map(str, fit_words(file)), "--resamples", "20"]) == 0
    said = capsys.readouterr().err
    assert "the law explains little of how the points differ; points of several metrics" in said
    file = write(tmp_path / "points.csv", X, LOSS)
    assert main([*map(str, fit_words(file)), "--resamples", "20"]) == 0
    assert "explains little" not in capsys.readouterr().err


def test_two_sizes_that_follow_from_each_other_are_refused(tmp_path, capsys):
    u, v = np.array([25.0, 50, 100, 200, 400]), np.array([1.0, 2, 4, 8, 16])
    y = 0.3 + 1.2 * u**-0.5 + 0.3 * v**-0.7
    with pytest.raises(ValueError, match="u and v follow from each other at all points"):
        fit_surface(u, v, y)
    file = write(tmp_path / "two.csv", u, v, y, head="length,layers,loss")
    words = ("scaling", "fit", file, "--x", "length", "--y", "loss", "--x2")
    assert "two.csv, u length, v layers, y loss: u and v follow from each other" in error_of(capsys, *words, "layers")
    assert "--x and --x2 are both length" in error_of(capsys, *words, "length")
    v[2] = 5.0  # nearly
    file = write(tmp_path / "two.csv", u, v, y, head="length,layers,loss")
    assert main([*map(str, words), "layers", "--resamples", "20"]) == 0
    assert "the two sizes go together (correlation of their logarithms" in capsys.readouterr().err
    error = error_of(capsys, *words, "layers", "--product", "1e9")
    assert "no measured pair of sizes comes near the product 1e+09; accepted: 25 to 6400" in error


def test_a_missing_cell_leaves_a_metric_out_by_name(tmp_path, capsys):
    head = "model,auc,ndcg,revenue"
    file = write(tmp_path / "pairs.csv", "abc", [0.70, 0.72, 0.73], [0.5, "nan", 0.52], [100, 119, 131], head=head)
    assert main(["scaling", "revenue", str(file)]) == 0
    assert "ndcg is left out: no number in line 3" in capsys.readouterr().err
    file = write(tmp_path / "pairs.csv", "abc", [0.70, 0.72, ""], [100, 119, 131], head="model,auc,revenue")
    error = error_of(capsys, "scaling", "revenue", file)
    assert "no column of numbers besides 'revenue'" in error
    assert "auc has none in line 4" in error


def test_a_design_does_not_take_a_loss_for_a_gain(tmp_path, capsys):
    """The law of a loss, and no word of what it is worth: the smallest model was the best."""
    file = write(tmp_path / "points.csv", [1e4, 3e4, 9e4, 2.7e5, 8e5], [0.6, 0.57, 0.55, 0.54, 0.535])
    assert main([*map(str, fit_words(file)), "--output", str(tmp_path / "law"), "--no-plots"]) == 0
    capsys.readouterr()
    sizes = ["312-16-8-1", "312-64-32-1", "312-256-128-1"]
    costs = write(tmp_path / "costs.csv", sizes, [10, 14, 40], head="sizes,machines")
    words = ("scaling", "design", "--fit", tmp_path / "law/fit.json", "--candidates", costs, "--base", sizes[0])
    words = (*words, "--minimal-roi", "1")
    error = error_of(capsys, *words, "--costs", costs)
    assert "loss falls with the FLOPs" in error
    assert "a negative --slope, or --revenue" in error
    assert main([*map(str, words), "--costs", str(costs), "--slope", "-1000"]) == 0
    assert "chosen: 312-256-128-1" in capsys.readouterr().out
    costs = write(tmp_path / "other.csv", sizes, [0, 14, 40], head="sizes,machines")
    assert "other.csv, line 2: machines is 0, accepted: a number above 0" in error_of(
        capsys, *words, "--costs", costs, "--slope", "-1"
    )
    costs = write(tmp_path / "other.csv", sizes, [1, 14, 40], head="sizes,price")
    error = error_of(capsys, *words, "--costs", costs, "--slope", "-1")
    assert "costs need a column sizes or flops, and one machines or cost" in error


def test_two_designs_of_one_name_are_refused(tmp_path, capsys):
    head = "scenario,design,gain,cost"
    file = write(tmp_path / "designs.csv", ["feed"] * 2, ["small"] * 2, [100, 105], [10, 10], head=head)
    error = error_of(capsys, "scaling", "allocate", file, "--budget", "20")
    assert "scenario 'feed': design 'small' is there twice" in error
    plan = tmp_path / "plan.yaml"
    twice = "[{design: small, gain: 3, cost: 1}, {design: small, gain: 4, cost: 1}]"
    plan.write_text(f"budget: 5\nscenarios: [{{name: feed, candidates: {twice}}}]\n")
    assert "scenarios, entry 1: design 'small' is there twice" in error_of(capsys, "scaling", "allocate", plan)


def test_an_unfinished_ladder_that_may_not_train_names_the_way_on(tmp_path, capsys):
    words = ("scaling", "ladder", "scaling/ladder_dnn", "--output-dir", tmp_path)
    assert "run the same command without --no-train" in error_of(capsys, *words, "--no-train", code=1)
