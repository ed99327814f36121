"""`lmctr train RECIPE --from RUN` of texts: a CTR-Sink goes on with a log that reaches further, its processor as it was."""

import dataclasses
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import yaml
from optimisers import steps_at_best
from safetensors.torch import load_file
from tiny_backbones import TINY_BERT
from transformers import BertConfig, BertModel, TrainerCallback

import lmctr
from lmctr.cli.main import main
from lmctr.data import InteractionLog, TextView, load_log
from lmctr.data.logs.retrieval import TextRetriever
from lmctr.runs.folder import RunFolder
from lmctr.runs.recipe import load_recipe
from lmctr.runs.training import Training
from lmctr.training.lora import load_adapter, merge_lora
from lmctr.training.tokenizers import train_tokenizer

START, DAY = 1_700_000_000, 86_400
WORDS = ["night", "train", "river", "stone", "paper", "cloud", "garden", "winter"]
FIRST_DAYS, ALL_DAYS = 6, 9
SINCE = START + FIRST_DAYS * DAY
RECIPE = {
    "data": {
        "prompt": {"base": "generic/en", "item": "{title}"},
        "num_behaviors": 4,
        "feedback": "sink",
        "statistics": "basic",
        "baselines": False,
    },
    "model": {
        "family": "ctr_sink",
        "backbone": TINY_BERT | {"max_position_embeddings": 64, "initializer_range": 0.1},
        "tokenizer": {"type": "wordpiece", "vocab_size": 120},
        "sink_signal": ["recency", "feedback_value", "statistic:item_rate"],
        "num_sink_buckets": 16,
        "sink_embedding_dim": 8,
    },
    "training": {
        "stage1_epochs": 1,
        "stage2_epochs": 1,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 32,
        "boosting_share": 0.5,
        "use_cpu": True,
        "seed": 0,
    },
}
STILL = {"training.learning_rate": 0.0, "training.weight_decay": 0.0}


def make_log(days, feedback_names=None):
    """Events of so many days; items of later days have words that no earlier one has."""
    draw = np.random.default_rng(3)
    count, users, items = 100 * ALL_DAYS, 40, 50
    time = START + np.sort(draw.integers(0, ALL_DAYS * DAY, count))
    item = draw.integers(0, items, count)
    late = time >= SINCE
    item[late] = draw.integers(0, items + 10, late.sum())
    user, label = draw.integers(0, users, count), ((item % 3 + draw.integers(0, 3, count)) > 2) * 1
    words = WORDS + ["zebra", "quartz"]
    titles = [f"{words[i % 8 if i < items else 8 + i % 2]} {words[i // 8 % 8]}" for i in range(items + 10)]
    kept = time < START + days * DAY
    more = {} if feedback_names is None else {"feedback": label[kept] + 1, "feedback_names": feedback_names}
    return InteractionLog.from_columns(
        user[kept],
        item[kept],
        time[kept],
        label[kept],
        catalogue=pa.table({"item_id": np.arange(items + 10), "title": titles}),
        feedback_values=(label + draw.integers(0, 3, count))[kept].astype(np.float32),
        **more,
    )


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    return [str(make_log(days).save(folder / f"days{days}")) for days in (FIRST_DAYS, ALL_DAYS)]


def recipe_of(log, **data):
    return {**RECIPE, "data": {**RECIPE["data"], "name": log, **data}}


def later(first, folder, log, overrides=None, **data):
    """A run that goes on from another one with the samples since the first days."""
    overrides = {"training.from_run": str(first.path), **(overrides or {})}
    return lmctr.runs.train(recipe_of(log, since=SINCE, **data), output_dir=folder, overrides=overrides)


@pytest.fixture(scope="module")
def first(logs, tmp_path_factory):
    """A finished run of the first days. Read it only."""
    return lmctr.runs.train(recipe_of(logs[0]), output_dir=tmp_path_factory.mktemp("run") / "first")


@pytest.fixture(scope="module")
def second(first, logs, tmp_path_factory):
    """The days after them, at a learning rate of 0: the weights are those that it began with."""
    return later(first, tmp_path_factory.mktemp("run") / "second", logs[1], STILL)


def weights(run):
    return load_file(run.path / "model.safetensors")


def assert_same_weights(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(other[name], value, atol=0, rtol=0, msg=name)


def test_weights_and_processor_are_those_of_the_earlier_run(first, second):
    assert any("trees" in name for name in weights(first))
    assert_same_weights(weights(first), weights(second))
    for name in ("tokenizer.json", "config.json"):
        assert json.loads((first.path / name).read_text()) == json.loads((second.path / name).read_text())
    assert_same_processor(first, second)


def test_the_newer_samples_alone_are_trained_on_and_measured(second, logs):
    log, data = load_log(logs[1]), second.path / "data.json"
    newer = np.flatnonzero(log.time >= SINCE)
    found = json.loads(data.read_text())
    assert sum(found["counts"]["samples"].values()) == len(newer)
    assert found["split"]["times"]["train"][0] == log.time[newer].min() >= SINCE
    trained = found["counts"]["samples"]["train"]
    assert trained == pytest.approx(0.8 * len(newer), abs=2)
    assert second.metrics["steps"] == 2 * -(-trained // 32)


def test_scores_are_the_earlier_models_on_the_whole_log(first, second, logs):
    """Histories, sinks and statistics reach back to the first days; their scales are the earlier run's."""
    log = load_log(logs[1])
    stored = pq.read_table(second.path / "predictions" / "test.parquet")
    events = stored["event"].to_numpy()
    assert log.history_lengths(events).min() > 10
    view = TextView(log, second.processor, samples=events)
    reader = second.processor.statistics_reader
    raw = reader.raw(log, events)
    seen = [np.sum((log.item == log.item[event]) & (log.time < log.time[event])) for event in events]
    np.testing.assert_array_equal(raw[:, reader.names.index("item_count")], seen)
    np.testing.assert_array_equal(view.statistics.of(events), reader.scaled(raw))
    before = first.processor.statistics_reader
    assert dataclasses.replace(reader, low=before.low, high=before.high) == before
    assert reader.high[reader.names.index("item_count")] > before.high[reader.names.index("item_count")]
    batch = {key: value for key, value in view.batch(events).items() if key != "labels"}
    with torch.no_grad():
        logits = first.model(**batch).logits.numpy()
    np.testing.assert_allclose(stored["logit"].to_numpy(), logits, atol=1e-5)


def test_the_optimiser_goes_on_too(first, second):
    assert steps_at_best(first) == {first.metrics["best_step"]}
    assert steps_at_best(second) == {first.metrics["best_step"] + second.metrics["best_step"]}


def test_it_is_loaded_evaluates_and_predicts_without_the_earlier_run(first, logs, tmp_path):
    before = lmctr.runs.train(recipe_of(logs[0]), output_dir=tmp_path / "before")
    after = later(before, tmp_path / "after", logs[1])
    shutil.rmtree(before.path)
    run = lmctr.runs.load(after.path)
    assert run.evaluate("test")["auc"] == pytest.approx(after.metrics["test"]["auc"], abs=1e-6)
    request = {
        "history": [
            {
                "text": "night train",
                "item": 3,
                "time": SINCE,
                "value": 2.0,
                "label": 1,
                "statistics": {"item_rate": 0.5},
            }
        ],
        "time": START + ALL_DAYS * DAY,
        "candidates": [{"text": "zebra river", "item": 55}, {"text": "cloud", "item": 5}],
    }
    assert np.isfinite(run.predict([request])).all()


def test_the_command_line_is_the_same_and_says_what_it_does(first, logs, tmp_path, capsys):
    (tmp_path / "day.yaml").write_text(yaml.safe_dump(recipe_of(logs[1], since=SINCE)))
    words = ["train", str(tmp_path / "day.yaml"), "--from", str(first.path), "--output-dir", str(tmp_path / "line")]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert f"going on from {first.path}: texts, sinks and statistics are read as they were\n" in said
    assert f"optimiser state of {first.path}" in said
    python = later(first, tmp_path / "python", logs[1])
    assert_same_weights(weights(lmctr.runs.load(tmp_path / "line")), weights(python))
    old = weights(first)
    assert any(not torch.equal(value, old[name]) for name, value in weights(python).items())


def test_samples_that_it_was_trained_on_are_told(first, logs, tmp_path, capsys):
    overrides = {"training.from_run": str(first.path), "training.max_steps": 1, "training.stage1_epochs": 0}
    lmctr.runs.train(recipe_of(logs[1]), output_dir=tmp_path / "run", overrides=overrides)
    log, last = load_log(logs[1]), json.loads((first.path / "data.json").read_text())["split"]["times"]["train"][1]
    words = (
        f"{(log.time <= last).sum():,} of {int(0.8 * log.num_events):,} training samples are no newer than those that "
    )
    said = capsys.readouterr().out
    assert words + f"it was trained on: with data.since {last + 1} they stand in" in said
    assert "no newer either" not in said


class Killed(TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 14:
            raise KeyboardInterrupt


def test_a_killed_run_goes_on_to_the_same_weights(first, logs, tmp_path):
    overrides = {"training.save_strategy": "steps", "training.save_steps": 4, "training.eval_strategy": "steps"}
    overrides |= {"training.eval_steps": 4, "training.save_total_limit": 9}
    whole = later(first, tmp_path / "whole", logs[1], overrides)
    recipe = load_recipe(recipe_of(logs[1], since=SINCE), {"training.from_run": str(first.path), **overrides})
    cut = Training(recipe, RunFolder(tmp_path / "cut"), "auto", False, "test", quiet=True)
    make = cut._trainer

    def with_kill(*given):
        trainer = make(*given)
        trainer.add_callback(Killed())
        return trainer

    cut._trainer = with_kill
    with pytest.raises(KeyboardInterrupt):
        cut.run()
    assert whole.metrics["steps"] > 14
    assert sorted(path.name for path in (tmp_path / "cut" / "checkpoints").glob("checkpoint-*")) == [
        "checkpoint-12",
        "checkpoint-4",
        "checkpoint-8",
    ]
    resumed = later(first, tmp_path / "cut", logs[1], overrides)
    assert_same_weights(weights(whole), weights(resumed))
    assert resumed.metrics["evaluations"] == whole.metrics["evaluations"]


def test_refit_takes_both_parts_of_the_newer_samples(first, logs, tmp_path, capsys):
    run = later(first, tmp_path / "run", logs[1], {"training.refit": True})
    samples = json.loads((run.path / "data.json").read_text())["counts"]["samples"]
    assert run.metrics["training_samples"]["model"] == samples["train"] + samples["validation"]
    assert_same_processor(first, run)
    capsys.readouterr()
    third = later(run, tmp_path / "third", logs[1])  # the same samples: all of them were trained on, validation too
    said = capsys.readouterr().out
    count = samples["train"]
    assert f"; {count} of {count} training samples are no newer than those that it was trained on; " in said
    count = samples["validation"]
    assert (
        f"; {count} of {count} validation samples are no newer either: it may have been trained on them, and" in said
    )
    assert_same_processor(first, third)


def assert_same_processor(one, other):
    """All but the limits of statistics, which the later one's samples are within."""
    own, found = (run.processor.to_dict() for run in (one, other))
    for values in (own, found):
        assert all(values["statistics_reader"].pop(edge) for edge in ("low", "high"))
    assert own == found
    assert one.processor.fingerprint == other.processor.fingerprint


# ---- what may not change ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            {"model.backbone.hidden_size": 32},
            r"model.backbone is {.*'hidden_size': 32.*} here and {.*'hidden_size': 16",
        ),
        (
            {"model.tokenizer.vocab_size": 90},
            r"model.tokenizer is {.*90.*} here and {.*120.*} in .*first; keep it, or",
        ),
        ({"model.sink_token": "[S]"}, r"model.sink_token is '\[S\]' here and '\[SINK\]' in"),
        ({"model.sink_signal": "feedback"}, r"model.sink_signal is 'feedback' here and \['recency', 'feedback_value'"),
        ({"model.sink_bias_layers": []}, r"model.sink_bias_layers is \[\] here and None in"),
        ({"model.head_hidden_size": 8}, "model.head_hidden_size is 8 here and 32 in"),
        ({"data.statistics": "full"}, r"data.statistics is \['.*'\] here and \['.*'\] in"),
        (
            {"data.statistics": [], "training.boosting_share": 0.0, "model.sink_signal": "feedback"},
            "model.sink_signal is 'feedback'",
        ),
        ({"data.max_length": 48}, "data.max_length is 48 here and 64 in"),
        ({"data.num_behaviors": 5}, "data.num_behaviors is 5 here and 4 in"),
        ({"data.feedback": "inline"}, "data.feedback is 'inline' here and 'sink' in"),
        ({"data.trailing_sink": False}, "data.trailing_sink is False here and True in"),
        ({"data.prompt.head": "It was: "}, "data.prompt.head is 'It was: ' here and '"),
        ({"training.from_run": "somebody/ctr-sink"}, "run folder 'somebody/ctr-sink' does not exist"),
        (
            {"data.since": [1]},
            r"data.since is \[1\] \(list\), accepted: unix seconds or an ISO time \(2024-03-01\) or null",
        ),
        ({"data.since": "2030-01-01"}, "since: got 1893456000, accepted: a unix second up to 17007"),
    ],
)
def test_what_cannot_go_on_is_refused(first, logs, tmp_path, overrides, words):
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        later(first, tmp_path / "run", logs[1], overrides)
    assert not (tmp_path / "run" / "recipe.yaml").exists()


def test_what_only_says_how_to_train_may_change(first, logs, tmp_path):
    overrides = {"model.sink_bias_dropout": 0.3, "model.attn_implementation": "eager", "training.max_steps": 1}
    run = later(first, tmp_path / "run", logs[1], {**overrides, "training.stage1_epochs": 0, **STILL})
    assert run.model.config.sink_bias_dropout == 0.3
    assert_same_weights(weights(first), weights(run))


def test_a_default_that_changed_keeps_what_the_run_was_trained_with(first, logs, tmp_path):
    """The most tokens by default, which were others for an earlier version's decoders."""
    folder = shutil.copytree(first.path, tmp_path / "first")
    for name, key, value in (
        ("processor_config.json", "max_length", 60),
        ("config.json", "processor_fingerprint", None),
    ):
        values = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(values | {key: value}))
    (folder / "lmctr_manifest.json").unlink()
    run = later(
        lmctr.runs.load(folder), tmp_path / "run", logs[1], {"training.max_steps": 1, "training.stage1_epochs": 0}
    )
    assert run.processor.max_length == 60


def test_runs_of_other_families_are_refused(first, logs, tmp_path):
    short = {"epochs": 1, "max_steps": 1, "use_cpu": True}
    other = {"data": {"name": logs[0], "baselines": False}, "model": {"family": "din", "embedding_dim": 4}}
    din = lmctr.runs.train({**other, "training": short}, output_dir=tmp_path / "din")
    with pytest.raises(
        ValueError, match="din holds a model of the type din, the recipe makes one of the type ctr_sink"
    ):
        later(din, tmp_path / "text", logs[1])
    other["training"] = {"from_run": str(first.path)}
    with pytest.raises(ValueError, match="holds a model of the type ctr_sink, the recipe makes one of the type din"):
        lmctr.runs.train(other, output_dir=tmp_path / "other")


@pytest.mark.parametrize("described", [False, True])
def test_kinds_of_feedback_keep_their_codes(described, tmp_path):
    """By their names where the prompt has them; else another order is refused, in evaluations too."""
    one, other = ("skipped", "chosen") if described else ("seen", "bought")
    names = {"first": ["unknown", one, other], "other": ["unknown", other, one]}
    logs = {
        key: str(make_log(ALL_DAYS if key == "other" else FIRST_DAYS, own).save(tmp_path / key))
        for key, own in names.items()
    }
    recipe = recipe_of(logs["first"])
    recipe["model"] = {**RECIPE["model"], "sink_signal": ["feedback"]}
    recipe["training"] = {**RECIPE["training"], "max_steps": 1, "stage1_epochs": 0}
    first = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    own = {"model.sink_signal": ["feedback"]}
    if described:
        log, swapped = load_log(logs["first"]), tmp_path / "swapped"
        values = {name: getattr(log, name) for name in log.__dataclass_fields__}
        values |= {"feedback": np.array([0, 2, 1], np.int8)[log.feedback], "feedback_names": ("unknown", other, one)}
        InteractionLog(**values).save(swapped)
        expected = first.metrics["test"]["log_loss"]
        found = lmctr.runs.evaluate(first.path, overrides={"data.name": str(swapped)})
        assert found["log_loss"] == pytest.approx(expected, abs=1e-7)
        assert first.processor.feedback_labels == [-1, 0, 1]
        anew = lmctr.runs.train(
            {**recipe, "data": {**recipe["data"], "name": str(swapped)}}, output_dir=tmp_path / "anew"
        )
        assert anew.processor.feedback_labels == [-1, 0, 1]
        assert_same_weights(weights(first), weights(anew))
        assert later(first, tmp_path / "later", logs["other"], {**own, **STILL}).metrics
        return
    words = (
        "the kinds of feedback unknown, bought, seen, those of .*run were unknown, seen, bought; name them in that "
    )
    words += r"order, new ones at the end: names: \[seen, bought\] in feedback_names of the log$"
    with pytest.raises(ValueError, match=words):
        later(first, tmp_path / "later", logs["other"], own)
    with pytest.raises(ValueError, match=words):
        lmctr.runs.evaluate(first.path, overrides={"data.name": logs["other"]})


# ---- backbones, adapters, retrieval -------------------------------------------------------------------------------


def test_a_named_backbone_is_not_read_again(logs, tmp_path):
    tokenizer = train_tokenizer([" ".join(WORDS)], "wordpiece", 120)
    values = {key: value for key, value in RECIPE["model"]["backbone"].items() if key != "model_type"}
    torch.manual_seed(0)
    BertModel(BertConfig(**values, vocab_size=len(tokenizer))).save_pretrained(tmp_path / "bert")
    tokenizer.save_pretrained(tmp_path / "bert")
    named = {"model.backbone": str(tmp_path / "bert"), "model.tokenizer": None, "training.boosting_share": 0.0}
    first = lmctr.runs.train(recipe_of(logs[0]), output_dir=tmp_path / "first", overrides=named)
    shutil.rmtree(tmp_path / "bert")
    run = later(first, tmp_path / "later", logs[1], {**named, **STILL})
    assert_same_weights(weights(first), weights(run))
    with pytest.raises(ValueError, match=r"model.backbone is '.*' here and '.*bert' in .*first; keep it"):
        later(first, tmp_path / "other", logs[1], {**named, "model.backbone": "FacebookAI/roberta-base"})


@pytest.mark.parametrize("before", [None, {"r": 4}])
def test_adapters_start_anew_on_the_merged_model(logs, tmp_path, before, capsys):
    own = {"training.boosting_share": 0.0}
    first = lmctr.runs.train(
        recipe_of(logs[0]), output_dir=tmp_path / "first", overrides={**own, "training.lora": before}
    )
    still = later(first, tmp_path / "still", logs[1], {**own, **STILL, "training.lora": {"r": 2}})
    assert "adapters are merged at the end of a run and new in the next" in capsys.readouterr().out
    assert_same_weights(weights(first), weights(still))
    moved = later(
        first, tmp_path / "moved", logs[1], {**own, "training.lora": {"r": 2}, "training.learning_rate": 0.05}
    )
    name = "model.language_model.encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(weights(moved)[name], weights(first)[name])
    by_hand = merge_lora(load_adapter(lmctr.runs.load(first.path).model, moved.path / "adapter")).state_dict()
    for name, value in weights(moved).items():
        torch.testing.assert_close(by_hand[name], value, atol=1e-6, rtol=1e-5)
    with pytest.raises(
        ValueError,
        match=r"model: its weights are not those that the adapters in .* \(model.language_model.*; give that base: the model of the run first$",
    ):
        load_adapter(lmctr.runs.load(moved.path).model, moved.path / "adapter")
    load_adapter(lmctr.runs.load(first.path).model.bfloat16(), moved.path / "adapter")


def test_a_run_with_adapters_is_trained_on_whole(logs, tmp_path, capsys):
    own = {"training.boosting_share": 0.0}
    first = lmctr.runs.train(
        recipe_of(logs[0]), output_dir=tmp_path / "first", overrides={**own, "training.lora": {"r": 4}}
    )
    run = later(first, tmp_path / "run", logs[1], {**own, **STILL})
    assert "so the optimiser starts anew" in capsys.readouterr().out
    assert_same_weights(weights(first), weights(run))
    assert not (run.path / "adapter").exists()


def test_similarities_are_those_of_the_earlier_retriever(logs, tmp_path):
    own = {"data.order": "similarity", "data.retrieval": {"encoder": "tfidf", "k": 4}, "training.boosting_share": 0.0}
    own |= {"training.max_steps": 2, "training.stage1_epochs": 0}
    first = lmctr.runs.train(recipe_of(logs[0]), output_dir=tmp_path / "first", overrides=own)
    run = later(first, tmp_path / "run", logs[1], own)
    before, after, anew = (TextRetriever.from_pretrained(one.path / "retriever") for one in (first, run, first))
    assert after.fingerprint() == before.fingerprint()
    anew = TextRetriever("tfidf").fit(["zebra quartz", "zebra river"])
    assert anew.fingerprint() != before.fingerprint()
    with pytest.raises(ValueError, match=r"data.retrieval.encoder is 'package:x' here and 'tfidf' in"):
        later(first, tmp_path / "other", logs[1], {**own, "data.retrieval.encoder": "package:x"})
