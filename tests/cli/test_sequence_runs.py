"""The verbs with runs that read event sequences."""

import dataclasses
import json

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from cli_helpers import error_of, predict, read
from safetensors.torch import load_file
from sequence_runs import MODELS, OPTIONS, event_request, recipe_of, sequence_log
from transformers import AutoProcessor

import lmctr
from lmctr.analysis.behavior_attention import behavior_attention
from lmctr.cli.main import main
from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.models.families import families
from lmctr.runs.inputs import input_of
from lmctr.runs.recipe import RecipeError, load_recipe
from lmctr.training.checkpoints import MARKER


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Finished runs by family, made when first asked for. Read them only."""
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(family, tasks=("label",)):
        key = f"{family}-{'-'.join(tasks)}"
        if key not in made:
            path = folder / f"{key}.yaml"
            path.write_text(yaml.safe_dump(recipe_of(family, tasks)))
            assert main(["train", str(path), "--output_dir", str(folder / key)]) == 0
            made[key] = folder / key
        return made[key]

    return get


SOME = [
    "astro",
    "twin",
    *(pytest.param(name, marks=pytest.mark.slow) for name in MODELS if name not in ("astro", "twin")),
]


@pytest.mark.parametrize("family", SOME)
def test_run_folder(trained, family):
    run = trained(family)
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "preprocessor_config.json", "sequence_items.parquet", "sequence_features.parquet"} <= names
    assert {"metrics.json", "data.json", "recipe.yaml", "reference.safetensors", "predictions"} <= names
    metrics, data, log = read(run, "metrics.json"), read(run, "data.json"), sequence_log()
    assert data["counts"]["samples"]["train"] == metrics["training_samples"]["model"] > data["rows"]["train"]
    assert data["behaviours"].keys() == {"full-play", "like"}
    assert 0 < metrics["flops_per_training_sample"] < metrics["flops_per_sample"] or family in (
        "din",
        "twin",
        "dlrm_twin",
    )
    assert metrics["flops_per_sample"] > 0
    for part in ("validation", "test"):
        table = pq.read_table(run / "predictions" / f"{part}.parquet")
        assert table.column_names == ["event", "user", "item", "time", "label", "logit"]
        events = table["event"].to_numpy()
        np.testing.assert_array_equal(log.label[events], table["label"].to_numpy())
        np.testing.assert_array_equal(log.time[events], table["time"].to_numpy())
        again = evaluate_predictions(table["label"], table["logit"].to_numpy(), table["user"].to_numpy())
        for name, value in metrics["split metrics"][part].items():
            assert again[name] == pytest.approx(value, abs=1e-6), name
    assert AutoProcessor.from_pretrained(run).fingerprint == read(run, "config.json")["processor_fingerprint"]


@pytest.mark.parametrize("family", SOME)
def test_metrics_do_not_depend_on_how_samples_are_gathered(trained, family, tmp_path):
    """One sample per row, as in the run, or five: the same metrics, and predictions by event."""
    run = trained(family)
    target = tmp_path / "gathered.parquet"
    words = ["--data.eval_candidates_per_row", "5", "--predictions", str(target), "--output", str(tmp_path / "m.json")]
    assert main(["evaluate", str(run), *words]) == 0
    stored = read(run, "metrics.json")["split metrics"]["test"]
    assert json.loads((tmp_path / "m.json").read_text())["metrics"] == pytest.approx(stored, abs=1e-6)
    single, gathered = (pq.read_table(p).sort_by("event") for p in (run / "predictions" / "test.parquet", target))
    assert single["event"].equals(gathered["event"])
    np.testing.assert_allclose(single["logit"].to_numpy(), gathered["logit"].to_numpy(), atol=2e-5)


@pytest.mark.parametrize("family", SOME)
def test_requests_get_the_logits_of_the_run(trained, family, tmp_path):
    run, log = trained(family), sequence_log()
    stored = pq.read_table(run / "predictions" / "test.parquet").slice(0, 12)
    events = stored["event"].to_pylist()
    requests = [event_request(log, event, id=number) for number, event in enumerate(events)]
    answers = predict(run, tmp_path, requests, "--batch_size", "5")
    assert [answer["id"] for answer in answers] == list(range(12))
    np.testing.assert_allclose([answer["logit"] for answer in answers], stored["logit"].to_numpy(), atol=2e-5)
    # many candidates of one user, of two scenarios, at one request
    base = event_request(log, events[0])
    item = base.pop("target")
    candidates = [item, {"item": 5, "scenario": "search"}, {"item": 9}, {"item": "999999"}]
    (several,) = predict(run, tmp_path, [{**base, "candidates": candidates}])
    assert several["logits"][0] == pytest.approx(stored["logit"][0].as_py(), abs=2e-5)
    source, target = tmp_path / "r.jsonl", tmp_path / "a.jsonl"
    source.write_text(json.dumps({**base, "candidates": candidates}) + "\n")
    assert main(["predict", str(run), "--requests", str(source), "--output", str(target), "--max_tokens", "100"]) == 0
    np.testing.assert_allclose(json.loads(target.read_text())["logits"], several["logits"], atol=2e-5)


def test_statistics_of_users_and_items(tmp_path, capsys):
    names = ["user_rate", "log_item_count", "last_5_mean"]
    path, run = tmp_path / "r.yaml", tmp_path / "run"
    path.write_text(yaml.safe_dump(recipe_of("dlrm_twin", statistics=names)))
    assert main(["train", str(path), "--output_dir", str(run)]) == 0
    assert " rows of samples per step, " in capsys.readouterr().out
    stated = read(run, "data.json")["statistics"]
    assert stated["names"] == ["user_rate", "item_count", "last_5_mean"]  # the old name of a count is still read
    assert read(run, "config.json")["num_statistics"] == 3
    assert main(["card", str(run)]) == 0
    card = (run / "README.md").read_text()
    assert "`statistics` are the columns `user_rate`, `item_count`, `last_5_mean`" in card
    assert f"counts them on a log, with rates smoothed towards {stated['prior']:.6g}" in card
    # what the model is given, computed event by event
    log, stored = sequence_log(), pq.read_table(run / "predictions" / "test.parquet").slice(0, 8)
    requests, same = [], []
    for event in stored["event"].to_pylist():
        before = (log.time < log.time[event]) & (log.label >= 0)
        mine = np.flatnonzero(before & (log.user == log.user[event]))
        rate = (log.label[mine].sum() + 3 * stated["prior"]) / (len(mine) + 3)
        shown = (before & (log.item == log.item[event])).sum()
        last = log.label[mine[-5:]].mean() if len(mine) else None
        request = event_request(log, event)
        item = request.pop("target")
        values = [rate, int(shown), last]
        requests.append({**request, "target": {"item": item, "statistics": values}})
        same.append({**request, "target": {"item": item, "statistics": [None] * 3}})
    logits = [answer["logit"] for answer in predict(run, tmp_path, requests)]
    np.testing.assert_allclose(logits, stored["logit"].to_numpy(), atol=2e-5)
    others = [answer["logit"] for answer in predict(run, tmp_path, same)]
    assert np.abs(np.subtract(others, logits)).max() > 1e-3
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps({**requests[0], "target": {"item": 3}}) + "\n")
    capsys.readouterr()
    message = error_of(capsys, "predict", run, "--input", source)
    # left out, they would be counted from the history, whose behaviours do not say their labels
    assert "line 1: history[0] has no 'label', which its behavior does not say here" in message


def test_rates_are_smoothed_as_in_training_on_data_with_another_rate(tmp_path):
    """A user without events has the rate of the model's own training, whatever the rate of the data at hand."""
    own, processor = prepared(tmp_path, statistics=["user_rate", "item_rate"])
    labels = own.log.label[own.splits.train]
    assert processor.statistics_prior == labels[labels >= 0].mean()
    processor.save_pretrained(tmp_path / "processor")
    other, _ = prepared(tmp_path, statistics=["user_rate", "item_rate"])
    flipped = np.where(other.log.label >= 0, 1 - other.log.label, other.log.label)
    other.log = dataclasses.replace(other.log, label=flipped)
    other._split()
    other.open(other.load_processor(tmp_path / "processor"))
    first = np.concatenate([other.splits.train, other.splits.test])
    first = first[other.log.history_end[first] == other.log.offsets[other.log.user[first]]]
    assert len(first)
    assert other.statistics_reader().prior == pytest.approx(1 - processor.statistics_prior)
    given = other.view.batch(first)["statistics"].numpy()[..., 0].ravel()
    reader = processor.statistics_reader
    prior = (np.log(reader.prior / (1 - reader.prior)) - reader.mean[0]) / reader.scale[0]
    np.testing.assert_allclose(given, prior, atol=1e-5)


def test_statistics_that_the_catalogue_does_not_have(tmp_path):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(recipe_of("astro", statistics=["release_year"])))
    view = input_of(load_recipe(path))
    view.load()
    view.log = dataclasses.replace(view.log, catalogue=view.log.catalogue.drop_columns("year"))
    with pytest.raises(ValueError, match="names 'release_year', but the catalogue has no numeric column 'year'"):
        view.make_processor()


def test_several_tasks(trained, tmp_path):
    run, log = trained("astro", ("label", "like")), sequence_log()
    table = pq.read_table(run / "predictions" / "test.parquet")
    assert table.column_names[-4:] == ["label", "logit", "label_like", "logit_like"]
    metrics = read(run, "metrics.json")["split metrics"]["test"]
    for end in ("", "_like"):
        again = evaluate_predictions(table[f"label{end}"].to_numpy(), table[f"logit{end}"].to_numpy())
        assert metrics["like_auc" if end else "auc"] == pytest.approx(again["auc"], abs=1e-6)
    assert metrics["label_auc"] == metrics["auc"]
    (answer,) = predict(run, tmp_path, [event_request(log, table["event"][0].as_py())])
    assert answer["logit"] == pytest.approx(
        {"label": table["logit"][0].as_py(), "like": table["logit_like"][0].as_py()}, abs=2e-5
    )
    assert main(["evaluate", str(run), "--output", str(tmp_path / "m.json")]) == 0
    assert json.loads((tmp_path / "m.json").read_text())["metrics"] == pytest.approx(metrics, abs=1e-9)


BAD_REQUESTS = [
    ({"scenario": "homee"}, "line 1: candidates: candidate 0: unknown scenario 'homee'. Did you mean 'home'"),
    ({"history": [{"item": 1, "behavior": "likes", "time": 1}]}, "history[0]: unknown behavior 'likes'"),
    ({"history": [{"item": 1, "time": 9}, {"item": 1, "time": 4}]}, "history[1]: time 4 is before the event in front"),
    ({"history": [{"text": "Heat", "time": 1}]}, "line 1: unknown key 'text'"),
    ({"history": ["Heat"]}, 'an object with "item" and "time"'),
    ({"target": [1]}, 'a candidate is the id of an item, or an object with "item"'),
    ({"scene": "home"}, "unknown key 'scene' in the request"),
    (
        {"target": {"item": None}},
        "no 'item'; it is null (None), and the id of an item, a text or a whole number, is accepted",
    ),
    ({"target": {"time": 5}}, "no 'item'; it has ['scenario', 'time'], and the id of an item"),
]


@pytest.mark.parametrize(("change", "words"), BAD_REQUESTS)
@pytest.mark.parametrize("option", ["--input", "--requests"])
def test_bad_requests_name_line_and_place(trained, tmp_path, capsys, change, words, option):
    run = trained("astro")
    source = tmp_path / "r.jsonl"
    source.write_text(json.dumps({"history": [], "target": 1, "time": 10, "scenario": "home", **change}) + "\n")
    error = error_of(capsys, "predict", run, option, source)
    assert "line 1" in error
    if option == "--input":
        assert words.removeprefix("line 1: ") in error
    else:  # the scorer's own words for the same
        assert words.split(": ")[-1] in error


def test_empty_histories_and_unknown_items_have_scores(trained, tmp_path):
    """A user without events, and an item that the training part never showed: documented, no error."""
    empty = {"history": [], "target": 123456, "time": 10, "scenario": "home"}
    (answer,) = predict(trained("astro"), tmp_path, [empty])
    assert np.isfinite(answer["logit"])


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"model.task_names": "[a]"}, "model.task_names is not set in a recipe; set data.tasks"),
        ({"model.max_history_length": "5"}, "set data.max_history_length"),
        ({"model.num_behaviors": "5"}, "it follows from the data"),
        ({"data.candidates_per_row": "0"}, "data.candidates_per_row is 0, accepted: a whole number from 1"),
        ({"data.candidates_per_row": "1", "data.window_seconds": "60"}, "data.candidates_per_row is 1"),
        ({"data.tasks": "[label, label]"}, "at least one label, all different"),
        ({"model.task_weights": "[1, 2]"}, "2 numbers for the 1 tasks"),
        ({"data.split": "rows"}, "data.split is 'rows'"),
        ({"data.window": "5"}, "did you mean 'window_seconds'"),
        ({"data.statistics": "[user_rates]"}, "did you mean 'user_rate'"),
        ({"data.statistics": "[user_rate, user_rate]"}, "accepted: all different"),
        ({"model.num_statistics": "2"}, "set data.statistics"),
    ],
)
def test_bad_recipes(tmp_path, overrides, message):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(recipe_of("astro")))
    with pytest.raises(RecipeError) as error:
        load_recipe(path, list(overrides.items()))
    assert message in str(error.value)


def prepared(tmp_path, overrides=(), family="astro", **data):
    """The view of a recipe after the steps before a training."""
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(recipe_of(family, **data)))
    view = input_of(load_recipe(path, list(overrides)))
    view.load()
    view.check()
    return view, view.make_processor()


@pytest.mark.parametrize(
    ("strategies", "message"),
    [
        ([{"name": "a", "behaviors": ["likes"]}], "unknown name 'likes'; did you mean 'like'"),
        (
            [{"name": "all"}, {"name": "never", "behaviors": ["unknown"]}],
            "'never' of model.strategies selects no event",
        ),
        ([{"name": "a", "window_days": 0}], "the window is 0"),
        ([{"name": "a", "window_seconds": 0.5}], "the window is 0.5; use a number above 0, of a second at least"),
    ],
)
def test_strategies_that_cannot_be_meant(tmp_path, strategies, message):
    with pytest.raises(ValueError, match=message):
        prepared(tmp_path, [("model.strategies", json.dumps(strategies)), ("model.sequence_length", "60")])


def write_log(folder, rows):
    (folder / "e.csv").write_text("u,i,t,y\n" + "".join(",".join(map(str, row)) + "\n" for row in rows))
    schema = {
        "name": "own",
        "events": "e.csv",
        "columns": {"user": "u", "item": "i", "time": {"column": "t", "unit": "s"}, "label": "y"},
    }
    (folder / "e.yaml").write_text(yaml.safe_dump(schema))
    return {"name": str(folder / "e.yaml"), "options": {}, "item_features": []}


def test_a_log_without_sequences_is_refused(tmp_path):
    """One event per user: nothing to learn a sequence model from."""
    rows = [(user, user % 5, 100 + user, user % 2) for user in range(60)]
    with pytest.raises(ValueError, match="no training sample of 'own' has an event before it"):
        prepared(tmp_path, **write_log(tmp_path, rows))


def test_long_histories_are_told_of_before_the_training(tmp_path):
    """Whole histories cost a batch the length of the longest; more than a model has positions for fail in the middle or at the end."""
    rows = [
        (user, step % 7, 100 * step + user, (user + step) % 2)
        for user, count in enumerate([1500, 20, 20])
        for step in range(count)
    ]
    data = write_log(tmp_path, rows)
    view, _ = prepared(tmp_path, family="din", **data, max_history_length=None)
    longest = int(view.log.history_lengths(view.splits.train).max())
    assert 1000 < longest < view.log.history_lengths(view.splits.test).max()
    whole = int(view.log.history_lengths(view.splits.train).sum())
    (line,) = [line for line in view.check() if "data.max_history_length is null" in line]
    assert f"has {longest:,} events" in line
    assert f"reads {whole:,} events" in line
    view, _ = prepared(tmp_path, family="din", **data, max_history_length=200)
    assert not [line for line in view.check() if "max_history_length" in line]
    limit = [("model.num_positions", str(longest))]
    with pytest.raises(
        ValueError, match=f"of the (validation|test) part .* model.num_positions: {longest}; set data.max"
    ):
        prepared(tmp_path, limit, "behavior_transformer", **data, max_history_length=None)
    prepared(tmp_path, limit, "behavior_transformer", **data, max_history_length=longest)


def test_one_behaviour_type_gives_one_block(tmp_path):
    """A log that says nothing of its events' behaviour has blocks by strategy, or a single one of all events."""
    rows = [
        (user, (user + step) % 7, 100 * step + user, (user + step) % 2) for user in range(12) for step in range(10)
    ]
    view, processor = prepared(tmp_path, [("model.strategies", '[{"name": "all"}]')], **write_log(tmp_path, rows))
    view.open(processor)
    torch.manual_seed(0)
    model = view.model(processor)
    assert model.config.num_blocks == 1
    batch = view.collator(False)([view.training_dataset()[0], view.training_dataset()[1]])
    assert torch.isfinite(model(**batch).loss)


def test_a_limit_and_rows_of_one_scenario(tmp_path):
    view, processor = prepared(
        tmp_path, max_train_samples=100, max_eval_samples=30, same_scenario=True, max_history_length=7
    )
    view.open(processor)
    rows = view.training_dataset().rows
    assert (rows >= 0).sum() == 100 == view.num_samples("train")
    scenario = view.log.scenario
    assert all(len(set(scenario[row[row >= 0]])) == 1 for row in rows)
    assert len(view.dataset("train")) == 100  # measured one sample per row
    described = view.describe()
    assert described["counts"]["samples"] == {"train": 100, "validation": 30, "test": 30}
    assert described["histories"]["test"]["longest"] == 7
    assert described["histories"]["test"]["share_cut"] > 0.9
    assert view.identify("test")["event"].to_pylist() == view.splits.test.tolist()


def test_a_first_task_that_is_not_the_label(tmp_path):
    view, _ = prepared(tmp_path, tasks=["like"], max_train_samples=200)
    assert view.best_auc is None
    measured, _ = view.baselines(0)
    rate = measured["counting"]["test"]["positive_rate"]
    assert rate == pytest.approx(float(np.mean(view.log.extra_labels["like"][view.splits.test])))
    with pytest.raises(ValueError, match="did you mean 'like'"):
        prepared(tmp_path, tasks=["likes"])


def test_every_sequence_family_of_the_library_can_be_named_in_a_recipe():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from lmctr.models.common.configuration import SequenceCTRConfig

    found = [name for name in lmctr.list_models() if issubclass(CONFIG_MAPPING[name], SequenceCTRConfig)]
    assert sorted(found) == sorted(family.model_type for family in families("sequence")) == sorted(MODELS)


def test_evaluating_other_data_with_the_runs_processor(trained, tmp_path, capsys):
    options = json.dumps({**OPTIONS, "num_users": 50})
    assert main(["evaluate", str(trained("astro")), "--data.options", options]) == 0
    assert "the run was trained with its own value" in error_of(
        capsys, "evaluate", trained("astro"), "--data.max_history_length", "5"
    )
    options = json.dumps({**OPTIONS, "num_scenarios": 5})
    assert "which the processor does not know" in error_of(
        capsys, "evaluate", trained("astro"), "--data.options", options
    )


def test_attention_by_behaviour(trained, tmp_path, capsys):
    runs = [str(trained("astro")), str(trained("twin"))]
    assert main(["analyze", "behaviors", *runs, "--num-samples", "20", "--output", str(tmp_path)]) == 0
    written = json.loads((tmp_path / "behaviors_comparison.json").read_text())
    blocks = {tuple(entry["block_names"]) for entry in written["runs"]}
    assert blocks == {("full-play", "like"), ("all",)}
    astro = next(entry for entry in written["runs"] if len(entry["block_names"]) == 2)
    np.testing.assert_allclose(
        astro["shares"][0], [[0, 1, 0], [0, 0, 1]], atol=1e-6
    )  # each block holds one behaviour type
    assert (tmp_path / "behaviors_comparison.png").stat().st_size > 1000
    assert "attention, whole model" in capsys.readouterr().out


def test_runs_of_other_behaviour_types_have_a_picture_each(trained, tmp_path, monkeypatch):
    def renamed(model, *given):
        found = behavior_attention(model, *given)
        names = tuple(f"{name} of mine" for name in found.behavior_names)
        return dataclasses.replace(found, behavior_names=names) if model.config.model_type == "twin" else found

    monkeypatch.setattr("lmctr.studies.analyses.behaviors.behavior_attention", renamed)
    runs = [str(trained("astro")), str(trained("twin"))]
    assert main(["analyze", "behaviors", *runs, "--num-samples", "20", "--output", str(tmp_path)]) == 0
    pictures = sorted(path.stem for path in tmp_path.glob("*.png"))
    assert pictures == ["behaviors_comparison_astro-label", "behaviors_comparison_twin-label"]


def test_what_the_answers_of_several_runs_hang_on(trained, tmp_path, capsys):
    runs = [str(trained("astro")), str(trained("twin"))]
    assert main(["analyze", "importance", *runs, "--num-samples", "60", "--output", str(tmp_path)]) == 0
    assert "95 % interval" in capsys.readouterr().out
    written = json.loads((tmp_path / "importance_comparison.json").read_text())
    for entry in written["runs"]:
        assert {"history", "item"} <= {loss["column"] for loss in entry["losses"]}
    pictures = sorted(path.stem for path in tmp_path.glob("*.png"))
    assert pictures == ["importance_comparison_astro-label", "importance_comparison_twin-label"]


@pytest.mark.parametrize(
    ("measure", "data", "family", "words"),
    [
        ("behaviors", "synthetic_table", "dnn", "has no event sequences"),
        ("importance", "synthetic_cascade", "retrieval_mlp", "ranks ads of impressions, which have no clicks"),
        ("next", "synthetic_cascade", "retrieval_mlp", "ranks ads of impressions, which have no clicks"),
    ],
)
def test_other_families_are_refused(tmp_path, capsys, measure, data, family, words):
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"data": {"name": data}, "model": {"family": family}}))
    (tmp_path / "metrics.json").write_text("{}")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family}))
    assert words in error_of(capsys, "analyze", measure, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["astro", "din"])
def test_killed_run_resumes_to_the_same_model(family, tmp_path, lmctr_process):
    path = tmp_path / "r.yaml"
    recipe = recipe_of(family)
    recipe["training"]["stage2_epochs"] = 4
    recipe["data"]["baselines"] = False
    path.write_text(yaml.safe_dump(recipe))
    lmctr_process("train", path, "--output_dir", tmp_path / "whole")
    folder = tmp_path / "killed"
    words = ["train", path, "--output_dir", folder]
    marks = f"checkpoints/checkpoint-*/{MARKER}"
    lmctr_process(*words, kill_when=lambda: any(folder.glob(marks)))
    assert not (folder / "metrics.json").exists()
    assert "resuming from" in lmctr_process(*words, "--resume").out
    left, right = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert left.keys() == right.keys()
    assert all(torch.equal(left[key], right[key]) for key in left)
    left, right = (read(tmp_path / name, "metrics.json") for name in ("whole", "killed"))
    assert left["evaluations"] == right["evaluations"]
    assert left["split metrics"] == right["split metrics"]


@pytest.mark.slow
@pytest.mark.parametrize("family", ["astro", "twin"])
def test_two_processes_give_the_metrics_of_one(family, tmp_path, lmctr_process, lmctr_launch):
    path = tmp_path / "r.yaml"
    path.write_text(yaml.safe_dump(recipe_of(family, ("label", "like"), baselines=False, max_eval_samples=41)))
    lmctr_process("train", path, "--output_dir", tmp_path / "one")
    lmctr_launch("train", path, "--output_dir", tmp_path / "two", "--training.per_device_train_batch_size", "8")
    one, two = (read(tmp_path / name, "metrics.json") for name in ("one", "two"))
    assert (one["num_processes"], two["num_processes"]) == (1, 2)
    assert one["steps"] == two["steps"]
    left, right = (pq.read_table(tmp_path / n / "predictions" / "test.parquet") for n in ("one", "two"))
    assert left["event"].equals(right["event"])
    for name in ("logit", "logit_like"):
        np.testing.assert_allclose(left[name].to_numpy(), right[name].to_numpy(), atol=1e-3)


@pytest.mark.parametrize(("statistics", "known"), [([], True), ("full", False)])
@pytest.mark.parametrize("family", ["din", "dnn"])
def test_the_best_reader_of_histories_is_no_bound_for_statistics_of_labels(tmp_path, family, statistics, known):
    """On a log whose histories hide the labels of earlier samples."""
    sizes = {"hidden_units": [4]}
    if family == "din":
        sizes = {"attention_hidden_sizes": [4], "head_hidden_sizes": [4]}
    recipe = {
        "data": {"name": "synthetic_sequence", "options": {"num_users": 40, "events_per_user": 40}, "baselines": False}
        | ({"item_features": ["genres"]} if family == "din" else {})
        | {"statistics": statistics},
        "model": {"family": family, "embedding_dim": 4, **sizes},
        "training": {"epochs": 1, "per_device_train_batch_size": 16, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert (run.metrics["best_auc"] is not None) == known
