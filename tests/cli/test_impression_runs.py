"""The verbs with runs on impressions: train, resume, evaluate, grid, predict, card and push."""

import csv
import json
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from cli_helpers import error_of, read
from transformers import AutoProcessor

import lmctr
from lmctr.cli.main import main
from lmctr.data import load_impressions
from lmctr.evaluation.ranking_evaluator import RankingSettings, evaluate_ranking
from lmctr.hub.checks import validate_run
from lmctr.hub.model_card import build_card
from lmctr.runs.recipe import RecipeError, find_recipe, load_recipe

TINY_CASCADE = {
    "data": {
        "name": "synthetic_cascade",
        "options": {
            "num_impressions": 400,
            "num_users": 100,
            "num_ads": 80,
            "num_matched": 60,
            "num_preranked": 30,
            "num_ranked": 12,
            "num_components": 3,
            "ads_per_impression": [6, 12],
        },
        "fractions": [0.7, 0.15, 0.15],
        "metrics": {"m": 3, "ndcg_k": 5},
    },
    "model": {
        "family": "retrieval_mlp",
        "embedding_dim": 4,
        "hidden_units": [16, 8],
        "loss": "pairwise",
        "arf_top_m": 3,
    },
    "training": {
        "stage2_epochs": 3,
        "learning_rate": 0.05,
        "optim": "adagrad",
        "optim_args": "eps=1e-8",
        "lr_scheduler_type": "constant",
        "warmup_steps": 0,
        "per_device_train_batch_size": 16,
        "use_cpu": True,
        "seed": 0,
    },
}


@pytest.fixture(scope="module")
def recipe_path(tmp_path_factory):
    path = tmp_path_factory.mktemp("recipe") / "cascade.yaml"
    path.write_text(yaml.safe_dump(TINY_CASCADE))
    return path


@pytest.fixture(scope="module")
def cascade_run(recipe_path, tmp_path_factory):
    """A finished run. Read it only."""
    folder = tmp_path_factory.mktemp("run") / "cascade"
    assert main(["train", str(recipe_path), "--output_dir", str(folder)]) == 0
    return folder


def test_run_folder(cascade_run):
    config, data, metrics = (read(cascade_run, f"{name}.json") for name in ("config", "data", "metrics"))
    processor = AutoProcessor.from_pretrained(cascade_run)
    assert config["processor_fingerprint"] == processor.fingerprint == data["processor_fingerprint"]
    assert data["counts"]["impressions"] == {"train": 280, "validation": 60, "test": 60}
    assert data["counts"]["ads per impression"] == [6, 12]
    assert data["metrics"]["recall"] == "Recall@3@3"
    test = metrics["split metrics"]["test"]
    assert test["num_samples"] == 60
    assert {"revenue_ratio", "ordered_pair_accuracy", "ndcg", "recall", "revenue_ratio_dropped"} <= set(test)
    assert set(metrics["baselines"]) == {"random", "popularity", "mean_ecpm", "ad_gradient_boosting", "best_reachable"}
    assert test["revenue_ratio"] > metrics["baselines"]["random"]["test"]["revenue_ratio"] + 0.1
    assert metrics["best_auc"] is None
    assert metrics["flops_per_sample"] > 0


def test_predictions_are_ads_from_which_the_metrics_follow(cascade_run):
    table = pq.read_table(cascade_run / "predictions" / "test.parquet")
    assert table.column_names == ["event", "impression", "ecpm", "user", "label", "logit"]
    columns = {name: table[name].to_numpy() for name in table.column_names}
    counts = np.unique(columns["impression"], return_counts=True)[1]
    found = evaluate_ranking(
        counts, columns["label"], columns["logit"], columns["ecpm"], RankingSettings(m=3, ndcg_k=5)
    )
    assert read(cascade_run, "metrics.json")["split metrics"]["test"] == pytest.approx(found)


def test_the_best_checkpoint_is_that_of_the_largest_revenue_ratio(cascade_run):
    metrics = read(cascade_run, "metrics.json")
    best = max(metrics["evaluations"], key=lambda entry: entry["revenue_ratio"])
    assert len(metrics["evaluations"]) == 3
    assert metrics["best_step"] == best["step"]
    assert metrics["split metrics"]["validation"]["revenue_ratio"] == pytest.approx(best["revenue_ratio"])
    written = yaml.safe_load((cascade_run / "recipe.yaml").read_text())
    assert written["training"]["metric_for_best_model"] == "eval_revenue_ratio"


def test_early_stopping_follows_the_revenue_ratio(recipe_path, tmp_path):
    words = ["--training.learning_rate", "0", "--training.early_stopping_patience", "1", "--data.baselines", "false"]
    assert main(["train", str(recipe_path), "--output_dir", str(tmp_path / "run"), *words]) == 0
    metrics = read(tmp_path / "run", "metrics.json")
    values = [entry["revenue_ratio"] for entry in metrics["evaluations"]]
    assert len(values) < 3 or values[1] > values[0]  # batch normalisation moves on; a fall ends the training
    assert metrics["baselines"] == {}


def test_evaluate_again_and_with_other_metrics(cascade_run, capsys):
    capsys.readouterr()
    assert main(["evaluate", str(cascade_run), "--split", "test"]) == 0
    shown = capsys.readouterr().out
    assert f"{read(cascade_run, 'metrics.json')['split metrics']['test']['revenue_ratio']:.4f}" in shown
    assert "R/R*" in shown
    assert "AUC" not in shown
    assert main(["evaluate", str(cascade_run), "--split", "test", "--data.metrics", "{m: 12, ideal: ecpm}"]) == 0
    assert "1.0000" in capsys.readouterr().out  # all ads go on
    assert "free are data." in error_of(capsys, "evaluate", cascade_run, "--data.user_features", "{drop: [user_c1]}")


def test_resume_goes_on_where_the_run_was_cut(recipe_path, cascade_run, tmp_path):
    import shutil

    folder = tmp_path / "cut"
    shutil.copytree(cascade_run, folder)
    for path in (folder / "checkpoints").glob("checkpoint-*"):
        if path.name != min((p.name for p in (folder / "checkpoints").iterdir()), key=lambda n: int(n.split("-")[1])):
            shutil.rmtree(path)
    (folder / "metrics.json").unlink()
    assert main(["train", str(recipe_path), "--output_dir", str(folder), "--resume"]) == 0
    again, whole = (read(path, "metrics.json")["split metrics"]["test"] for path in (folder, cascade_run))
    assert again["revenue_ratio"] == pytest.approx(whole["revenue_ratio"], abs=1e-6)


def request_of(count=3):
    source = load_impressions("synthetic_cascade", **TINY_CASCADE["data"]["options"], fractions=[0.7, 0.15, 0.15])
    block = next(source.blocks("test"))
    ads = block.ads.to_pylist()
    starts = np.cumsum(block.counts) - block.counts
    users = block.users.to_pylist()
    return [{"id": i, "user": users[i], "ads": ads[starts[i] : starts[i] + block.counts[i]]} for i in range(count)]


def test_predict_gives_the_stored_scores(cascade_run, tmp_path):
    requests = request_of()
    requests[1].pop("id")
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(json.dumps(request) for request in requests) + "\n\n")
    words = ["--input", str(source), "--output", str(target), "--batch_size", "15"]
    assert main(["predict", str(cascade_run), *words]) == 0
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [answer.get("id") for answer in answers] == [0, None, 2]
    table = pq.read_table(cascade_run / "predictions" / "test.parquet")
    stored = table["logit"].to_numpy()
    found = np.concatenate([answer["scores"] for answer in answers])
    np.testing.assert_allclose(found, stored[: len(found)], atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ads": []}, "line 2: ads must be a list of at least one object"),
        ({"user": None}, "line 2: user must be an object"),
        ({"adds": []}, "line 2: unknown key 'adds'"),
        ({"ads": [{"ad_id": "1"}]}, r"line 2: ads\[0\]: no 'ad_c1', "),
        ({"ads": "nan"}, r"line 2: ads: .*ad_n1.*ads\[0\]: 'many'"),
    ],
)
def test_bad_requests_are_named(cascade_run, tmp_path, capsys, change, message):
    requests = request_of(2)
    if change.get("ads") == "nan":
        change = {"ads": [{**requests[1]["ads"][0], "ad_n1": "many"}]}
    requests[1] |= change
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(json.dumps(request) for request in requests))
    import re

    assert re.search(message, error_of(capsys, "predict", cascade_run, "--input", source))


def test_predict_takes_rows_of_a_user_and_an_ad(cascade_run, tmp_path, capsys):
    rows = [{**one["user"], **ad, "request": f"q{one['id']}"} for one in request_of() for ad in one["ads"]]
    source, target = tmp_path / "rows.parquet", tmp_path / "scores.csv"
    pq.write_table(pa.Table.from_pylist(rows), source)
    words = ["--input", str(source), "--output", str(target), "--batch-size", "5", "--id-column", "request"]
    assert main(["predict", str(cascade_run), *words]) == 0
    assert f"{len(rows)} rows scored, no unknown values" in capsys.readouterr().err
    found = list(csv.DictReader(target.read_text().splitlines()))
    assert [*found[0]] == ["row", "request", "score"]
    assert [row["request"] for row in found] == [row["request"] for row in rows]
    stored = pq.read_table(cascade_run / "predictions" / "test.parquet")["logit"].to_numpy()[: len(rows)]
    np.testing.assert_allclose([float(row["score"]) for row in found], stored, atol=1e-5)
    run = lmctr.runs.load(cascade_run)
    np.testing.assert_allclose(run.predict(pa.Table.from_pylist(rows)), stored, atol=1e-5)
    np.testing.assert_allclose(run.predict(pa.Table.from_pylist(request_of())), stored, atol=1e-5)


def test_bad_rows_of_a_user_and_an_ad(cascade_run, tmp_path, capsys):
    rows = [{**one["user"], **ad} for one in request_of(1) for ad in one["ads"][:3]]
    rows = [{**row, "ad_n1": value} for row, value in zip(rows, ("1", "many", "2"))]
    source, target = tmp_path / "rows.parquet", tmp_path / "scores.jsonl"
    pq.write_table(pa.Table.from_pylist(rows), source)
    words = ["--input", str(source), "--output", str(target)]
    error = error_of(capsys, "predict", cascade_run, *words)
    assert "'many'" in error
    assert "row 2" in error
    assert main(["predict", str(cascade_run), *words, "--on-error", "skip"]) == 0
    found = [json.loads(line) for line in target.read_text().splitlines()]
    assert (
        [row["score"] is None for row in found]
        == ["many" in (row["error"] or "") for row in found]
        == [False, True, False]
    )
    pq.write_table(
        pa.Table.from_pylist([{name: row[name] for name in row if name != "ad_c1"} for row in rows]), source
    )
    assert "no column 'ad_c1'" in error_of(capsys, "predict", cascade_run, *words)


def test_a_log_is_not_joined_with_requests(cascade_run, tmp_path, capsys):
    (tmp_path / "in.jsonl").write_text(json.dumps(request_of(1)[0]))
    words = ["--input", tmp_path / "in.jsonl", "--log", "schema.yaml"]
    assert "the log 'schema.yaml' is not read: this run ranks the ads" in error_of(
        capsys, "predict", cascade_run, *words
    )


def test_the_run_can_be_shared(cascade_run):
    lines = validate_run(cascade_run).lines
    assert any("test metrics are those of" in line for line in lines)
    card = build_card(cascade_run)
    assert "| split |  | R/R* | OPA | NDCG | Recall | impressions |" in card
    assert "probabilities hold" not in card
    own = card.partition("## Intended use")[2]
    assert "Choosing the ads of an impression" in own
    assert "and orders ads by it; its order holds for impressions" in own
    assert "how the later stages of a cascade valued ads" in own
    for word in ("probability of a positive response", "calibrate", "chose to answer", "predicts that label"):
        assert word not in own
    assert "Licence of the data: none needed: the data are generated" in card
    assert "best reachable (generated data)" in card
    code = card.split("```python")[1].split("```")[0].replace('"."', f'"{cascade_run}"')
    scope = {}
    exec(code, scope)
    assert scope["scores"].shape == (1, 1)


def test_wrong_metrics_are_found(cascade_run, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(cascade_run, folder)
    metrics = read(folder, "metrics.json")
    metrics["split metrics"]["test"]["recall"] += 0.01
    (folder / "metrics.json").write_text(json.dumps(metrics))
    (folder / "lmctr_manifest.json").unlink()
    with pytest.raises(ValueError, match="test recall is"):
        validate_run(folder)


def test_vocabularies_of_another_run_are_refused(cascade_run, tmp_path):
    import shutil

    folder = tmp_path / "run"
    shutil.copytree(cascade_run, folder)
    settings = read(folder, "preprocessor_config.json")
    settings["ad_fields"][-1]["transform"] = "raw"
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))
    (folder / "lmctr_manifest.json").unlink()
    from lmctr.runs.loading import load_run

    with pytest.raises(ValueError, match="was trained with a processor of the fingerprint"):
        load_run(folder)


def test_grid_of_losses(recipe_path, tmp_path, capsys):
    grid = {
        "name": "losses",
        "recipe": str(recipe_path),
        "output_dir": str(tmp_path / "runs"),
        "seeds": [0],
        "compare_to": "pairwise",
        "points": [
            {"name": "pairwise", "set": {"model.loss": "pairwise", "training.stage2_epochs": 1}},
            {"name": "bce", "set": {"model.loss": "bce", "model.positive_from": 10, "training.stage2_epochs": 1}},
        ],
    }
    path = tmp_path / "grid.yaml"
    path.write_text(yaml.safe_dump(grid))
    assert main(["grid", "run", str(path)]) == 0
    words = ["grid", "report", str(path), "--output", str(tmp_path / "report"), "--resamples", "100"]
    assert main(words) == 0
    text = (tmp_path / "report" / "losses.md").read_text()
    assert (
        "| point | seeds | R/R* | OPA | NDCG | Recall | R/R* difference | detectable | t test | bootstrap | train s |"
        in text
    )
    assert "(pairwise)" in text
    assert "best reachable baseline" in text
    assert "60 impressions with" in text
    assert "revenue_ratio" in (tmp_path / "report" / "losses.csv").read_text().splitlines()[0]
    assert "impression bootstrap" in (tmp_path / "report" / "losses_tests.csv").read_text()


def test_two_tower_trains_too(recipe_path, tmp_path, monkeypatch):
    """Once more on training and validation, as its rivals for the test part are fitted (the trees, which take seconds, are none here)."""
    trees = SimpleNamespace(scores=lambda rows, ads: np.zeros(len(ads)))
    monkeypatch.setattr("lmctr.evaluation.impression_baselines._Boosting", lambda *fitted: trees)
    words = ["--model.family", "two_tower", "--training.stage2_epochs", "1", "--training.refit", "true"]
    assert main(["train", str(recipe_path), "--output_dir", str(tmp_path / "run"), *words]) == 0
    assert read(tmp_path / "run", "metrics.json")["training_samples"] == {"model": 340, "baselines": 340}
    processor = lmctr.ImpressionProcessor.from_pretrained(tmp_path / "run")
    for side in (processor.user, processor.ad):  # what was unknown in validation before that was trained on
        assert list(side.statistics["unknown"]) == ["train", "validation"]
    model = lmctr.AutoModelForCTR.from_pretrained(tmp_path / "run")
    assert isinstance(model, lmctr.TwoTowerForCTR)
    assert all(torch.isfinite(values).all() for values in model.state_dict().values() if values.is_floating_point())


@pytest.mark.parametrize(
    "name", ["retrieval_mlp/cascade", "retrieval_mlp/recflow", "two_tower/cascade", "two_tower/recflow"]
)
def test_shipped_recipes_are_read_with_the_papers_optimiser(name):
    recipe = load_recipe(name)
    assert recipe.training["optim"] == "adagrad"
    assert recipe.training["learning_rate"] == 0.01
    assert recipe.training["optim_args"] == "eps=1e-8"
    assert recipe.model["loss"] == "arf"
    assert recipe.training["metric_for_best_model"] == "eval_revenue_ratio"


def test_adagrad_gets_the_epsilon(tmp_path):
    from transformers import Trainer

    from lmctr.training.arguments import CTRTrainingArguments

    recipe = load_recipe("retrieval_mlp/cascade")
    args = CTRTrainingArguments(output_dir=str(tmp_path), **recipe.training)
    kind, options = Trainer.get_optimizer_cls_and_kwargs(args)
    assert kind is torch.optim.Adagrad
    assert options == {"lr": 0.01, "eps": 1e-8}


def test_the_grid_of_losses_is_readable():
    from lmctr.studies.grids.file import check_recipes, load_grid

    grid = load_grid(find_recipe("retrieval/tables/losses_cascade"))
    losses = {name: recipe.model["loss"] for (name, _), recipe in check_recipes(grid, []).items()}
    assert losses == {"arf": "arf", "arf_tau1": "arf", "bce": "bce", "pairwise": "pairwise", "list": "list"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.metrics", "{m: 0}"], "data.metrics.m is 0"),
        (["--data.metrics", "{ideal: revenue}"], "ideal"),
        (["--data.metrics", "{mm: 3}"], "unknown key 'mm'"),
        (["--model.user_vocab_sizes", "[3]"], "it follows from the data"),
        (["--model.sparse_embedding_grad", "true"], "set training.embedding_optimizer"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(recipe_path, words, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe(recipe_path, [(words[0][2:], words[1])])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--data.options", "{num_impression: 10}"], "unknown key 'num_impression'"),
        (["--data.name", "synthetic_cascades"], "Did you mean 'synthetic_cascade'"),
        (["--data.path", "somewhere"], "takes none; leave it out"),
        (["--data.fractions", "[1.0, 0.0, 0.0]"], "the validation part has no impressions"),
        (["--data.user_features", "{drop: [user_c9]}"], "user_c9"),
    ],
)
def test_data_that_cannot_be_used_are_refused(recipe_path, tmp_path, capsys, words, message):
    assert message in error_of(capsys, "train", recipe_path, "--output_dir", tmp_path / "run", *words)


def test_a_part_without_revenue_is_refused(recipe_path, tmp_path):
    from lmctr.runs.inputs import input_of

    view = input_of(load_recipe(recipe_path))
    view.load(tmp_path)
    view.check()
    arrays = {name: np.array(array) for name, array in view.store._arrays().items()}
    arrays["ecpm"][view.store.offsets[view.store.splits.test[0]] :] = 0.0
    view.store = type(view.store)(arrays, view.store.processor, view.store.info, view.store.statistics)
    with pytest.raises(ValueError, match="the test part has no ad with an eCPM above 0"):
        view.check()


def test_odd_impressions_are_reported_before_training(recipe_path, tmp_path, monkeypatch):
    from lmctr.runs.inputs import impressions, input_of

    view = input_of(load_recipe(recipe_path))
    view.load(tmp_path)
    assert view.check() == []
    view.store.statistics["train"] |= {"empty": 3, "no_revenue": 1}
    assert view.check() == [
        "train: of 283 impressions 3 have no ads and are left out; 1 have no eCPM above 0, which R/R* leaves out"
    ]
    monkeypatch.setattr(impressions, "_WIDE", 2)
    view.store.statistics["train"]["empty"] = view.store.statistics["train"]["no_revenue"] = 0
    counts = view.store.counts[view.rows("train")].astype(int)
    for loss, told in (("arf", 1), ("pairwise", 1), ("bce", 0), ("list", 0)):
        view.model_group = {**view.model_group, "loss": loss}
        lines = view.check()
        assert len(lines) == told
        assert f"has {counts.max()} ads, and an epoch {(counts**2).sum():,} pairs;" in "".join(lines) or not told
    view.store.statistics["train"] |= {"empty": 3, "no_revenue": 1}
    view.open(view.store.processor)
    assert view.describe()["left out or odd"]["train"] == {"empty": 3, "single": 0, "no_revenue": 1}
