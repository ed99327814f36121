"""`lmctr scaling ladder`: from sizes to a design. Most tests plant finished runs with a known law; one trains."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch
import yaml
from cli_helpers import error_of, read

from lmctr.cli.main import main
from lmctr.scaling.fits import fit_scaling_law
from lmctr.studies.grids.file import check_recipes
from lmctr.studies.scaling import design, ladder_report
from lmctr.studies.scaling.ladder_file import load_ladder
from lmctr.utils.resources import list_resources

SMALL = {
    "data.options.num_rows": 600,
    "data.options.vocab_size": 200,
    "training.use_cpu": True,
    "data.baselines": False,
}
WIDTHS = (2, 8, 16, 32, 64, 128, 256)
COST = {
    "latency_ms": 2000, "base": "w8", "base_machines": 10, "batch_sizes": [1], "max_concurrency": 1, "window_seconds": 0.05,
    "num_windows": 2, "warmup_seconds": 0.01, "min_calls": 30, "confidence": 0.2, "max_seconds": 5,
}  # fmt: skip
LADDER = {
    "name": "planted",
    "recipe": "dnn/synthetic",
    "seeds": [0, 1],
    "set": SMALL,
    "sizes": [{"name": f"w{width}", "set": {"model.hidden_units": [width]}} for width in WIDTHS],
    "metric": "auc",
    "request": {"candidates": 16},
    "fit": {"complement": True, "held_out": 2, "resamples": 20, "law": "power"},
    "cost": COST,
    "revenue": {"slope": 1000},
    "design": {"minimal_roi": 0.0},
    "allocate": {
        "budget": 1e6,
        "minimal_roi": 0,
        "scenarios": [
            {"name": "feed", "slope": 1000, "base_machines": 10},
            {"name": "search", "slope": 300, "set": {"data.options.seed": 5}, "seeds": [3]},
        ],
    },
}


def write_ladder(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ladder.yaml"
    values = {key: value for key, value in {**LADDER, **changes}.items() if value is not None}
    path.write_text(yaml.safe_dump(values, sort_keys=False))
    return path


def planted_auc(flops, seed, scenario):
    """1 - AUC falls as FLOPs^-0.1, or in the other scenario as FLOPs^-0.05; seeds differ by a percent of it."""
    return 1 - (0.8 * flops**-0.1 if scenario is None else 0.6 * flops**-0.05) * (1 + 0.01 * (-1) ** seed)


def plant(ladder, scenario=None):
    """Finished runs as `lmctr train` leaves them, with metrics of a known law."""
    from lmctr import DNNConfig, DNNForCTR

    recipes = check_recipes(ladder.grid)
    for point in ladder.grid.points:
        width = recipes[point.name, ladder.grid.seeds[0]].model["hidden_units"]
        torch.manual_seed(0)
        model = DNNForCTR(DNNConfig(vocab_sizes=[9] * 4, num_numeric=2, embedding_dim=4, hidden_units=width))
        flops = 2 * (24 * width[0] + width[0])
        for seed in ladder.grid.seeds:
            folder = ladder.grid.output_dir / point.name / f"seed-{seed}"
            model.save_pretrained(folder)
            recipes[point.name, seed].save(folder / "recipe.yaml")
            metrics = {"auc": planted_auc(flops, seed, scenario), "num_samples": 60}
            (folder / "metrics.json").write_text(
                json.dumps({"split metrics": {"test": metrics}, "train_seconds": 1.5})
            )
    for name, other in ladder.scenarios.items():
        plant(other, name)


@pytest.fixture(scope="module")
def climbed(tmp_path_factory):
    """A ladder with planted runs that has been climbed. Read it only."""
    folder = tmp_path_factory.mktemp("ladder")
    path = write_ladder(folder)
    plant(load_ladder(path, str(folder / "out")))
    assert main(["scaling", "ladder", str(path), "--output_dir", str(folder / "out")]) == 0
    return path, folder / "out"


def rows_of(path):
    with open(path) as file:
        return list(csv.DictReader(file))


def test_the_planted_law_is_recovered(climbed):
    _, out = climbed
    found = read(out, "ladder.json")
    assert found["fit"]["parameters"]["c0"] == pytest.approx(0.1, rel=1e-6)
    assert found["fit"]["parameters"]["b"] == pytest.approx(0.8, rel=1e-3)
    points, sizes = rows_of(out / "points.csv"), rows_of(out / "sizes.csv")
    assert [row["size"] for row in sizes] == [f"w{width}" for width in WIDTHS]
    assert [float(row["flops_per_sample"]) for row in sizes] == [2 * 25 * width for width in WIDTHS]
    assert [float(row["flops_per_request"]) for row in sizes] == [16 * 2 * 25 * width for width in WIDTHS]
    assert len(points) == 14
    for row in points:
        assert float(row["auc"]) == planted_auc(float(row["flops_per_sample"]), int(row["seed"]), None)
    fit = fit_scaling_law(
        [float(row["flops_per_sample"]) for row in points],
        [float(row["auc"]) for row in points],
        "power",
        complement=True,
    )
    for row in sizes:
        pair = [float(point["auc"]) for point in points if point["size"] == row["size"]]
        assert float(row["mean"]) == pytest.approx(np.mean(pair))
        assert float(row["std"]) == pytest.approx(np.std(pair, ddof=1))
        assert float(row["law"]) == pytest.approx(float(fit.predict(float(row["flops_per_sample"]))))
    assert found["held_out"]["x"] == [50 * 128, 50 * 128, 50 * 256, 50 * 256]
    assert found["held_out"]["fit"]["parameters"]["c0"] == pytest.approx(0.1, rel=1e-6)
    # noise is what the seeds differ in: the standard deviation of +-1 % of 1 - AUC
    assert found["noise"][0].startswith("noise: the standard deviation over seeds is ")


def test_costs_design_and_allocation_are_consistent(climbed):
    _, out = climbed
    found, sizes = read(out, "ladder.json"), rows_of(out / "sizes.csv")
    base = next(row for row in sizes if row["size"] == "w8")
    assert float(base["relative"]) == 1.0
    for row in sizes:
        assert float(row["relative"]) == pytest.approx(float(base["qps"]) / float(row["qps"]))
        assert int(row["machines"]) == np.ceil(10 * float(row["relative"]) * (1 - 1e-12))
    best = None
    for row in sizes:  # minimal ROI 0: any gain is worth its cost, so the largest of the law wins
        gain = 1000 * (float(row["law"]) - float(base["law"]))
        best = max(best or (gain, row["size"]), (gain, row["size"]))
    assert (found["design"]["best"], found["design"]["base"]) == (best[1], "w8")
    assert found["design"]["gain"] == pytest.approx(best[0])
    assert sum(found["design"]["bootstrap_choices"].values()) == 20
    # with so large a budget each scenario takes its best; the other one has its own law and its own runs
    assert {name: entry["design"] for name, entry in found["allocation"]["chosen"].items()} == {"feed": "w256", "search": "w256"}  # fmt: skip
    search = read(out / "scenarios" / "search", "ladder.json")
    assert search["fit"]["parameters"]["c0"] == pytest.approx(0.05, rel=1e-6)
    own = next(row for row in search["sizes"] if row["size"] == "w256")
    assert own["seeds"] == 1
    assert found["allocation"]["chosen"]["search"]["gain"] == pytest.approx(300 * own["law"])
    assert found["allocation"]["chosen"]["search"]["cost"] == pytest.approx(own["relative"])


def test_units_and_what_the_numbers_come_from_are_written(climbed, tmp_path, monkeypatch):
    _, out = climbed
    found = read(out, "ladder.json")
    assert found["revenue"] == {"slope": 1000.0, "intercept": 0.0, "price": 1.0, "unit": ""}
    assert found["cost"] == {
        "base": "w8",
        "base_machines": 10,
        "latency_ms": 2000,
        "quantile": 0.99,
        "confidence": 0.2,
    }
    drawn, costs = [], []
    monkeypatch.setattr(design, "plot_designs", lambda *points, **names: drawn.append(names))
    monkeypatch.setattr(ladder_report, "plot_machine_cost", lambda *points, **names: costs.append(names))
    words = changed(climbed, tmp_path, revenue={"slope": 1000, "unit": "kEUR a day"})
    words.remove("--no-plots")
    assert main(words) == 0
    assert read(tmp_path / "out", "ladder.json")["revenue"]["unit"] == "kEUR a day"
    assert (len(drawn), len(costs)) == (1, 2)  # once each, a scenario with data of its own has costs too
    assert (drawn[0]["gain_name"], drawn[0]["cost_name"]) == (
        "gain (kEUR a day)",
        "machine cost relative to w8 (kEUR a day)",
    )


def test_sizes_of_the_front_have_their_flops(climbed):
    _, out = climbed
    text = (out / "report.md").read_text()
    front = text[text.index("| design | FLOPs | gain |") :]
    assert "| w256 | 12.80k |" in front
    assert "chosen: w256, 12.80k FLOPs: gain" in text


def test_the_report(climbed):
    path, out = climbed
    text = (out / "report.md").read_text()
    for part in (
        "# planted",
        "| size | flops_per_sample | parameters | test auc | seeds | law | requests/s |",
        "p99 of at most 2000 ms at 20% confidence",
        "held out: the 2 largest sizes",
        "## Design under a return on machine cost",
        "chosen: w256, 12.80k FLOPs: gain",
        "choices of 20 bootstrap laws: w256 100%",
        "## Allocation between scenarios",
        f"lmctr scaling ladder {path}",
    ):
        assert part in text
    for name in ("law.png", "cost.png", "pareto.png"):
        assert (out / name).stat().st_size > 5_000
        assert f"({name})" in text


def test_a_second_call_measures_nothing_anew(climbed, capsys):
    path, out = climbed
    before = read(out, "ladder.json")
    assert main(["scaling", "ladder", str(path), "--output_dir", str(out), "--no-plots"]) == 0
    text = capsys.readouterr().out
    assert text.count("kept result") == 14
    assert "0 to go" in text
    after = read(out, "ladder.json")
    assert {**after, "command": ""} == {**before, "command": ""}


def test_missing_runs(climbed, tmp_path, capsys):
    path, out = climbed
    shutil.copytree(out, tmp_path / "out")
    words = ["scaling", "ladder", str(path), "--output_dir", str(tmp_path / "out"), "--no-train", "--no-plots"]
    for name in ("w2/seed-0", "w64/seed-0", "w64/seed-1"):
        shutil.rmtree(tmp_path / "out" / "runs" / name)
    assert main(words) == 1
    assert "3 of 21 runs are not finished" in capsys.readouterr().err
    assert main([*words, "--allow-missing"]) == 0
    assert "not finished, and left out: w2 seed 0, w64 seed 0, w64 seed 1" in capsys.readouterr().out
    sizes = rows_of(tmp_path / "out" / "sizes.csv")
    assert [(row["size"], row["seeds"]) for row in sizes[:3]] == [("w2", "1"), ("w8", "2"), ("w16", "2")]
    assert len(sizes) == 6
    assert main([*words, "--dry-run"]) == 0
    assert "not started" in capsys.readouterr().out


def test_what_is_refused_or_only_listed_writes_nothing(climbed, tmp_path, capsys):
    path, out = climbed
    words = ["scaling", "ladder", str(path), "--output_dir", str(tmp_path / "new"), "--no-plots"]
    assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count("not started") == 21
    assert not (tmp_path / "new").exists()
    refused = changed(climbed, tmp_path, set={**SMALL, "training.learning_rate": 0.5})
    copied = tmp_path / "out"
    before = {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()}
    assert main(refused) == 2
    assert "run folders of" in capsys.readouterr().err
    assert {file: file.read_bytes() for file in copied.rglob("*") if file.is_file()} == before
    grid = yaml.safe_load((out / "grid.yaml").read_text())  # that of a ladder that was climbed
    assert [point["name"] for point in grid["points"]] == [f"w{width}" for width in WIDTHS]
    assert grid["output_dir"] == str(out / "runs")


def changed(climbed, tmp_path, *words, **changes):
    """The words of a command on the planted runs with another file."""
    _, out = climbed
    if not (tmp_path / "out").exists():
        shutil.copytree(out, tmp_path / "out", ignore=shutil.ignore_patterns("ladder.json"))
    path = write_ladder(tmp_path, **changes)
    return ["scaling", "ladder", str(path), "--output_dir", str(tmp_path / "out"), "--no-plots", *words]


def last_error(capsys, words, code=2):
    assert main(words) == code
    return capsys.readouterr().err.splitlines()[-1]


def test_what_is_infeasible_is_an_error_and_the_law_is_kept(climbed, tmp_path, capsys):
    error = last_error(capsys, changed(climbed, tmp_path, design={"minimal_roi": 1e9, "relative": False}), code=3)
    assert "no candidate of 7 reaches ROI 1e+09" in error
    kept = read(tmp_path / "out", "ladder.json")
    assert kept["fit"]["parameters"]["c0"] == pytest.approx(0.1, rel=1e-6)
    assert kept["design"] is None
    error = last_error(capsys, changed(climbed, tmp_path, allocate={**LADDER["allocate"], "budget": 0.001}))
    assert "budget 0.001 is too small" in error
    kept = read(tmp_path / "out", "ladder.json")
    assert kept["design"] is not None
    assert kept["allocation"] is None
    error = last_error(capsys, changed(climbed, tmp_path, cost={**COST, "latency_ms": 0.0001}))
    assert "the base model w8 has no machine cost: no load meets the latency limit of 0.0001 ms" in error
    error = last_error(capsys, changed(climbed, tmp_path, metric="revenue_ratio"))
    assert "has no test metric 'revenue_ratio'; it has auc, num_samples" in error
    grows = {"fit": {"law": "bnsl"}, "allocate": None}
    error = last_error(capsys, changed(climbed, tmp_path, **grows))
    assert "no law was fitted to" in error
    assert "law='bnsl' falls with x, but y grows" in error


def test_runs_of_other_data_are_no_law(climbed, tmp_path, capsys):
    out, words = tmp_path / "out", changed(climbed, tmp_path, "--no-train")
    file = out / "runs" / "w32" / "seed-1" / "metrics.json"
    kept = file.read_text()
    file.write_text(kept.replace('"num_samples": 60', '"num_samples": 59'))
    assert "w32/seed-1 was measured on other samples than w2: num_samples 59 and 60" in last_error(capsys, words)
    file.write_text(kept)
    for seed in (0, 1):
        (file.parent.with_name(f"seed-{seed}") / "data.json").write_text(json.dumps({"fingerprint": str(seed)}))
    assert "w32: " in (said := last_error(capsys, words))
    assert "seed-1 were trained on different data" in said


def test_a_return_that_no_size_reaches_has_an_exit_code_of_its_own(climbed, tmp_path, capsys):
    words = changed(climbed, tmp_path, design={"minimal_roi": 1.0, "base": "w256"})  # the law knows no better size
    assert main(words) == 3
    assert "ROI 1 is not reached by any design: no design gains; the size in use stays" in capsys.readouterr().out
    found = read(tmp_path / "out", "ladder.json")
    assert (found["design"]["is_reached"], found["design"]["highest_roi"]) == (False, None)
    assert found["allocation"]["chosen"].keys() == {"feed", "search"}  # what comes after the design is written too
    assert "is not reached by any design" in (tmp_path / "out" / "report.md").read_text()
    reached = read(climbed[1], "ladder.json")["design"]
    assert reached["is_reached"] is True
    assert reached["highest_roi"] is None or reached["highest_roi"] > 0  # None: a size that gains costs no more


def test_a_grid_between_the_sizes(climbed, tmp_path, capsys):
    grid = {"num_sparse_features": 6, "num_dense": 0, "embedding_step": 4, "width_step": 8, "max_embedding_dim": 4, "num_hidden_layers": 1, "max_first_width": 512}  # fmt: skip
    words = changed(climbed, tmp_path, design={"minimal_roi": 0.0, "grid": {**grid, "ratio": 1000}}, allocate=None)
    assert main(words) == 0
    text = capsys.readouterr().out
    assert (
        "3 of the grid's 3 sizes lie within the measured FLOPs" in text
    )  # 24-8-1, 24-16-1, 24-24-1: no wider than 24
    assert "10 designs" in text
    error = last_error(capsys, changed(climbed, tmp_path, design={"minimal_roi": 0.0, "grid": {"widthstep": 8}}))
    assert "design.grid:" in error
    assert "widthstep" in error


def test_what_is_better_is_the_metrics_own_not_the_kind_of_fit(climbed, tmp_path, capsys):
    """A growing metric under a law of the metric itself, not of 1 - metric: each step of the planted law is better."""
    plain = {"cost": None, "design": None, "allocate": None, "revenue": None}
    words = changed(climbed, tmp_path, fit={"law": "power", "resamples": 0}, **plain)
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "finds no gain" not in said
    assert "no better" not in said
    for path in (tmp_path / "out" / "runs").glob("*/*/metrics.json"):
        found = json.loads(path.read_text())
        test = found["split metrics"]["test"]
        test["log_loss"] = test["auc"]
        path.write_text(json.dumps(found))
    assert main(changed(climbed, tmp_path, metric="log_loss", fit={"law": "power", "resamples": 0}, **plain)) == 0
    said = capsys.readouterr().out
    assert "the law finds no gain from size" in said
    assert "6 of 6 steps to the next larger size make the mean no better" in said


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"sizes": LADDER["sizes"][:3]}, "sizes is a list of at least 4"),
        ({"metrik": "auc"}, "unknown key 'metrik'"),
        ({"metric": 3}, "metric is 3"),
        ({"x": "flops"}, "x is 'flops', accepted: flops_per_sample"),
        ({"fit": {"complemant": True}}, "unknown key 'complemant'"),
        ({"fit": {"law": "cubic"}}, "fit.law is 'cubic'"),
        ({"cost": {"base": "w8"}}, "cost: latency_ms is missing"),
        ({"cost": {**COST, "base": "w88"}}, "cost.base is 'w88', which is no size; did you mean"),
        ({"cost": {**COST, "quantile": 2.0}}, "cost: quantile must be between 0 and 1"),
        ({"cost": {**COST, "base_machines": 0}}, "cost.base_machines is 0.0"),
        ({"cost": {**COST, "split": True}}, "cost.split is for families of ads' impressions, which have halves of user and ad; the size 'w2' is of dnn"),
        ({"cost": None}, "design needs machine costs"),
        ({"design": {"minimal_roi": "high"}}, "minimal_roi is 'high', accepted: a number"),
        ({"design": {"minimal_roi": 1, "grid": {}}, "x": "parameters"}, "knows its sizes' flops_per_sample only"),
        ({"allocate": {"budget": 1, "scenarios": []}}, "allocate: scenarios is"),
        ({"allocate": {"scenarios": [{"name": "a", "slope": 1}]}}, "budget is missing"),
        ({"allocate": {"budget": 1, "scenarios": [{"name": "a", "slope": 1}] * 2}}, "two scenarios have one name"),
        ({"allocate": {"budget": 1, "scenarios": [{"name": "a/b", "slope": 1}]}}, "becomes a folder"),
        ({"metric": "aucc"}, "metric is 'aucc', which no run has; did you mean 'auc'?"),
        ({"fit": {"held_out": 4}}, "fit.held_out is 4, accepted for 7 sizes: up to 3, as a law needs 4 others"),
        ({"fit": {"held_out": -1}}, "fit: held_out must be at least 0, got -1"),
        ({"fit": {"level": 95.0}}, "fit: level must be between 0 and 1, got 95"),
        ({"fit": {"resamples": 1}}, "fit: resamples must be 0 (no band) or at least 2, got 1"),
        ({"fit": {"resamples": -5}}, "fit: resamples must be 0"),
        ({"fit": {"law": "power", "breaks": 2}}, "fit: breaks belongs to law bnsl, got law power"),
        ({"fit": {"law": "bnsl", "breaks": 1}, "sizes": LADDER["sizes"][:6]}, "fit: law='bnsl' with 1 breaks: 6 parameters need 8 distinct values of x, there are 6"),
        ({"fit": {"law": "bnsl", "breaks": 1, "held_out": 1}}, "fit, 1 of 7 sizes held out: law='bnsl' with 1 breaks: 6 parameters need 8"),
        ({"fit": {"law": "power_constant", "allow_overfit": True}, "sizes": LADDER["sizes"][:4]}, "fit: law='power_constant' with 0 breaks: 3 parameters need 5"),
        ({"fit": {"restarts": 0}}, "fit: restarts is 0, accepted: from 1"),
        ({"fit": {"hops": 0}}, "fit: hops is 0, accepted: from 1"),
        ({"fit": {"seed": -1}}, "fit: seed is -1, accepted: from 0"),
        ({"fit": {"criterion": "bic"}}, "fit.criterion is 'bic', accepted: aicc, loo"),
        ({"request": {"candidates": 0}}, "request: candidates must be at least 1, got 0"),
        ({"cost": {**COST, "base_machines": float("inf")}}, "cost.base_machines is inf"),
        ({"cost": {**COST, "threads": 0}}, "cost: threads must be at least 1, got 0"),
        ({"revenue": {"price": 0.0}}, "revenue: price is 0.0, accepted: a number above 0"),
        ({"revenue": {"price": -1.0}}, "revenue: price is -1.0, accepted: a number above 0"),
        ({"revenue": {"slope": float("nan")}}, "revenue: slope is nan, accepted: a number"),
        ({"metric": "log_loss"}, "revenue.slope is 1000, but a lower log_loss is the better one: give a negative slope"),
        ({"metric": "log_loss", "revenue": None}, "revenue.slope is 1, but a lower log_loss is the better one"),
        ({"metric": "normalized_entropy", "design": None}, "allocate: slope of feed is 1000, but a lower normalized_entropy"),
        ({"design": {"minimal_roi": float("nan")}}, "design: minimal_roi is nan, accepted: a number"),
        ({"design": {"minimal_roi": 1, "grid": {"foo": 1}}}, "design.grid: unknown key 'foo'"),
        ({"design": {"minimal_roi": 1, "grid": {"ratio": 0}}}, "design.grid: ratio must be at least 1, got 0"),
        ({"allocate": {"budget": -4, "scenarios": [{"name": "a", "slope": 1}]}}, "budget is -4, accepted: a number from 0"),
        ({"allocate": {"budget": 1, "scenarios": [{"name": "a", "slope": 1, "price": -3}]}}, "price is -3, accepted"),
        ({"allocate": {"budget": 1, "scenarios": [{"name": "a", "slope": float("inf")}]}}, "slope is inf, accepted"),
        (
            {"allocate": {"budget": 1, "scenarios": [{"name": "a", "candidates": [{"design": "x", "gain": 1, "cost": -4}]}]}},
            "entry 1: scenario 'a', x: gain and cost must be finite and the cost not negative, got 1.0 and -4.0",
        ),
        ({"set": {**SMALL, "training.learning_rate": 0}}, "point 'w2': training.learning_rate is 0, accepted in a grid: a number"),
        ({"set": {"training.seed": 1}}, "training.seed is not set in a grid"),
    ],
)  # fmt: skip
def test_strict_files(changes, match, tmp_path, capsys):
    words = ("scaling", "ladder", write_ladder(tmp_path, **changes), "--output_dir", tmp_path / "o")
    assert match in error_of(capsys, *words)
    assert match in error_of(capsys, *words, "--dry-run")
    assert not (tmp_path / "o").exists()


@pytest.mark.parametrize("name", [name for name in list_resources("recipes") if name.startswith("scaling/")])
def test_shipped_ladders_are_valid(name, tmp_path):
    ladder = load_ladder(name, str(tmp_path))
    for each in (ladder, *ladder.scenarios.values()):
        assert len(check_recipes(each.grid)) == len(each.grid.points) * len(each.grid.seeds)
    assert len(ladder.grid.points) >= 8


@pytest.mark.slow
def test_a_ladder_is_trained(tmp_path, capsys):
    path = write_ladder(
        tmp_path, seeds=[0], sizes=LADDER["sizes"][:4], cost=None, design=None, allocate=None, revenue=None,
        fit={"law": "power", "complement": True, "resamples": 0}, set={**SMALL, "training.stage2_epochs": 1},
    )  # fmt: skip
    words = ["scaling", "ladder", str(path), "--output_dir", str(tmp_path / "out"), "--no-plots"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "4 runs in" in text
    assert "0 done, 4 to go" in text
    rows = rows_of(tmp_path / "out" / "points.csv")
    assert len(rows) == 4
    assert all(0 < float(row["auc"]) < 1 for row in rows)
    assert float(rows[1]["flops_per_sample"]) == 2 * (39 * 8 * 8 + 8)
    assert "noise: one seed per size" in text
    assert main(words) == 0
    assert "4 done, 0 to go" in capsys.readouterr().out
