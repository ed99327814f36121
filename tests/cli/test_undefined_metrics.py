"""Metrics that samples do not have, as no user or no weighted sample of a label has both classes, are told in words; nothing fails over them."""

import numpy as np
import pytest
import yaml
from cli_helpers import error_of

import lmctr
from lmctr.cli.main import main

SCHEMA = {
    "labels": ["click", "order"],
    "group": "user",
    "weight": "w",
    "split": {"rule": "rows", "fractions": [0.6, 0.2, 0.2]},
    "fields": [{"name": "item", "type": "categorical"}],
}
TRAINING = {"epochs": 1, "per_device_train_batch_size": 64, "use_cpu": True, "seed": 0}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """Of a table in whose validation and test parts all orders weigh nothing and each user has one row."""
    monkeypatch.chdir(tmp_path)
    draw = np.random.default_rng(0)
    click, order = draw.integers(0, 2, 500), draw.random(500) < 0.2
    lines = ["user,item,click,order,w"]
    for row in range(500):
        has_order = int(click[row] and order[row])
        user, weight = (row, 1 - has_order) if row >= 300 else (row % 20, 1)
        lines.append(f"{user},{draw.integers(9)},{click[row]},{has_order},{weight}")
    (tmp_path / "rows.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump({"files": "rows.csv", **SCHEMA}))
    own = {"data": {"name": "shop.yaml", "baselines": False}, "model": {"family": "dnn"}, "training": TRAINING}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(own))
    return "recipe.yaml"


SAID = "no metrics of order, which has no positives or no negatives of a weight above 0; no gAUC and UAUC: no user has both positives and negatives"


def test_what_has_no_value_is_said(recipe, capsys, caplog):
    assert main(["train", recipe, "--output-dir", "run"]) == 0
    printed = capsys.readouterr().out
    assert f"validation: {SAID}\n" in printed
    assert f"test: {SAID}\n" in printed
    assert main(["evaluate", "run"]) == 0
    table = capsys.readouterr().out
    assert [message for message in caplog.messages if SAID in message] == [f"test: {SAID}"]
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == ["test", "test, click"]
    measured = lmctr.runs.load("run").metrics["test"]
    assert not [name for name in measured if name.startswith("order") or name.endswith(("user_auc", "grouped_auc"))]
    assert measured["num_samples"] == 100


def test_the_rows_of_an_evaluation_are_those_of_each_label(recipe, capsys, caplog):
    assert main(["train", recipe, "--output-dir", "run"]) == 0
    capsys.readouterr()
    assert main(["evaluate", "run", "--split", "train"]) == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == ["train", "train, click", "train, order"]
    assert not [message for message in caplog.messages if "no metrics" in message]


@pytest.mark.parametrize(
    ("metric", "lacks"),
    [
        ("order_auc", "its label has not both"),
        ("mean_auc", "fewer than two labels have both"),
        ("grouped_auc", "no group has both"),
    ],
)
def test_no_checkpoint_is_chosen_by_what_has_no_value(recipe, metric, lacks, capsys, monkeypatch):
    monkeypatch.setattr("lmctr.training.trainer.CTRTrainer.training_step", lambda *args: 1 / 0)
    error = error_of(
        capsys, "train", recipe, "--training.metric_for_best_model", f"eval_{metric}", "--output-dir", "run"
    )
    assert (
        f"metric_for_best_model='eval_{metric}' has no value on these data, where {lacks} positives and neg" in error
    )
