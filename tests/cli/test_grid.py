"""`lmctr grid run|report`: strict files, runs that are skipped, resumed and isolated, reports that invent nothing."""

import csv
import json
import os
import shutil
import signal
import time
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest
import warm
import yaml
from cli_helpers import TINY, error_of, read
from scipy import stats

from lmctr.cli.main import main
from lmctr.evaluation.metrics import auc
from lmctr.evaluation.significance import delong_test, paired_t_test
from lmctr.runs.recipe import load_recipe
from lmctr.studies.grids.baselines import configuration
from lmctr.studies.grids.file import check_recipes, load_grid
from lmctr.studies.grids.options import GridReportOptions, GridRunOptions
from lmctr.studies.grids.report import report_grid
from lmctr.studies.grids.run import PRELOADED, GridRunner, run_grid
from lmctr.studies.grids.state import BEGUN, DIFFERENT, DONE, NEW, inspect_runs
from lmctr.utils.lock import owned
from lmctr.utils.resources import find_resource, list_resources

SMALL_BERT = TINY["model"]["backbone"] | {"num_hidden_layers": 1}
SMALL = {
    **TINY,
    "model": {**TINY["model"], "backbone": SMALL_BERT, "sink_kind": "none", "sink_signal": "none"},
    "training": {**TINY["training"], "stage1_epochs": 0, "stage2_epochs": 1},
}
GRID = {
    "name": "small",
    "recipe": "small.yaml",
    "seeds": [0, 1],
    "compare_to": "plain",
    "points": [
        {"name": "plain", "label": "no sinks"},
        {"name": "sink", "label": "sinks", "set": {"model.sink_kind": "sink", "model.sink_signal": "recency"}},
    ],
}


def write_grid(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "small.yaml").write_text(yaml.safe_dump(SMALL))
    path = folder / "grid.yaml"
    path.write_text(yaml.safe_dump({**GRID, **changes}, sort_keys=False))
    return path


def states(path, output_dir):
    grid = load_grid(path, str(output_dir))
    return {run.name: run.state for run in inspect_runs(grid, check_recipes(grid))}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A grid that has been trained. Read it only."""
    folder = tmp_path_factory.mktemp("grid")
    path = write_grid(folder)
    assert main(["grid", "run", str(path), "--output_dir", str(folder / "runs")]) == 0
    return path, folder / "runs"


# ---- the file -----------------------------------------------------------------------------------------------------


def test_axes_are_crossed_and_later_values_win(tmp_path):
    path = write_grid(
        tmp_path,
        set={"data.num_behaviors": 3, "training.learning_rate": 0.1},
        axes={
            "k": [{"name": "k4", "set": {"data.num_behaviors": 4}}, {"name": "k5", "set": {"data.num_behaviors": 5}}],
            "lr": [{"name": "slow", "label": "slowly", "set": {"training.learning_rate": 0.01}}],
        },
    )
    grid = load_grid(path)
    assert [point.name for point in grid.points] == [
        "k4-slow-plain",
        "k4-slow-sink",
        "k5-slow-plain",
        "k5-slow-sink",
    ]
    last = grid.points[-1]
    assert last.compare_to == "k5-slow-plain"
    assert last.label == "k5 slowly sinks"
    assert last.axes == {"k": "k5", "lr": "slow"}
    assert grid.points[0].compare_to is None
    recipe = check_recipes(grid, [("training.learning_rate", "0.5")])[last.name, 1]
    assert recipe.data["num_behaviors"] == 5
    assert recipe.training["seed"] == 1
    assert recipe.training["learning_rate"] == 0.5  # the command line comes last


def test_axes_alone_and_recipes_by_axis(tmp_path):
    path = write_grid(tmp_path, axes={"size": [{"name": "a", "recipe": "other.yaml"}, {"name": "b"}]}, compare_to="a")
    values = yaml.safe_load(path.read_text())
    del values["points"]
    path.write_text(yaml.safe_dump(values))
    (tmp_path / "other.yaml").write_text(yaml.safe_dump({**SMALL, "data": {**SMALL["data"], "num_behaviors": 2}}))
    grid = load_grid(path)
    assert [(point.name, point.compare_to) for point in grid.points] == [("a", None), ("b", "a")]
    recipes = check_recipes(grid)
    assert (recipes["a", 0].data["num_behaviors"], recipes["b", 0].data["num_behaviors"]) == (2, 5)


def test_a_grid_states_what_differs_from_its_base(tmp_path):
    write_grid(tmp_path, set={"data.num_behaviors": 3})
    other = tmp_path / "other.yaml"
    other.write_text(
        "base: grid.yaml\nname: other\nset: {training.learning_rate: 0.1}\npoints: [{name: alone}]\ncompare_to: null\n"
    )
    grid = load_grid(other)
    assert (grid.name, grid.seeds, [point.name for point in grid.points]) == ("other", [0, 1], ["alone"])
    assert grid.points[0].values == {"data.num_behaviors": 3, "training.learning_rate": 0.1}
    other.write_text("base: other.yaml\n")
    with pytest.raises(ValueError, match="leads back to"):
        load_grid(other)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": {"name": "synthetic"}}, "is a recipe, which one run is trained by: lmctr train"),
        ({"seed": [0]}, "unknown key 'seed' in .*did you mean 'seeds'"),
        ({"points": [{"name": "a", "sets": {}}]}, "unknown key 'sets' in .*entry 1; did you mean 'set'"),
        ({"points": [{"name": "a"}, {"name": "a"}], "compare_to": None}, "two points are named 'a'"),
        ({"points": [{"label": "a"}], "compare_to": None}, "entry 1: name is missing"),
        ({"points": [{"name": "../a"}], "compare_to": None}, "the name '../a' becomes a folder"),
        (
            {"points": [{"name": "a", "set": {"training.seed": 3}}]},
            "training.seed is not set in a grid; the grid's `seeds`",
        ),
        ({"points": [{"name": "a", "set": {"lr": 3}}]}, "'lr' is no dotted recipe key"),
        ({"seeds": [0, 0]}, "seeds holds 0 twice"),
        ({"seeds": "0"}, "seeds is '0', accepted: a list of whole numbers"),
        ({"compare_to": "plane"}, "compare_to of point 'plain' is 'plane', which is no point; did you mean 'plain'"),
        ({"recipe": "smal.yaml"}, "smal.yaml"),
        ({"points": None}, "a grid needs points, or axes, or both"),
        ({"axes": {"k": []}}, "axes.k is \\[\\], accepted: a list"),
        (
            {"points": [{"name": "a", "set": {"training.lerning_rate": 3}}], "compare_to": None},
            "point 'a': unknown key 'lerning_rate' in training \\(set of point 'a'\\); did you mean 'learning_rate'",
        ),
        (
            {"points": [{"name": "a", "set": {"data.num_behaviors": "x"}}], "compare_to": None},
            "data.num_behaviors is 'x'",
        ),
    ],
)
def test_bad_grids_are_told_before_anything_trains(tmp_path, capsys, changes, message):
    import re

    path = write_grid(tmp_path, **changes)
    error = error_of(capsys, "grid", "run", path, "--output_dir", tmp_path / "runs")
    assert re.search(message, error), error
    assert not (tmp_path / "runs").exists()


def test_a_folder_is_no_grid(tmp_path, capsys):
    (tmp_path / "recipe.yaml").write_text("{}")
    for verb in (["grid", "run"], ["grid", "report"]):
        assert f"error: {tmp_path} is a folder; a grid is a YAML file\n" == error_of(capsys, *verb, tmp_path)
    assert f"a recipe is a YAML file: give {tmp_path / 'recipe.yaml'}" in error_of(capsys, "train", tmp_path)


def test_a_wrong_override_is_blamed_on_the_command_line(tmp_path, capsys):
    error = error_of(capsys, "grid", "run", write_grid(tmp_path), "--training.lerning_rate", "1")
    assert "unknown key 'lerning_rate' in training (the command line)" in error
    assert "no point of" in error_of(capsys, "grid", "run", write_grid(tmp_path), "--only", "sinks")
    assert "--max-minutes must be" in error_of(capsys, "grid", "run", write_grid(tmp_path), "--max-minutes", "0")


def is_grid(name):
    return "\npoints:" in find_resource("recipes", name).read_text()


@pytest.mark.parametrize("name", [name for name in list_resources("recipes") if is_grid(name)])
def test_shipped_grids_are_valid(name):
    grid = load_grid(name)
    assert check_recipes(grid).keys() == {(point.name, seed) for point in grid.points for seed in grid.seeds}
    assert any(point.compare_to for point in grid.points)


# ---- running ------------------------------------------------------------------------------------------------------


def test_points_are_normal_run_folders(finished, tmp_path, recipe_file):
    path, runs = finished
    assert states(path, runs) == dict.fromkeys(("plain seed 0", "sink seed 0", "plain seed 1", "sink seed 1"), DONE)
    run = runs / "sink" / "seed-1"
    recipe = yaml.safe_load((run / "recipe.yaml").read_text())
    assert recipe["model"]["sink_signal"] == "recency"
    assert recipe["training"]["seed"] == 1
    assert not (run / "checkpoints").exists()
    # The same run by `lmctr train` gives the same scores.
    words = ["--model.sink_kind=sink", "--model.sink_signal=recency", "--training.seed=1", "--data.baselines=false"]
    assert main(["train", str(path.parent / "small.yaml"), "--output_dir", str(tmp_path / "run"), *words]) == 0
    assert read(tmp_path / "run", "metrics.json")["split metrics"] == read(run, "metrics.json")["split metrics"]
    assert (runs / "sink" / "seed-1.log").read_text().startswith("$ lmctr train ")


def test_baselines_once_per_data(finished):
    _, runs = finished
    (path,) = (runs / "baselines").glob("*.json")
    written = json.loads(path.read_text())
    assert written["seeds"].keys() == {"0", "1"}
    assert written["training_samples"] == 320
    assert written["seeds"]["0"].keys() == {"counting", "logistic_regression", "gradient_boosting"}
    assert read(runs / "plain" / "seed-0", "metrics.json")["baselines"] == {}


def test_baselines_depend_on_what_they_see_of_a_table():
    """Another treatment of a table's fields is another baseline; another way of writing a user's history is not."""

    def of(name, *overrides):
        return configuration(load_recipe(name, overrides))

    assert of("dnn/synthetic") != of("dnn/synthetic", ("data.features", "{C1: {min_count: 9}}"))
    assert of("ctr_sink/quickstart") == of("ctr_sink/quickstart", ("data.num_behaviors", "5"))
    assert of("ctr_sink/quickstart") != of("ctr_sink/quickstart", ("data.seed", "9"))
    assert of("din/synthetic") == of("astro/synthetic", ("data.tasks", "[label, like]"))  # of the first task
    assert of("din/synthetic") != of("din/synthetic", ("data.tasks", "[like, label]"))


def test_seeds_on_other_data_are_no_point(finished, tmp_path, capsys):
    path, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    about = tmp_path / "runs" / "sink" / "seed-1" / "data.json"
    about.write_text(about.read_text().replace(read(about.parent, "data.json")["fingerprint"], "another"))
    said = error_of(capsys, "grid", "report", str(path), "--output_dir", str(tmp_path / "runs"))
    assert "sink: " in said
    assert "seed-0 and" in said
    assert "were trained on different data, so that a mean over them says nothing" in said


def test_what_is_of_other_samples_is_told(finished, tmp_path, capsys):
    """Data that changed between points, or after the baselines were measured."""
    path, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    (kept,) = (tmp_path / "runs" / "baselines").glob("*.json")
    written = json.loads(kept.read_text())
    written["seeds"]["1"]["counting"]["test"]["num_samples"] += 7
    kept.write_text(json.dumps(written))
    scores = tmp_path / "runs" / "sink" / "seed-0" / "predictions" / "test.parquet"
    pq.write_table(pq.read_table(scores).slice(1), scores)
    words = [str(path), "--output_dir", str(tmp_path / "runs"), "--resamples", "100"]
    assert main(["grid", "report", *words, "--output", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert "Not of the same samples:" in text
    assert f"- the baselines in {kept} are left out: their num_samples is " in text
    assert "counting baseline" not in text
    assert "baseline" not in (tmp_path / "small.csv").read_text()
    assert (
        f"- {tmp_path / 'runs' / 'plain' / 'seed-0'} and {scores.parent.parent} were not scored on the same samples"
        in text
    )


def test_baselines_of_models_that_are_refitted_are_too(tmp_path):
    recipe = {
        "data": {
            "name": "synthetic_table",
            "options": {"num_rows": 600, "num_categorical": 3, "num_numeric": 1, "num_pairs": 2},
        },
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [4]},
        "training": {"epochs": 1, "use_cpu": True},
    }
    (tmp_path / "table.yaml").write_text(yaml.safe_dump(recipe))
    points = [{"name": name, "set": {"training.refit": name == "again"}} for name in ("once", "again")]
    grid = {"name": "two", "recipe": "table.yaml", "seeds": [0], "points": points}
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert main(["grid", "run", str(tmp_path / "grid.yaml"), "--output-dir", str(tmp_path / "runs"), "--quiet"]) == 0
    options = GridReportOptions(str(tmp_path / "grid.yaml"), output_dir=str(tmp_path / "runs"), resamples=100)
    sections = report_grid(options).sections
    fitted = {section.points[0].point.name: section.num_fitted for section in sections}
    assert fitted == {"once": 480, "again": 540}
    assert len({section.baselines["field_counting"][0]["log_loss"] for section in sections}) == 2


def test_baselines_are_those_of_the_data(tmp_path, monkeypatch):
    """Grids of one recipe in one folder, whose file lies elsewhere or has changed, do not share baselines; of the same data they do."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        ad = draw.integers(0, 9, 400)
        pacsv.write_csv(pa.table({"ad": ad, "click": (ad + draw.integers(0, 9, 400) > 8) * 1}), f"{name}.csv")
    fields = [{"name": "ad", "type": "categorical"}]
    data = {"name": "rows.csv", "options": {"label": "click", "fields": fields}}
    recipe = {"data": data, "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [4]}}
    Path("table.yaml").write_text(yaml.safe_dump(recipe | {"training": {"epochs": 1, "use_cpu": True}}))

    def measured(name, point):
        shutil.copy(f"{name}.csv", "rows.csv")
        grid = {"name": point, "recipe": "table.yaml", "seeds": [0], "points": [{"name": point}]}
        Path(f"{point}.yaml").write_text(yaml.safe_dump(grid))
        assert main(["grid", "run", f"{point}.yaml", "--output-dir", "runs", "--quiet"]) == 0

    def told(point):
        (section,) = report_grid(GridReportOptions(f"{point}.yaml", output_dir="runs", resamples=100)).sections
        return section.baselines["field_counting"][0]["log_loss"]

    measured("a", "first")
    before = told("first")
    measured("b", "second")
    measured("a", "third")
    assert len(list(Path("runs/baselines").glob("*.json"))) == 2
    assert told("first") == told("third") == before != told("second")


def test_points_that_differ_in_the_place_of_their_data_have_their_own_baselines(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    for name in ("a", "b"):
        ad = draw.integers(0, 9, 400)
        Path(name).mkdir()
        pacsv.write_csv(pa.table({"ad": ad, "click": (ad + draw.integers(0, 9, 400) > 8) * 1}), f"{name}/rows.csv")
    shutil.copytree("a", "c")
    schema = {"name": "ads", "files": "rows.csv", "label": "click", "fields": [{"name": "ad", "type": "categorical"}]}
    Path("ads.yaml").write_text(yaml.safe_dump(schema))
    recipe = {"data": {"name": "ads.yaml"}, "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [4]}}
    Path("table.yaml").write_text(yaml.safe_dump(recipe | {"training": {"epochs": 1, "use_cpu": True}}))
    points = [{"name": name, "set": {"data.path": name}} for name in ("a", "b", "c")]
    grid = {"name": "days", "recipe": "table.yaml", "seeds": [0], "points": points}
    Path("grid.yaml").write_text(yaml.safe_dump(grid))
    words = ["grid.yaml", "--output-dir", "runs"]
    assert main(["grid", "run", *words]) == 0
    assert len(list(Path("runs/baselines").glob("*.json"))) == 2
    sections = report_grid(GridReportOptions("grid.yaml", output_dir="runs", resamples=100)).sections
    assert [[result.point.name for result in section.points] for section in sections] == [["a", "c"], ["b"]]
    assert not any(section.notes for section in sections)
    first, other = [section.baselines["field_counting"][0]["log_loss"] for section in sections]
    assert first != other
    assert [section.title.rpartition(" (")[2] for section in sections] == ["data.path: a)", "data.path: b)"]
    capsys.readouterr()
    assert main(["grid", "run", *words]) == 0
    assert "baselines of" not in capsys.readouterr().out  # kept
    shutil.rmtree("runs/baselines")
    assert main(["grid", "run", *words]) == 0
    assert len(list(Path("runs/baselines").glob("*.json"))) == 2


def test_finished_runs_are_skipped_and_other_recipes_refused(finished, tmp_path, capsys):
    path, runs = finished
    before = {file: file.stat().st_mtime_ns for file in runs.rglob("*")}
    capsys.readouterr()
    assert main(["grid", "run", str(path), "--output_dir", str(runs)]) == 0
    assert "4 done, 0 to go" in capsys.readouterr().out
    assert {f: t for f, t in before.items() if f.is_file() and f.name != ".grid.lock"} == {
        f: f.stat().st_mtime_ns for f in runs.rglob("*") if f.is_file() and f.name != ".grid.lock"
    }
    error = error_of(capsys, "grid", "run", path, "--output_dir", runs, "--training.learning_rate", "0.5")
    assert "4 run folders" in error
    assert "training.learning_rate: 0.001 before, 0.5 now" in error
    # Where the data lie is no difference; a value that changes them is.
    grid = load_grid(path, str(runs))
    moved = check_recipes(grid, [("data.path", "/elsewhere")])
    assert {run.state for run in inspect_runs(grid, moved)} == {DONE}
    fewer = check_recipes(grid, [("data.max_train_samples", "100")])
    assert {run.state for run in inspect_runs(grid, fewer)} == {DIFFERENT}


def test_a_key_that_came_later_counts_with_its_default(finished, tmp_path):
    path, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    for stored in (tmp_path / "runs").glob("*/seed-*/recipe.yaml"):
        values = yaml.safe_load(stored.read_text())
        del values["data"]["trailing_sink"]
        stored.write_text(yaml.safe_dump(values))
    assert set(states(path, tmp_path / "runs").values()) == {DONE}


def test_a_failing_point_does_not_stop_the_others(tmp_path, capsys):
    # Found only when the model is built.
    bad = {"name": "bad", "set": {"model.backbone.vocab_size": 10}}
    path = write_grid(tmp_path, points=[bad, GRID["points"][0]], seeds=[0], compare_to=None)
    assert main(["grid", "run", str(path), "--output_dir", str(tmp_path / "runs")]) == 1
    printed = capsys.readouterr().out
    assert "[1/2] bad seed 0: FAILED: model.backbone: vocab_size is 10, but the tokenizer has" in printed
    assert "[2/2] plain seed 0: test AUC 0." in printed
    assert printed.splitlines()[-1].startswith("failed: bad seed 0: model.backbone: vocab_size is 10, but")
    assert main(["grid", "report", str(path), "--output_dir", str(tmp_path / "runs")]) == 0
    assert "- bad seed 0: failed: model.backbone: vocab_size is 10, but" in capsys.readouterr().out
    # Nothing was trained, so the corrected point may use the folder.
    path = write_grid(tmp_path, points=[{"name": "bad"}], seeds=[0], compare_to=None)
    assert main(["grid", "run", str(path), "--output_dir", str(tmp_path / "runs")]) == 0
    assert states(path, tmp_path / "runs") == {"bad seed 0": DONE}


def test_max_minutes_only_and_dry_run(tmp_path, capsys):
    path, runs = write_grid(tmp_path), tmp_path / "runs"
    words = ["grid", "run", str(path), "--output_dir", str(runs)]
    assert main([*words, "--dry-run"]) == 0
    assert capsys.readouterr().out.count(NEW) == 4
    assert not runs.exists()
    assert main([*words, "--max-minutes", "0.000001"]) == 1
    assert "4 runs were not started" in capsys.readouterr().out
    assert main([*words, "--only", "pl*", "--keep-checkpoints"]) == 0
    assert set(states(path, runs).items()) >= {("plain seed 0", DONE), ("sink seed 0", NEW)}
    assert (runs / "plain" / "seed-0" / "checkpoints").is_dir()


def test_in_python(finished, tmp_path):
    """The functions behind the verb, with the same options; what is named to be loaded before a fork is there."""
    path, runs = finished
    printed = []
    options = GridReportOptions(str(path), output_dir=str(runs), resamples=200, output=str(tmp_path / "out"))
    report = report_grid(options, printed.append)
    assert [result.point.name for result in report.results] == ["plain", "sink"]
    assert printed == [report.markdown()] == [(tmp_path / "out" / "small.md").read_text()]
    assert run_grid(GridRunOptions(str(path), output_dir=str(runs))) == 0
    assert all(find_spec(module) for module in PRELOADED)


def test_a_script_without_a_guard_is_told(tmp_path):
    write_grid(tmp_path, seeds=[0], points=[{"name": "plain"}])
    script = tmp_path / "script.py"
    script.write_text(
        "from lmctr.studies.grids.options import GridRunOptions\nfrom lmctr.studies.grids.run import run_grid\n"
        "print(run_grid(GridRunOptions('grid.yaml', output_dir='runs')))\n"
    )
    ran = warm.run(str(script), folder=tmp_path)
    assert ran.stderr.endswith('put its work under `if __name__ == "__main__":`\n')
    assert "failed: plain seed 0: exit code 1 before its first line" in ran.stdout
    assert ran.stdout.endswith("\n1\n")


def test_a_second_grid_run_is_kept_out(tmp_path, capsys, monkeypatch):
    fcntl = pytest.importorskip("fcntl")
    monkeypatch.setattr("lmctr.utils.lock._PATIENCE", 0.0)
    path, runs = write_grid(tmp_path), tmp_path / "runs"
    runs.mkdir()
    with open(runs / ".grid.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert "another `lmctr grid run`" in error_of(capsys, "grid", "run", path, "--output_dir", runs)


def test_what_another_grid_run_finished_while_this_one_waited_stays(tmp_path, capsys, monkeypatch):
    path, runs = write_grid(tmp_path, points=[GRID["points"][0]], seeds=[0], compare_to=None), tmp_path / "runs"
    words = ["grid", "run", str(path), "--output_dir", str(runs)]

    def late(*asked):
        monkeypatch.undo()
        assert main(words) == 0
        return owned(*asked)

    monkeypatch.setattr("lmctr.studies.grids.run.owned", late)
    assert main(words) == 0
    assert "1 done, 0 to go" in capsys.readouterr().out
    assert states(path, runs) == {"plain seed 0": DONE}


def test_a_training_by_hand_in_a_points_folder_keeps_its_files(tmp_path, capsys, monkeypatch):
    """It has no checkpoint yet, so that the grid takes its own refused start for one that came to nothing."""
    monkeypatch.setattr("lmctr.utils.lock._PATIENCE", 0.0)
    path, runs = write_grid(tmp_path, points=[GRID["points"][0]], seeds=[0], compare_to=None), tmp_path / "runs"
    words, folder = ["grid", "run", str(path), "--output_dir", str(runs)], runs / "plain" / "seed-0"
    runner = GridRunner(load_grid(path, str(runs)), GridRunOptions(str(path)))
    with owned(folder, "`lmctr train`"):
        runner.recipes["plain", 0].save(folder / "recipe.yaml")
        assert main(words) == 1
        assert "failed: plain seed 0: another `lmctr train` is at work in" in capsys.readouterr().out
        assert (folder / "recipe.yaml").is_file()
    assert main(words) == 0
    assert states(path, runs) == {"plain seed 0": DONE}


@pytest.mark.slow
def test_the_launcher_starts_a_process_of_its_own(tmp_path):
    path, runs = write_grid(tmp_path, seeds=[1]), tmp_path / "runs"
    words = ["grid", "run", str(path), "--output_dir", str(runs), "--only", "plain", "--launcher", warm.python()]
    assert main(words) == 0
    assert states(path, runs)["plain seed 1"] == DONE


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    """A grid of one longer run, and the scores of that run. Read it only."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    changes = {"seeds": [0], "points": [GRID["points"][0]], "compare_to": None, "set": {"training.stage2_epochs": 6}}
    path = write_grid(folder, **changes)
    assert main(["grid", "run", str(path), "--output_dir", str(folder / "runs")]) == 0
    return path, read(folder / "runs" / "plain" / "seed-0", "metrics.json")["split metrics"]


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize("way", ["ctrl-c", "term"])
def test_an_interrupted_run_goes_on(uninterrupted, tmp_path, way):
    """The interrupted run is continued from its checkpoint and ends with the scores of a run that was not interrupted."""
    path, whole = uninterrupted
    runs = tmp_path / "runs"
    words = ["grid", "run", str(path), "--output_dir", str(runs)]
    process = warm.start("-m", "lmctr", *words, own_group=True)
    run, deadline = runs / "plain" / "seed-0", time.monotonic() + 120
    while not list(run.glob("checkpoints/checkpoint-*/checkpoint_complete.json")) and time.monotonic() < deadline:
        assert process.poll() is None, process
        time.sleep(0.01)
    if way == "ctrl-c":  # a terminal signals the whole group
        os.killpg(process.pid, signal.SIGINT)
    else:
        process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == (130 if way == "ctrl-c" else 143), process
    before = (runs / "plain" / "seed-0.log").read_text()
    assert "the step (at the end of an epoch: the measurement) is ended to save a checkpoint" in before
    time.sleep(0.5)
    assert (runs / "plain" / "seed-0.log").read_text() == before  # no child is left at work
    assert states(path, runs) == {"plain seed 0": BEGUN}
    assert main(words) == 0
    assert "resuming from" in (runs / "plain" / "seed-0.log").read_text()
    assert read(run, "metrics.json")["split metrics"] == whole


IMPORTING = """
import os, signal, sys, threading
from multiprocessing import forkserver
from lmctr.studies.grids import run

del sys.modules["lmctr.utils.frozen"]  # the server, a fork, shall import it at its end
run.PRELOADED = ("slow",)
try:
    {}
except KeyboardInterrupt:
    print("interrupted")
forkserver._forkserver._stop()
"""


@pytest.mark.skipif(os.name == "nt", reason="signals of POSIX")
@pytest.mark.parametrize(
    ("line", "said", "seconds"),
    [
        (
            "threading.Timer(0.5, os.killpg, (0, signal.SIGINT)).start(); run.in_child(os.getpid, ())",
            "interrupted",
            1.5,
        ),
        ("print('ended with', run.in_child(signal.raise_signal, (signal.SIGINT,)))", "ended with 1", 0.1),
        ("print('ended with', run.in_child(signal.raise_signal, (signal.SIGTERM,)))", "ended with 1", 0.1),
    ],
    ids=["grid", "run", "ended run"],
)
def test_ctrl_c_while_the_server_of_runs_imports_is_the_grids_alone(line, said, seconds, tmp_path):
    """It leaves no traceback of the import, and a run still hears a Ctrl-C of its own, or the SIGTERM that its grid sends, as one."""
    (tmp_path / "slow.py").write_text(f"import time\ntime.sleep({seconds})\nprint('imported', flush=True)")
    done = warm.run("-c", IMPORTING.format(line), folder=tmp_path, own_group=True)
    assert set(done.out.splitlines()) == {"imported", said}
    assert "__import__(modname)" not in done.err


def test_runs_find_the_libraries_of_their_baselines_imported():
    """Each would import them anew; that the server of runs imports what stands in its list, the test above shows."""
    wanted = [
        "sklearn.ensemble",
        "sklearn.linear_model",
        "scipy.stats",
        "lmctr.runs.inputs.text",
        "lmctr.evaluation.baselines",
    ]
    listed = "from lmctr.studies.grids.run import PRELOADED; list(map(__import__, PRELOADED))"
    done = warm.fresh(f"{listed}; import sys; print([name for name in {wanted} if name not in sys.modules])")
    assert (done.returncode, done.stdout, done.stderr) == (0, "[]\n", "")


def test_a_disk_that_is_full_leaves_no_empty_word_of_a_failure(tmp_path, monkeypatch):
    """The run fails as the disk is full, and so does the file that would say so."""
    path, runs = write_grid(tmp_path, seeds=[0]), tmp_path / "runs"
    runner = GridRunner(load_grid(path, str(runs)), GridRunOptions(str(path)), say=lambda line: None)
    run = runner.plan()[0]

    def full(path):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lmctr.utils.files.sync", full)
    monkeypatch.setattr(runner, "_train", lambda run, resume: 1)
    with pytest.raises(OSError, match="No space"):
        runner._one(run, 0, [run], time.monotonic())
    assert not run.failure.exists()
    assert run.why_missing() == NEW


# ---- reports ------------------------------------------------------------------------------------------------------


def scores(runs, point, seed):
    import pyarrow.parquet as pq

    table = pq.read_table(runs / point / f"seed-{seed}" / "predictions" / "test.parquet")
    return table["label"].to_numpy(), table["logit"].to_numpy()


def test_report(finished, tmp_path, capsys):
    path, runs = finished
    capsys.readouterr()
    words = ["grid", "report", str(path), "--output_dir", str(runs), "--output", str(tmp_path), "--resamples", "200"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert (tmp_path / "small.md").read_text().strip() == text.strip()
    values = {(p, s): auc(*scores(runs, p, s)) for p in ("plain", "sink") for s in (0, 1)}
    sink = [values["sink", 0], values["sink", 1]]
    gap = np.subtract(sink, [values["plain", 0], values["plain", 1]])
    over = paired_t_test(sink, [values["plain", 0], values["plain", 1]])
    row = next(line for line in text.splitlines() if line.startswith("| sinks |"))
    assert f"| 2/2 | {np.mean(sink):.4f} ± {np.std(sink, ddof=1):.4f} |" in row
    least = stats.t.ppf(0.975, 1) * np.std(gap, ddof=1) / np.sqrt(2)
    assert f"| {gap.mean():+.4f} (no sinks) | {least:.4f} | {over.p_value:.2g} |" in row
    baseline = json.loads(next((runs / "baselines").glob("*.json")).read_text())["seeds"]["0"]["counting"]["test"][
        "auc"
    ]
    assert f"| counting baseline | 2 | {baseline:.4f} ± 0.0000 |" in text
    assert "Missing" not in text
    assert "Best reachable test AUC" in text

    with open(tmp_path / "small.csv") as file:
        rows = list(csv.DictReader(file))
    assert [(row["point"], row["seed"]) for row in rows[:4]] == [
        ("plain", "0"),
        ("plain", "1"),
        ("sink", "0"),
        ("sink", "1"),
    ]
    assert float(rows[2]["auc"]) == pytest.approx(values["sink", 0], abs=1e-5)
    assert {row["point"] for row in rows[4:]} == {
        "baseline:counting",
        "baseline:logistic_regression",
        "baseline:gradient_boosting",
    }
    with open(tmp_path / "small_tests.csv") as file:
        tests = list(csv.DictReader(file))
    labels, first = scores(runs, "sink", 0)
    delong = delong_test(labels, first, scores(runs, "plain", 0)[1])
    (found,) = [t for t in tests if (t["test"], t["metric"], t["seed"]) == ("DeLong", "auc", "0")]
    assert float(found["p_value"]) == pytest.approx(delong.p_value, rel=1e-4)
    assert {t["point"] for t in tests} == {"sink"}
    assert {t["metric"] for t in tests} == {"auc", "log_loss"}


def test_contrasts(finished, tmp_path, capsys):
    path, runs = finished
    beside = path.with_name("contrasts.yaml")
    beside.write_text("base: grid.yaml\ncompare_to: null\ncontrasts: [[plain, sink]]\n")
    words = ["grid", "report", str(beside), "--output_dir", str(runs), "--output", str(tmp_path), "--resamples", "100"]
    assert main(words) == 0
    values = {p: [auc(*scores(runs, p, s)) for s in (0, 1)] for p in ("plain", "sink")}
    gap = np.subtract(values["plain"], values["sink"])
    over = paired_t_test(values["plain"], values["sink"])
    least = stats.t.ppf(0.975, 1) * np.std(gap, ddof=1) / np.sqrt(2)
    text = capsys.readouterr().out
    assert f"| no sinks | 2 | {gap.mean():+.4f} (sinks) | {least:.4f} | {over.p_value:.2g} |" in text
    with open(tmp_path / "small_tests.csv") as file:
        assert {(row["point"], row["compare_to"]) for row in csv.DictReader(file)} == {("plain", "sink")}
    assert load_grid(beside).select(["plain"]).contrasts == []
    axes = {"k": [{"name": "k4", "set": {"data.num_behaviors": 4}}, {"name": "k5", "set": {"data.num_behaviors": 5}}]}
    crossed = load_grid(write_grid(tmp_path, axes=axes, contrasts=[["plain", "sink"], ["k4-sink", "k5-sink"]]))
    assert crossed.contrasts == [("k4-plain", "k4-sink"), ("k4-sink", "k5-sink"), ("k5-plain", "k5-sink")]
    with pytest.raises(ValueError, match="contrasts names 'sinks', which is no point; did you mean 'sink'"):
        load_grid(write_grid(tmp_path, contrasts=[["plain", "sinks"]]))


def test_a_report_invents_nothing(finished, tmp_path, capsys):
    """Missing runs are listed and left out of means; tests pair the seeds that both sides have."""
    path, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    shutil.rmtree(tmp_path / "runs" / "plain" / "seed-1")
    shutil.rmtree(tmp_path / "runs" / "baselines")
    assert main(["grid", "report", str(path), "--output_dir", str(tmp_path / "runs"), "--resamples", "200"]) == 0
    text = capsys.readouterr().out
    assert "Missing (1 of 4 runs):\n\n- plain seed 1: not started\n" in text
    assert "baseline |" not in text
    one = auc(*scores(runs, "plain", 0))
    assert f"| no sinks | 1/2 | {one:.4f} |" in text
    sink = next(line for line in text.splitlines() if line.startswith("| sinks |"))
    assert f"| {auc(*scores(runs, 'sink', 0)) - one:+.4f} (no sinks) | - |" in sink
    # A run of another recipe counts as missing, with the difference named.
    words = ["--output_dir", str(tmp_path / "runs"), "--resamples", "100", "--model.num_sink_buckets", "9"]
    beside = path.with_name("contrast_of_nothing.yaml")
    beside.write_text("base: grid.yaml\ncontrasts: [[plain, sink]]\n")
    assert main(["grid", "report", str(beside), *words]) == 0
    text = capsys.readouterr().out
    assert "| no sinks | 0 | - (sinks) | - | - | - | - |" in text
    assert "- sink seed 0: holds another recipe: model.num_sink_buckets: 8 before, 9 now" in text
    assert "| sinks | 0/2 | - | - | - | - |" in text


def test_too_few_draws_are_told_before_the_runs_are_read(tmp_path, capsys):
    error = error_of(capsys, "grid", "report", write_grid(tmp_path), "--resamples", "50")
    assert "--resamples 50: accepted: 100 or more" in error


def test_points_on_other_samples_are_not_tested(finished, tmp_path, capsys):
    path, runs = finished
    shutil.copytree(runs, tmp_path / "runs")
    fewer = {"name": "fewer", "set": {"data.max_eval_samples": 25}}
    path = write_grid(tmp_path, points=[*GRID["points"], fewer])
    assert main(["grid", "run", str(path), "--output_dir", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["grid", "report", str(path), "--output_dir", str(tmp_path / "runs"), "--resamples", "200"]) == 0
    text = capsys.readouterr().out
    titles = [line.partition(": ") for line in text.splitlines() if line.startswith("## ")]
    assert [before for before, _, _ in titles] == ["## synthetic, test split"] * 2  # each with its own baselines
    assert titles[0][2].endswith(" users (data.max_eval_samples: not set)")
    assert titles[1][2].endswith(" users (data.max_eval_samples: 25)")
    assert "- fewer: not comparable with plain:" in text
    assert text.count("counting baseline") == 2


def test_families_of_other_views_are_paired_on_the_same_samples(tmp_path, capsys):
    """A tabular and a sequence family on the same log: one section, one set of baselines, tests of equal samples."""
    others = [{"name": name, "recipe": f"{name}.yaml"} for name in ("fields", "events")]
    path = write_grid(tmp_path, seeds=[0], points=[GRID["points"][0], *others])
    data = {**SMALL["data"], "split": "time", "fractions": [0.8, 0.1, 0.1]}
    for key in ("num_behaviors", "feedback", "prompt"):
        del data[key]
    fields = {"data": data, "model": {"family": "deepfm"}, "training": {"stage2_epochs": 1, "use_cpu": True}}
    (tmp_path / "fields.yaml").write_text(yaml.safe_dump(fields))
    events = {**fields, "model": {"family": "din"}}
    (tmp_path / "events.yaml").write_text(yaml.safe_dump(events))
    runs = tmp_path / "runs"
    assert main(["grid", "run", str(path), "--output_dir", str(runs)]) == 0
    assert len(list((runs / "baselines").glob("*.json"))) == 1
    capsys.readouterr()
    assert main(["grid", "report", str(path), "--output_dir", str(runs), "--resamples", "200"]) == 0
    text = capsys.readouterr().out
    assert text.count("\n## ") == 1
    assert "FLOPs per sample" not in text  # only the sequence family counts them
    for name in ("fields", "events"):
        (row,) = [line for line in text.splitlines() if line.startswith(f"| {name} |")]
        labels, logits = scores(runs, name, 0)
        delong = delong_test(labels, logits, scores(runs, "plain", 0)[1])
        assert f"| {delong.difference:+.4f} (no sinks) | - | - | {delong.p_value:.2g} |" in row
