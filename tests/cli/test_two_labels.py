"""A table with two labels: from its cells to logits, metrics, predictions, answers and a card of each task."""

import csv
import json
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from cli_helpers import error_of, read

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.registry import load_tabular
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.hub.model_card import build_card
from lmctr.runs.answers.served import ServedModel

OPTIONS = {
    "num_rows": 3000,
    "num_categorical": 3,
    "num_numeric": 2,
    "num_pairs": 1,
    "vocab_size": 100,
    "conversion_rate": 0.4,
    "unknown_conversions": 0.2,
    "positive_rate": 0.4,
}
RECIPE = {
    "data": {"name": "synthetic_table", "options": OPTIONS},
    "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [16], "task_head": "mmoe", "task_units": [8]},
    "training": {
        "epochs": 2,
        "learning_rate": 1e-2,
        "per_device_train_batch_size": 128,
        "use_cpu": True,
        "seed": 0,
    },
}


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run. Read it only."""
    return lmctr.runs.train(RECIPE, output_dir=tmp_path_factory.mktemp("run") / "two")


@pytest.fixture(scope="module")
def rows():
    source = load_tabular("synthetic_table", **OPTIONS)
    return [row for rows in source.rows(part="test") for row in rows.table.to_pylist()]


def test_generated_conversions_follow_clicks(rows):
    clicks = np.array([row["label"] for row in rows])
    conversions = np.array([np.nan if row["conversion"] is None else row["conversion"] for row in rows])
    assert not conversions[clicks == 0].any()
    unknown = np.isnan(conversions[clicks == 1]).mean()
    assert 0.05 < unknown < 0.4
    assert 0.2 < np.nanmean(conversions[clicks == 1]) < 0.8


def test_empty_cells_become_masks():
    table = {"a": ["x", "y", "x", "z"], "click": [1, 0, None, 1], "order": [None, "0", "1", "-100"]}
    source = table_source(table, labels=["click", "order"], split="rows", fractions=(0.5, 0.25, 0.25))
    assert [field["name"] for field in source.fields] == ["a"]
    store = TabularStore.build(source)
    np.testing.assert_array_equal(store.labels, [[1, -100], [0, 0], [-100, 1], [1, -100]])
    assert store.processor.tasks == ("click", "order")
    assert store.processor.model_config_values()["task_names"] == ["click", "order"]
    assert store.processor.statistics["positive_rate"] == 0.5
    batch = store.processor([{"a": "x", "click": 1, "order": None}], return_labels=True)
    torch.testing.assert_close(batch["labels"], torch.tensor([[1.0, -100.0]]))


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        ([1, 0, 2, 0], r"column 'order'.*other than 0 and 1.*row 3: 2.*empty or -100"),
        ([1, 0, 1, 0], r"column 'click'.*without any label.*row 4.*one of click, order"),
    ],
)
def test_wrong_cells_are_named(cells, words):
    order = [cells[0], cells[1], cells[2], None if cells[2] == 1 else 0]
    table = {"a": ["x", "y", "x", "z"], "click": [1, 0, 1, None], "order": order}
    processor = TabularFeatureProcessor([{"name": "a", "type": "categorical"}], "click", ["order"])
    with pytest.raises(ValueError, match=words):
        processor.fit(table)


@pytest.mark.parametrize("extra", ["order", ["click"], [1], ["order", "order"]])
def test_wrong_names_of_labels(extra):
    with pytest.raises(ValueError, match="extra_labels="):
        TabularFeatureProcessor([{"name": "a", "type": "categorical"}], "click", extra)


def test_no_field_reads_a_label():
    with pytest.raises(ValueError, match="reads the label column 'order'"):
        TabularFeatureProcessor([{"name": "order", "type": "categorical"}], "click", ["order"])


def test_the_run_has_metrics_of_each_task(run):
    metrics = run.metrics["test"]
    table = pq.read_table(run.path / "predictions" / "test.parquet")
    assert {"label", "logit", "label_conversion", "logit_conversion"} <= set(table.column_names)
    for name, end in (("label", ""), ("conversion", "_conversion")):
        labels, logits = (table[key + end].to_numpy().astype(float) for key in ("label", "logit"))
        own = evaluate_predictions(labels, logits)
        assert metrics[f"{name}_auc"] == pytest.approx(own["auc"], abs=1e-6)
    assert metrics["auc"] == metrics["label_auc"]
    assert metrics["conversion_num_samples"] < metrics["label_num_samples"]
    assert read(run.path, "data.json")["task_rates"]["test"]["conversion"] < 0.4
    assert set(run.metrics["baselines"]) == {"field_counting", "field_gradient_boosting"}
    assert metrics["auc"] > 0.6


def test_the_best_checkpoint_may_be_that_of_all_labels(tmp_path, capsys):
    """eval_mean_auc decides, where eval_auc is the first label's alone."""
    recipe = {**RECIPE, "training": {**RECIPE["training"], "metric_for_best_model": "eval_mean_auc"}}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    of_each = [run.metrics["validation"][f"{name}_auc"] for name in ("label", "conversion")]
    history = [entry["mean_auc"] for entry in read(run.path, "metrics.json")["evaluations"]]
    assert max(history) == pytest.approx(np.mean(of_each), abs=1e-6)
    told = re.findall(r"validation AUC 0\.\d{4} .* mean_auc (0\.\d{4}) \(decides\)$", capsys.readouterr().out, re.M)
    assert told == [f"{value:.4f}" for value in history]


GRID = {
    "name": "heads",
    "recipe": "small.yaml",
    "output_dir": "runs",
    "seeds": [0, 1],
    "compare_to": "shared",
    "points": [
        {"name": "shared", "label": "shared", "set": {"model.task_head": "shared_bottom"}},
        {"name": "chain", "label": "ESMM", "set": {"model.task_head": "esmm"}},
    ],
}


def test_runs_are_compared_by_any_of_their_labels(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = {**RECIPE, "training": {**RECIPE["training"], "epochs": 1}}
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(small))
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(GRID))
    assert main(["grid", "run", "grid.yaml"]) == 0
    assert main(["grid", "report", "grid.yaml", "--label", "conversion", "--output", "out", "--resamples", "100"]) == 0
    printed = capsys.readouterr().out
    assert "# heads: conversion" in printed
    assert "baseline" not in printed.replace("baselines", "")
    assert "Best reachable" not in printed
    with open(tmp_path / "out/heads_conversion.csv", encoding="utf-8") as file:
        rows = {(row["point"], row["seed"]): row for row in csv.DictReader(file)}
    for point in ("shared", "chain"):
        measured = lmctr.runs.load(tmp_path / "runs" / point / "seed-1").metrics["test"]
        assert float(rows[point, "1"]["auc"]) == pytest.approx(measured["conversion_auc"], abs=1e-6)
        assert int(rows[point, "1"]["num_samples"]) == measured["conversion_num_samples"]  # the unknown ones left out
    with open(tmp_path / "out/heads_conversion_tests.csv", encoding="utf-8") as file:
        tests = [row for row in csv.DictReader(file) if row["metric"] == "auc"]
    assert {row["test"] for row in tests} == {"DeLong", "bootstrap", "paired t test"}
    assert main(["grid", "report", "grid.yaml", "--output", "out", "--resamples", "100"]) == 0
    assert "field counting baseline" in capsys.readouterr().out
    assert (tmp_path / "out/heads.csv").is_file()
    runs = [[f"runs/{point}/seed-{seed}" for seed in (0, 1)] for point in ("chain", "shared")]
    words = ["evaluate", *runs[0], "--compare", *runs[1], "--resamples", "100", "--label"]
    assert main([*words, "conversion"]) == 0
    shown = capsys.readouterr().out
    assert f"{float(rows['chain', '1']['auc']):.4f}" in shown
    assert "label='order': " in (error := error_of(capsys, *words, "order"))
    assert "accepted: 'conversion'" in error
    assert "--label belongs to several runs" in error_of(capsys, "evaluate", runs[0][0], "--label", "conversion")


def test_predict_and_serve_name_the_tasks(run, rows, tmp_path, capsys):
    plain = [{key: value for key, value in row.items() if key not in ("label", "conversion")} for row in rows]
    logits = run.predict(plain)
    assert logits.shape == (len(rows), 2)
    source, target = tmp_path / "rows.jsonl", tmp_path / "scores.jsonl"
    source.write_text("".join(json.dumps(row) + "\n" for row in plain))
    assert main(["predict", str(run.path), "--input", str(source), "--output", str(target)]) == 0
    scores = [json.loads(line) for line in target.read_text().splitlines()]
    assert list(scores[0]) == ["row", "logit", "probability", "logit_conversion", "probability_conversion"]
    found = [[row["logit"], row["logit_conversion"]] for row in scores]
    np.testing.assert_allclose(found, logits, atol=1e-5)
    served = ServedModel(str(run.path), device="cpu")
    assert served.tasks == ("label", "conversion")
    (scored,) = served.score([(served.check({"rows": plain[:3]}), None)])
    answer = scored.answer()
    assert set(answer["probabilities"]) == {"label", "conversion"}
    np.testing.assert_allclose(answer["probabilities"]["conversion"], 1 / (1 + np.exp(-logits[:3, 1])), atol=1e-6)
    assert main(["evaluate", str(run.path), "--split", "test"]) == 0


def test_the_card_shows_each_task(run):
    card = build_card(run.path)
    assert "| Predicts | label, conversion |" in card
    assert "`task_head`" in card
    assert "| test | this model, conversion |" in card
    assert f"{run.metrics['test']['conversion_auc']:.4f}" in card


def test_labels_of_a_recipe_over_a_schema(rows, tmp_path, capsys):
    """Another choice of labels than the schema's, in its order; and what is refused."""
    names = [*rows[0]]
    lines = [",".join("" if row[name] is None else str(row[name]) for name in names) for row in rows]
    (tmp_path / "rows.csv").write_text("\n".join([",".join(names), *lines]) + "\n")
    schema = {
        "files": "rows.csv",
        "labels": ["label", "conversion"],
        "fields": [{"name": "C1", "type": "categorical"}, {"name": "I1", "type": "numeric", "transform": "log1p"}],
    }
    (tmp_path / "shop.yaml").write_text(yaml.safe_dump(schema))
    recipe = {
        **RECIPE,
        "data": {"name": str(tmp_path / "shop.yaml"), "labels": ["conversion", "label"], "split": "rows"},
    }
    recipe["training"] = {**RECIPE["training"], "epochs": 1}
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert run.model.config.task_names == ["conversion", "label"]
    assert run.metrics["test"]["auc"] == run.metrics["test"]["conversion_auc"]
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({**recipe, "model": {**recipe["model"], "task_weights": [1.0]}}))
    error = error_of(capsys, "train", path, "--output_dir", tmp_path / "no")
    assert "model.task_weights has 1 numbers for the 2 labels of data.labels" in error
    wrong = {**RECIPE, "data": {**RECIPE["data"], "labels": ["label", "conversion"]}}
    with pytest.raises(ValueError, match=r"data\.labels is .*'synthetic_table' has its own label"):
        lmctr.runs.train(wrong, output_dir=tmp_path / "no")
    (tmp_path / "both.yaml").write_text(yaml.safe_dump({**schema, "label": "label"}))
    with pytest.raises(ValueError, match=r"label 'label' and labels \['label', 'conversion'\] are both set"):
        load_tabular(tmp_path / "both.yaml")
