"""`lmctr evaluate RUN RUN --compare RUN RUN`: from stored scores only, checked against scikit-learn and scipy."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from cli_helpers import error_of, read
from scipy import stats
from sklearn.metrics import log_loss, roc_auc_score

from lmctr.cli.main import main
from lmctr.evaluation.metrics import expected_calibration_error, grouped_auc
from lmctr.evaluation.significance import delong_test

SAMPLES = 300
LABELS = np.random.default_rng(0).integers(0, 2, SAMPLES)
USERS = np.array([f"user-{number}" for number in np.random.default_rng(1).integers(0, 25, SAMPLES)])


def scores(strength, seed):
    return (strength * (LABELS - 0.5) + np.random.default_rng(100 + seed).normal(size=SAMPLES)).astype(np.float32)


def write_run(folder, seed, strength, shuffled=False, recipe=None, **columns):
    """What the comparison reads of a run: metrics.json, predictions, and recipe.yaml where there is one."""
    table = {
        "event": np.arange(SAMPLES) * 3,
        "user": USERS,
        "item": np.arange(SAMPLES) % 7,
        "time": np.arange(SAMPLES) + 1000,
        "label": LABELS.astype(np.int8),
        "logit": scores(strength, seed),
        **columns,
    }
    table = pa.table({name: values for name, values in table.items() if values is not None})
    if shuffled:
        table = table.take(np.random.default_rng(seed).permutation(len(table)))
    (folder / "predictions").mkdir(parents=True)
    pq.write_table(table, folder / "predictions" / "test.parquet")
    baseline = {"auc": 0.6 + seed / 100, "log_loss": 0.65, "expected_calibration_error": 0.1}
    (folder / "metrics.json").write_text(json.dumps({"seed": seed, "baselines": {"counting": {"test": baseline}}}))
    if recipe is not None:
        (folder / "recipe.yaml").write_text(yaml.safe_dump(recipe | {"training": {"seed": seed}}))
    return str(folder)


@pytest.fixture
def groups(tmp_path):
    with_sinks = {"data": {"path": "here"}, "model": {"sink_kind": "sink"}}
    without = {"data": {"path": "there"}, "model": {"sink_kind": "none"}}
    return (
        [write_run(tmp_path / f"sink-{seed}", seed, 1.5, recipe=with_sinks) for seed in (0, 1, 2)],
        [write_run(tmp_path / f"plain-{seed}", seed, 1.0, shuffled=True, recipe=without) for seed in (2, 0, 1)],
    )


def test_keys_of_one_family_alone_are_counted(tmp_path, capsys):
    din = {"data": {"statistics": ["full"]}, "model": {"family": "din", "use_dice": True, "use_softmax": False}}
    dnn = {"data": {"statistics": ["basic"]}, "model": {"family": "dnn", "embedding_dim": 8}}
    runs = [write_run(tmp_path / name, 0, 1.0, recipe=recipe) for name, recipe in (("din", din), ("dnn", dnn))]
    output = tmp_path / "comparison.json"
    assert main(["evaluate", runs[0], "--compare", runs[1], "--resamples", "100", "--output", str(output)]) == 0
    assert (
        "differ in: data.statistics, model.family, and 3 keys that only one of the families has\n"
        in capsys.readouterr().out
    )
    assert "model.use_dice" in read(tmp_path, output.name)["recipe_differences"]


def test_epochs_have_one_name_where_there_are_no_stages(tmp_path, capsys):
    runs = [write_run(tmp_path / f"dnn-{seed}", seed, 1.0, recipe={}) for seed in (0, 1, 2)]
    for folder, own in zip(
        runs, ({"stage1_epochs": 0, "stage2_epochs": 2}, {"epochs": 2}, {"epochs": 3})
    ):  # the first: of before
        recipe = {"model": {"family": "dnn"}, "training": {"seed": int(folder[-1]), **own}}
        (tmp_path / folder / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert main(["evaluate", *runs[:2]]) == 0
    assert main(["evaluate", *runs]) == 2
    assert "their recipes differ in training.epochs\n" in capsys.readouterr().err


def test_mean_spread_and_tests_over_seeds(groups, tmp_path, capsys):
    first, second = groups
    output = tmp_path / "comparison.json"
    assert main(["evaluate", *first, "--compare", *second, "--output", str(output), "--resamples", "200"]) == 0
    result = read(tmp_path, output.name)
    assert set(result["groups"]) == {"sink", "plain"}
    assert result["recipe_differences"] == ["model.sink_kind"]
    measures = {
        "auc": roc_auc_score,
        "log_loss": lambda labels, logits: log_loss(labels, 1 / (1 + np.exp(-logits.astype(np.float64)))),
        "grouped_auc": lambda labels, logits: grouped_auc(labels, logits, USERS),
        "expected_calibration_error": lambda labels, logits: expected_calibration_error(
            labels, logits.astype(np.float64), from_logits=True
        ),
    }
    for metric, measure in measures.items():
        values = {
            name: [measure(LABELS, scores(s, seed)) for seed in range(3)]
            for name, s in (("sink", 1.5), ("plain", 1.0))
        }
        for name, found in values.items():
            assert result["groups"][name]["mean"][metric] == pytest.approx(np.mean(found), abs=1e-9)
            assert result["groups"][name]["standard_deviation"][metric] == pytest.approx(
                np.std(found, ddof=1), abs=1e-9
            )
        (over_seeds,) = [test for test in result["tests"] if test["metric"] == metric and test["seed"] is None]
        expected = stats.ttest_rel(values["sink"], values["plain"])
        assert over_seeds["p_value"] == pytest.approx(expected.pvalue, abs=1e-9)
        assert over_seeds["difference"] == pytest.approx(np.mean(values["sink"]) - np.mean(values["plain"]), abs=1e-9)
        per_seed = [
            test for test in result["tests"] if test["metric"] == metric and test["method"] == "cluster bootstrap"
        ]
        assert [test["seed"] for test in per_seed] == [0, 1, 2]
        for test in per_seed:
            assert test["value_a"] == pytest.approx(values["sink"][test["seed"]], abs=1e-9)
            assert test["value_b"] == pytest.approx(values["plain"][test["seed"]], abs=1e-9)
            low, high = test["confidence_interval"]
            assert low < test["difference"] < high
            assert test["num_pairs"] == 25
    delong = [test for test in result["tests"] if test["method"] == "DeLong"]
    for test in delong:
        expected = delong_test(LABELS, scores(1.5, test["seed"]), scores(1.0, test["seed"]))
        assert test["p_value"] == pytest.approx(expected.p_value, abs=1e-12)
    assert len(delong) == 3
    printed = capsys.readouterr().out
    assert "test split: 300 samples of 25 users" in printed
    assert "the recipes of sink and plain differ in: model.sink_kind\n" in printed


def test_baselines_that_differ_are_shown_of_each_group(groups, capsys):
    first, second = groups
    assert main(["evaluate", *first, "--compare", *second, "--resamples", "100"]) == 0
    assert "counting baseline  " in capsys.readouterr().out
    for path in second:
        file = Path(path) / "metrics.json"
        file.write_text(file.read_text().replace('"log_loss": 0.65', '"log_loss": 0.5'))
    assert main(["evaluate", *first, "--compare", *second, "--resamples", "100"]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if "counting baseline of " in line]
    assert len(rows) == 2
    assert [("0.6500" in row, "0.5000" in row) for row in rows] == [(True, False), (False, True)]


def test_weighted_logs_are_measured_with_their_weights(tmp_path):
    weight = np.random.default_rng(5).uniform(0.5, 3.0, SAMPLES).astype(np.float32)
    first = [write_run(tmp_path / f"a{seed}", seed, 1.5, weight=weight) for seed in (0, 1)]
    second = [write_run(tmp_path / f"b{seed}", seed, 1.0, weight=weight) for seed in (0, 1)]
    output = tmp_path / "out.json"
    assert main(["evaluate", *first, "--compare", *second, "--output", str(output), "--resamples", "100"]) == 0
    result = read(tmp_path, output.name)
    auc = [roc_auc_score(LABELS, scores(1.5, seed), sample_weight=weight) for seed in (0, 1)]
    assert result["groups"]["a"]["mean"]["auc"] == pytest.approx(np.mean(auc), abs=1e-9)
    tests = [test for test in result["tests"] if test["metric"] == "auc"]
    assert [test["method"] for test in tests] == ["cluster bootstrap", "cluster bootstrap", "paired t test"]
    assert [test["value_a"] for test in tests[:2]] == pytest.approx(auc, abs=1e-9)


def test_markdown_holds_the_tables_and_the_command(groups, tmp_path):
    first, second = groups
    output = tmp_path / "deep" / "comparison.md"
    words = ["evaluate", *first, "--compare", *second, "--output", str(output), "--resamples", "100"]
    assert main(words) == 0
    text = output.read_text()
    auc = [roc_auc_score(LABELS, scores(1.5, seed)) for seed in range(3)]
    assert f"| mean of sink | 3 seeds | {np.mean(auc):.4f} ± {np.std(auc, ddof=1):.4f} |" in text
    assert "| counting baseline |  | 0.6100 ± 0.0100 | 0.6500 ± 0.0000 | - | 0.1000 ± 0.0000 |" in text
    assert "| AUC | all |" in text
    assert "; the bootstrap draws users (values of the group column, in tables); " in text
    assert f"```\nlmctr {' '.join(words)}\n```" in text


def test_one_group_is_averaged_without_tests(groups, capsys):
    assert main(["evaluate", *groups[0]]) == 0
    printed = capsys.readouterr().out
    (line,) = [line for line in printed.splitlines() if line.startswith("mean of sink")]
    assert line.split()[3:5] == ["3", "seeds"]
    assert "difference" not in printed


def test_real_runs(tiny_run, capsys):
    """Stored scores of `lmctr train` give the metrics that it wrote."""
    assert main(["evaluate", str(tiny_run), "--compare", str(tiny_run), "--resamples", "100"]) == 0
    expected = read(tiny_run, "metrics.json")["split metrics"]["test"]
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(str(tiny_run)))
    assert line.split()[2:5] == [f"{expected[key]:.4f}" for key in ("auc", "log_loss", "grouped_auc")]


def test_other_samples_are_an_error(groups, tmp_path, capsys):
    first, _ = groups
    events = np.arange(SAMPLES) * 3
    events[7] = 22
    flipped = LABELS.astype(np.int8).copy()
    flipped[4] = 1 - flipped[4]
    other = write_run(
        tmp_path / "other", 3, 1.0, event=events, time=np.where(events == 22, 5000, np.arange(SAMPLES) + 1000)
    )
    message = error_of(capsys, "evaluate", *first, other)
    assert "were not scored on the same samples: 1 of 300 events are only in the first" in message
    assert "data.max_eval_samples" in message
    other = write_run(tmp_path / "flipped", 0, 1.0, label=flipped)
    message = error_of(capsys, "evaluate", first[0], "--compare", other)
    assert f"event 12 has the label {LABELS[4]} in the first and {flipped[4]} in the second" in message
    other = write_run(tmp_path / "weighted", 0, 1.0, weight=np.ones(SAMPLES))
    assert "has sample weights, the other run has none" in error_of(capsys, "evaluate", first[0], "--compare", other)


def test_seeds_and_recipes_must_fit(groups, tmp_path, capsys):
    first, second = groups
    assert "are both of seed 0; give runs of different seeds" in error_of(capsys, "evaluate", first[0], first[0])
    message = error_of(capsys, "evaluate", *first, "--compare", *second[:2])
    assert "the runs have the seeds 0, 1, 2, those to compare with 0, 2" in message
    message = error_of(capsys, "evaluate", first[0], second[0])
    assert f"{second[0]} is no other seed of {first[0]}: their recipes differ in model.sink_kind" in message


def test_seeds_of_one_group_were_trained_on_the_same_data(groups, capsys):
    first, second = groups
    for run, own in zip((*first, *second), "aaabbb"):
        (Path(run) / "data.json").write_text(json.dumps({"fingerprint": own}))
    assert main(["evaluate", *first, "--compare", *second]) == 0  # what is compared may be the data
    (Path(first[1]) / "data.json").write_text(json.dumps({"fingerprint": "b"}))
    assert main(["evaluate", *first]) == 2
    assert "were trained on different data" in capsys.readouterr().err


def test_unreadable_runs(groups, tmp_path, capsys):
    first, _ = groups
    assert "nowhere does not exist" in error_of(capsys, "evaluate", first[0], tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "empty is no run folder: it has no recipe.yaml" in error_of(
        capsys, "evaluate", first[0], tmp_path / "empty"
    )
    run = tmp_path / "grid" / "point" / "seed-0"
    run.mkdir(parents=True)
    (run / "config.json").write_text("{}")
    message = error_of(capsys, "evaluate", first[0], "--compare", tmp_path / "grid")
    assert f"; give a run in it, such as {run}" in message
    (run / "recipe.yaml").write_text("{}")
    assert "is not finished (no metrics.json); continue it with" in error_of(capsys, "evaluate", first[0], run)
    assert "keeps no scores of the validation split" in error_of(capsys, "evaluate", *first, "--split", "validation")
    assert "--split train: runs keep scores of validation and test only" in error_of(
        capsys, "evaluate", *first, "--split", "train"
    )
    broken = write_run(tmp_path / "broken", 9, 1.0)
    stored = tmp_path / "broken" / "predictions" / "test.parquet"
    stored.write_bytes(stored.read_bytes()[:200])
    assert "test.parquet is damaged and cannot be read" in error_of(capsys, "evaluate", first[0], broken)
    lacking = write_run(tmp_path / "lacking", 9, 1.0, logit=None)
    assert "has no column 'logit'; it holds event, user" in error_of(capsys, "evaluate", first[0], lacking)
    twice = write_run(tmp_path / "twice", 9, 1.0, event=np.arange(SAMPLES) // 2)
    assert "holds event 0 more than once" in error_of(capsys, "evaluate", first[0], twice)
    for text, message in (("{", "is not valid JSON"), ("{}", "seed is None; it must be")):
        (tmp_path / "broken" / "metrics.json").write_text(text)
        assert message in error_of(capsys, "evaluate", first[0], broken)


def test_options_that_do_not_fit(groups, capsys):
    first, second = groups
    assert "give a file that ends in .md or .json" in error_of(capsys, "evaluate", *first, "--output", "table.csv")
    assert "--predictions writes the scores of one run" in error_of(
        capsys, "evaluate", *first, "--predictions", "p.parquet"
    )
    assert "--frozen-histories measures one run" in error_of(capsys, "evaluate", *first, "--frozen-histories")
    assert "--resamples belongs to --compare" in error_of(capsys, "evaluate", *first, "--resamples", "100")
    assert "--resamples belongs to --compare" in error_of(capsys, "evaluate", first[0], "--resamples", "100")
    assert "nothing is run anew" in error_of(capsys, "evaluate", *first, "--data.path", "elsewhere")
    message = error_of(capsys, "evaluate", *first, "--compare", *second, "--resamples", "5")
    assert "num_resamples must be at least 100, got 5" in message
