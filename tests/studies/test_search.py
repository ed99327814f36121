"""`lmctr search`: what is chosen, that nothing but validation chooses it, and that a killed search goes on as it would have."""

import json
import re
import socket

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from lmctr.cli.main import main
from lmctr.runs.recipe import load_recipe
from lmctr.runs.training import Training
from lmctr.studies.options import SearchOptions
from lmctr.studies.search import Search
from lmctr.studies.search_space import read_space
from lmctr.utils import lock
from lmctr.utils.files import read_yaml
from lmctr.utils.tables import read_csv

optuna = pytest.importorskip("optuna")

RECIPE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 1200, "num_categorical": 3, "num_numeric": 1, "num_pairs": 2, "vocab_size": 60},
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
    "training": {
        "epochs": 1,
        "learning_rate": 1e-5,
        "per_device_train_batch_size": 128,
        "use_cpu": True,
        "seed": 0,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "eval_steps": 3,
        "save_steps": 3,
    },
}
SPACE = {
    "training.learning_rate": {"low": 1e-5, "high": 1e-1, "log": True},
    "model.hidden_units": [[8], [16, 8]],
    "training.per_device_train_batch_size": {"low": 64, "high": 192, "step": 64},
}


@pytest.fixture
def files(tmp_path):
    for name, content in (("recipe", RECIPE), ("space", SPACE)):
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(content))
    return tmp_path


def options(files, folder="search", **more):
    more = {"trials": 4, "no_compare": True, **more}
    return SearchOptions(str(files / "recipe.yaml"), str(files / "space.yaml"), output_dir=str(files / folder), **more)


def evaluation_of(values):
    """What a trial gives: a pure function of its values, so that a search takes no time."""
    rate, width, size = (values[key] for key in SPACE)
    return 0.6 + 0.1 * (width == [16, 8]) - abs(rate - 1e-2) - size / 1e5


@pytest.fixture
def quick(monkeypatch):
    """Trials that report three evaluations of a formula; returns the list of what was tried."""
    tried = []

    def evaluations(self, watch):
        recipe = self.recipe.resolved()
        values = {key: recipe[key.split(".")[0]][key.split(".")[1]] for key in SPACE}
        tried.append((values, recipe))
        for step in range(3):
            state = type("State", (), {"epoch": 1.0})
            watch.on_evaluate(None, state, None, {"eval_auc": evaluation_of(values) - 0.1 + 0.05 * step})

    monkeypatch.setattr(Training, "evaluations", evaluations)
    return tried


def test_a_real_search_trains_compares_and_writes(files, capsys):
    words = [str(files / "recipe.yaml"), "--space", str(files / "space.yaml"), "--trials", "3", "--seeds", "1", "2"]
    assert main(["search", *words, "--output-dir", str(files / "out"), "--data.baselines", "false"]) == 0
    printed = capsys.readouterr().out
    trials = read_csv(files / "out" / "trials.csv", text=["state", "model.hidden_units"], numbers=["auc", "seconds"])
    assert len(trials) == 3
    best = load_recipe(files / "out" / "best.yaml")
    line = next(line for line in printed.splitlines() if line.startswith("best "))
    assert f"{best.training['learning_rate']:.4g}" in line
    assert f"{max(trial['auc'] for trial in trials):.4f}" in line
    comparison = json.loads((files / "out" / "comparison.json").read_text())
    assert [run["seed"] for run in comparison["groups"]["best"]["runs"]] == [1, 2]
    assert comparison["groups"]["best"]["mean"]["auc"] > comparison["groups"]["start"]["mean"]["auc"]
    assert "training.learning_rate" in comparison["recipe_differences"]
    stored = read_yaml(files / "out" / "best-1" / "recipe.yaml")
    assert stored["training"]["save_strategy"] != "no"
    assert not (files / "out" / "trial").exists()
    again = main(["search", *words, "--output-dir", str(files / "out"), "--data.baselines", "false"])
    assert again == 0
    assert "trial 1 of" not in capsys.readouterr().out


def test_the_best_on_validation_is_written(files, quick):
    result = Search(options(files, trials=12)).run()
    values, _ = max((evaluation_of(values), number) for number, (values, _) in enumerate(quick))
    assert result.score == pytest.approx(values)
    best = load_recipe(result.recipe).resolved()
    assert evaluation_of({key: best[key.split(".")[0]][key.split(".")[1]] for key in SPACE}) == pytest.approx(values)
    assert best["data"]["baselines"] is True
    assert best["training"]["save_strategy"] == "steps"  # the search's own settings of trials are not kept
    assert quick[0][0]["training.learning_rate"] == 1e-5  # the start comes first
    for _, recipe in quick:
        assert recipe["data"]["baselines"] is False
        assert recipe["training"]["save_strategy"] == "no"


def test_a_killed_search_makes_the_trials_that_it_would_have_made(files, quick, monkeypatch):
    Search(options(files, "whole", trials=9)).run()
    whole = [values for values, _ in quick]
    quick.clear()
    inner = Training.evaluations

    def killed(self, watch):
        if len(quick) == 5:
            raise KeyboardInterrupt
        return inner(self, watch)

    monkeypatch.setattr(Training, "evaluations", killed)
    with pytest.raises(KeyboardInterrupt):
        Search(options(files, "cut", trials=9)).run()
    monkeypatch.setattr(Training, "evaluations", inner)
    Search(options(files, "cut", trials=9)).run()
    assert [values for values, _ in quick] == whole
    tables = [(files / name / "trials.csv").read_text().splitlines() for name in ("whole", "cut")]
    assert len(tables[0]) == len(tables[1]) == 10


def test_a_cut_journal_goes_on_and_a_damaged_search_is_named(files, quick):
    Search(options(files)).run()
    folder = files / "search"
    journal, rows = (folder / "study.journal").read_bytes(), (folder / "trials.csv").read_bytes()
    (folder / "trials.csv").unlink()
    (folder / "study.journal").write_bytes(journal[:-9])  # a full disk, or a kill
    for left in (
        "study.journal.lock",
        "study.journal.lock0.rename",
        f"search.yaml.{socket.gethostname()}-999999999-1.tmp",
    ):
        (folder / left).touch()
    Search(options(files)).run()
    assert {path.name for path in folder.iterdir()} == {"search.yaml", "study.journal", "trials.csv", "best.yaml"}
    assert len((folder / "trials.csv").read_bytes().splitlines()) == len(rows.splitlines())
    (folder / "study.journal").write_bytes(b"{" + journal)
    with pytest.raises(ValueError, match=r"study\.journal is damaged .*; restore it, or give another --output-dir"):
        Search(options(files)).run()
    (files / "cut").mkdir()
    (files / "cut" / f"search.yaml.{socket.gethostname()}-999999999-1.tmp").touch()
    Search(options(files, "cut")).run()
    (folder / "search.yaml").write_text("x")
    with pytest.raises(ValueError, match=r"search\.yaml is damaged: it says no start"):
        Search(options(files)).run()
    Search(options(files, overwrite=True)).run()


def test_trials_below_the_median_end_early(files, quick, capsys):
    Search(options(files, trials=14)).run()
    rows = read_csv(files / "search" / "trials.csv", text=["state"], numbers=["evaluations"])
    pruned = [row for row in rows if row["state"] == "pruned"]
    assert pruned
    assert all(row["evaluations"] < 3 for row in pruned)
    assert "ended early" in capsys.readouterr().out
    Search(options(files, "all", trials=14, no_pruning=True)).run()
    rows = read_csv(files / "all" / "trials.csv", text=["state"], numbers=["evaluations"])
    assert {row["state"] for row in rows} == {"complete"}


def test_values_that_cannot_be_trained_do_not_end_the_search(files, quick, monkeypatch, capsys):
    inner = Training.evaluations

    def broken(self, watch):
        if len(quick) == 1:
            quick.append(({}, {}))
            raise ValueError("logits hold NaN")
        return inner(self, watch)

    monkeypatch.setattr(Training, "evaluations", broken)
    Search(options(files)).run()
    assert "failed: logits hold NaN" in capsys.readouterr().out
    assert "logits hold NaN" in (files / "search" / "trials.csv").read_text()
    assert len(quick) == 4
    monkeypatch.setattr(Training, "evaluations", lambda self, watch: 1 / 0)
    with pytest.raises(ZeroDivisionError):  # nothing was ever trained: an error of the start
        Search(options(files, "other")).run()


def test_a_search_whose_first_trial_diverges_goes_on(files, capsys):
    """The same command would draw the same values for ever; what cannot be read at all is still an error."""
    (files / "space.yaml").write_text(yaml.safe_dump({"training.learning_rate": [1e-2, 1e6]}))
    Search(options(files, trials=4, overrides=[("training.seed", "1")])).run()
    rows = read_csv(files / "search" / "trials.csv", text=["state"])
    states = [row["state"] for row in rows]
    assert (states[0], len(states), set(states)) == ("fail", 4, {"fail", "complete"})
    assert "the training diverged" in capsys.readouterr().out
    assert load_recipe(files / "search" / "best.yaml").training["learning_rate"] == 1e-2


def test_a_range_ends_with_its_last_step(files, recwarn):
    space = {
        "training.weight_decay": {"low": 0, "high": 0.3, "step": 0.07},
        "model.embedding_dim": {"low": 2, "high": 9, "step": 4},
        "training.warmup_steps": {"low": 0.0, "high": 0.3, "step": 0.1},
    }
    (files / "space.yaml").write_text(yaml.safe_dump(space, sort_keys=False))
    decay, dim, warmup = read_space(files / "space.yaml")
    assert [list(each.corners()) for each in (decay, dim, warmup)] == [[0, 0.28], [2, 6], [0.0, 0.3]]
    assert (decay.encode(0.3), decay.encode(0.28), dim.encode(9), dim.encode(6)) == (None, 0.28, None, 6)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    drawn = {round(each.suggest(study.ask()), 9) for each in (decay, dim, warmup) for _ in range(60)}
    assert drawn == {0.0, 0.07, 0.14, 0.21, 0.28, 2, 6, 0.1, 0.2, 0.3}
    assert not [warning for warning in recwarn if "divisible" in str(warning.message)]


def test_another_start_or_space_is_refused(files, quick):
    Search(options(files)).run()
    about = files / "search" / "search.yaml"  # written before `epochs` was the name in kept recipes
    about.write_text(about.read_text().replace("    epochs: ", "    stage1_epochs: 0\n    stage2_epochs: "))
    assert "stage2_epochs" in about.read_text()
    Search(options(files, trials=5)).run()
    assert len(quick) == 5
    with pytest.raises(ValueError, match="holds a search with another start"):
        Search(options(files, overrides=[("training.epochs", "2")])).run()
    (files / "space.yaml").write_text(yaml.safe_dump(SPACE | {"model.embedding_dim": [4, 8]}))
    with pytest.raises(ValueError, match="holds a search with another space"):
        Search(options(files)).run()
    Search(options(files, overwrite=True, trials=1)).run()
    assert len(quick) == 6


@pytest.mark.parametrize("name", ["epochs", "stage2_epochs"])
def test_either_name_of_epochs_holds_the_start(files, quick, name, capsys):
    (files / "space.yaml").write_text(yaml.safe_dump(SPACE | {f"training.{name}": [1, 2]}))
    Search(options(files, trials=1)).run()
    assert "the start itself is no trial" not in capsys.readouterr().out
    assert quick[0][1]["training"]["epochs"] == 1


def test_other_data_end_a_search(files, tmp_path):
    """Before anything is trained on them, and with nothing lost."""
    rng = np.random.default_rng(0)
    columns = {"site": rng.integers(0, 9, 600), "price": rng.normal(size=600), "click": rng.integers(0, 2, 600)}
    table = pd.DataFrame(columns)
    table.to_csv(tmp_path / "clicks.csv", index=False)
    fields = [{"name": "site", "type": "categorical"}, {"name": "price", "type": "numeric"}]
    data = {"name": str(tmp_path / "clicks.csv"), "options": {"label": "click", "fields": fields}, "baselines": False}
    (files / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"data": data}))
    (files / "space.yaml").write_text(yaml.safe_dump({"training.learning_rate": [1e-5, 1e-3]}))
    Search(options(files, trials=1)).run()
    before = (files / "search" / "trials.csv").read_text()
    table[:400].to_csv(tmp_path / "clicks.csv", index=False)
    with pytest.raises(ValueError, match=r"the data of .*search have changed since its first trial"):
        Search(options(files, trials=6)).run()
    assert (files / "search" / "trials.csv").read_text() == before
    table.to_csv(tmp_path / "clicks.csv", index=False)
    assert len(read_csv_rows(Search(options(files, trials=2)).run(), files)) == 2


def test_shares_of_negatives_are_searched(files):
    """Each trains on samples of its own, and all are measured on the same."""
    (files / "space.yaml").write_text(yaml.safe_dump({"data.negative_share": [None, 0.5, 0.3]}))
    for trials in (4, 6):  # the second goes on
        Search(options(files, trials=trials)).run()
    rows = read_csv(files / "search" / "trials.csv", text=["state", "data.negative_share"], numbers=["auc"])
    assert len(rows) == 6
    assert {row["state"] for row in rows} == {"complete"}
    assert len({row["data.negative_share"] for row in rows}) > 1


def read_csv_rows(result, files):
    return read_csv(files / "search" / "trials.csv", text=["state"], numbers=["auc"])


def test_the_precision_of_a_trial_is_its_own(files, monkeypatch):
    """`tf32` holds for the whole process as soon as arguments are made."""
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)
    before, found = torch.backends.fp32_precision, {}

    def evaluations(self, watch):
        found[self.args.tf32] = torch.backends.fp32_precision
        watch.on_evaluate(None, type("State", (), {"epoch": 1.0}), None, {"eval_auc": 0.6})

    monkeypatch.setattr(Training, "evaluations", evaluations)
    (files / "space.yaml").write_text(yaml.safe_dump({"training.tf32": [None, True, False]}))
    Search(options(files, trials=8)).run()
    assert found == {None: before, True: "tf32", False: "ieee"}
    assert torch.backends.fp32_precision == before


def test_the_same_values_are_tried_once(files, quick):
    (files / "space.yaml").write_text(yaml.safe_dump({"model.hidden_units": [[8], [16, 8]]}))
    for key in ("training.learning_rate", "training.per_device_train_batch_size"):
        assert key in SPACE
    overrides = [("training.seed", str(2**32 - 2))]  # those of trials go on behind it
    Search(options(files, trials=7, no_pruning=True, overrides=overrides)).run()
    assert sorted(values["model.hidden_units"] for values, _ in quick) == [[8], [16, 8]]
    rows = read_csv(files / "search" / "trials.csv", text=["state", "model.hidden_units"], numbers=["auc"])
    assert len(rows) == 7
    assert len({(row["model.hidden_units"], row["auc"]) for row in rows}) == 2


def test_more_trials_after_a_comparison(files, capsys, monkeypatch):
    """Where another recipe is the best then, its runs take the place of the old best's; those of the start stay."""
    gains = iter([0.6, 0.7, 0.65, 0.9, 0.8])

    def evaluations(self, watch):
        watch.on_evaluate(None, type("State", (), {"epoch": 1.0}), None, {"eval_auc": next(gains)})

    monkeypatch.setattr(Training, "evaluations", evaluations)
    Search(options(files, trials=2, no_compare=False, seeds=[1])).run()
    first = read_yaml(files / "search" / "best-1" / "recipe.yaml")
    stays = (files / "search" / "start-1" / "metrics.json").stat().st_mtime_ns
    Search(options(files, trials=5, no_compare=False, seeds=[1])).run()
    second = read_yaml(files / "search" / "best-1" / "recipe.yaml")
    assert second["training"]["learning_rate"] != first["training"]["learning_rate"]
    assert (
        second["training"]["learning_rate"] == read_yaml(files / "search" / "best.yaml")["training"]["learning_rate"]
    )
    assert (files / "search" / "start-1" / "metrics.json").stat().st_mtime_ns == stays
    assert (files / "search" / "comparison.md").is_file()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        ({}, "must map recipe keys to values"),
        ({"training.save_strategy": ["no", "epoch"]}, "training.save_strategy is not searched: trials do without"),
        (
            {"training.boosting_share": [0.5, "auto"]},
            "trials have no share chosen for them, which auto is; give numbers",
        ),
        ({"learning_rate": [1, 2]}, "'learning_rate' is no dotted recipe key"),
        ({"training.learning_rate": [1e-3]}, "accepted: a list of two or more different values"),
        ({"training.learning_rate": {"low": 1, "high": 1}}, "low must be below high"),
        ({"training.learning_rate": {"low": 0, "high": 1, "log": True}}, "needs a low above 0"),
        ({"training.learning_rate": {"low": 0, "hihg": 1}}, "hihg"),
        ({"training.learning_rate": {"low": 0.1, "high": float("inf")}}, "high inf, accepted: finite numbers"),
        ({"training.learning_rate": {"low": float("nan"), "high": 1}}, "low is nan and high 1, accepted: finite"),
        ({"model.embedding_dim": {"low": 4, "high": 16, "step": 13}}, "step is 13, accepted: .* up to high - low"),
        ({"training.seed": [0, 1]}, "the comparison those of --seeds"),
        ({"data.max_eval_samples": [10, 20]}, "it decides what trials are measured on"),
        ({"data.options.num_rows": [10, 20]}, "it decides what trials are measured on"),
        ({"data.labels": [["click"], ["buy", "click"]]}, "it decides what trials are measured on"),
        ({"data.tasks": [["label"], ["buy", "label"]]}, "it decides what trials are measured on"),
    ],
)
def test_spaces_that_are_refused(tmp_path, space, message):
    (tmp_path / "space.yaml").write_text(yaml.safe_dump(space))
    with pytest.raises(ValueError, match=message):
        read_space(tmp_path / "space.yaml", ("max_eval_samples", "options"))


def test_values_are_checked_before_anything_is_trained(files, quick, capsys):
    (files / "space.yaml").write_text(yaml.safe_dump({"model.hidden_unit": [[8], [16]]}))
    words = ["search", str(files / "recipe.yaml"), "--space", str(files / "space.yaml")]
    assert main([*words, "--output-dir", str(files / "out")]) == 2
    error = capsys.readouterr().err
    assert "hidden_units" in error
    assert "space.yaml" in error
    assert not (files / "out").exists()


def test_values_that_arguments_refuse_are_told_with_the_space(files, quick, capsys):
    space = {"training.ema_decay": [0.9, 2.0]}
    (files / "space.yaml").write_text(yaml.safe_dump(space))
    words = ["search", str(files / "recipe.yaml"), "--space", str(files / "space.yaml")]
    assert main([*words, "--output-dir", str(files / "out")]) == 2
    assert re.search(r"space\.yaml: training\.ema_decay: .*2\.0", capsys.readouterr().err)
    assert quick == []
    assert not (files / "out").exists()
    space = {
        "training.embedding_learning_rate": [1e-2, 1e-3],
        "training.embedding_optimizer": ["lazy_adam", "rowwise_adagrad"],
    }
    (files / "space.yaml").write_text(yaml.safe_dump(space))
    Search(options(files))  # a rate without effect on the start's optimiser, and with one on those of the space


def test_the_start_is_checked_as_it_is(files, quick):
    (files / "recipe.yaml").write_text(yaml.safe_dump(RECIPE | {"training": RECIPE["training"] | {"save_steps": 2}}))
    with pytest.raises(ValueError, match=r"eval_steps=3.* and save_steps=2.* must be equal"):
        Search(options(files))
    assert quick == []


def test_ranges_are_whole_where_both_ends_are(tmp_path):
    (tmp_path / "space.yaml").write_text("a: 1")
    path = tmp_path / "space.yaml"
    path.write_text("training.epochs: {low: 1, high: 5, step: 2}\ntraining.weight_decay: {low: 0, high: 0.5}\n")
    whole, real = read_space(path)
    assert (whole.is_whole, real.is_whole) == (True, False)
    assert (whole.encode(3), whole.encode(2), whole.encode(1.5), real.encode(0.25), real.encode(1)) == (
        3,
        None,
        None,
        0.25,
        None,
    )
    fixed = optuna.trial.FixedTrial({"training.epochs": 3, "training.weight_decay": 0.25})
    assert (whole.suggest(fixed), real.suggest(fixed)) == (3, 0.25)


def test_a_second_search_leaves_the_first_alone(files, quick, monkeypatch):
    monkeypatch.setattr(lock, "_PATIENCE", 0.1)  # nobody is just being killed
    trial = files / "search" / "trial" / "checkpoint"
    trial.mkdir(parents=True)
    with (
        lock.owned(files / "search", "`lmctr search`", ".search.lock"),
        pytest.raises(ValueError, match=r"another `lmctr search` is at work in .*search"),
    ):
        Search(options(files)).run()
    assert trial.is_dir()
    assert quick == []
    trial.rmdir()
    trial.parent.rmdir()
    assert Search(options(files)).run().values
    assert {path.name for path in (files / "search").iterdir()} == {
        "search.yaml",
        "study.journal",
        "trials.csv",
        "best.yaml",
    }
