"""`training.refit`: the steps chosen on validation, then a training on training and validation, against one put together by hand;
`training.rolling_origin`: the same recipe at earlier cuts of the training part."""

import copy
import re

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from transformers import TrainerCallback, set_seed

import lmctr
from lmctr.auto import AutoModelForCTR
from lmctr.data import load_impressions, load_log, load_tabular, split_log
from lmctr.data.impressions.store import ImpressionStore
from lmctr.data.logs.splits import PARTS
from lmctr.data.tables.source import SplitRule
from lmctr.runs import train, training
from lmctr.runs.verdict import strongest_baseline
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer

LOG = {"num_users": 40, "num_items": 30, "events_per_user": 60, "num_topics": 2}
TABLE = {"num_rows": 1000, "num_categorical": 4, "num_numeric": 2, "num_pairs": 3, "vocab_size": 300}
TRAINING = {
    "epochs": 3,
    "learning_rate": 3e-2,
    "per_device_train_batch_size": 64,
    "use_cpu": True,
    "seed": 5,
    "recency_half_life": 30.0,
}
RECIPES = {
    "sequence": {
        "data": {"name": "synthetic_sequence", "options": LOG, "item_features": ["genres"], "baselines": False},
        "model": {"family": "din", "embedding_dim": 4},
        "training": {**TRAINING, "ema_decay": 0.9},
    },
    "table": {
        "data": {"name": "synthetic_table", "options": TABLE, "baselines": False},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16]},
        "training": {key: value for key, value in TRAINING.items() if key != "recency_half_life"},
    },
}


class Stop(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def of_sequences():
    log = load_log("synthetic_sequence", **LOG)
    splits = split_log(log)
    both = np.concatenate([splits.train, splits.validation])
    processor = lmctr.SequenceProcessor.fit(log, both, item_features=["genres"])
    view = lmctr.data.SequenceView(log, processor)
    return processor, view, both, splits.test, lmctr.data.SequenceDataset, lmctr.data.SequenceCollator


def of_rows():
    """The parts stand in the order of the rows, so that another validation share of 0 is the same."""
    source = load_tabular("synthetic_table", **TABLE, fractions=(0.9, 0.0, 0.1))
    store = lmctr.data.TabularStore.build(source)
    view, parts = lmctr.data.TabularView(store), store.splits
    return store.processor, view, parts.train, parts.test, lmctr.data.TabularDataset, lmctr.data.TabularCollator


def by_hand(kind, recipe, folder, best_step):
    """Trained once for the proportional steps; the weights and the test scores."""
    processor, view, both, test, dataset, collator = {"sequence": of_sequences, "table": of_rows}[kind]()
    model = {key: value for key, value in recipe["model"].items() if key != "family"}
    config = lmctr.DINConfig if kind == "sequence" else lmctr.DNNConfig
    set_seed(5)
    model = AutoModelForCTR.from_config(config(**model, **processor.model_config_values()))
    values = {key: value for key, value in recipe["training"].items() if key != "epochs"}
    args = CTRTrainingArguments(str(folder), **values, stage2_epochs=3, eval_strategy="no", save_strategy="no")
    rows = both[np.lexsort((both, view.log.time[both]))] if kind == "sequence" else both
    before = round(len(rows) * 8 / 9)
    planned, again = 3 * -(-before // 64), 3 * -(-len(rows) // 64)
    trainer = CTRTrainer(
        model, args, collator(view), dataset(view, rows), callbacks=[Stop(round(again * best_step / planned))]
    )
    trainer.train()
    return model, trainer.predict(dataset(view, test)).predictions, len(rows)


@pytest.mark.parametrize("kind", RECIPES)
def test_refitting_is_one_training_on_both_parts(tmp_path, monkeypatch, kind):
    recipe = RECIPES[kind]
    plain = train(recipe, output_dir=tmp_path / "plain")
    measured, predict = [], CTRTrainer.predict
    with monkeypatch.context() as patch:
        patch.setattr(CTRTrainer, "predict", lambda *own, **named: measured.append(named) or predict(*own, **named))
        run = train(recipe, output_dir=tmp_path / "run", overrides={"training.refit": True, "data.baselines": True})
    measured = [named["metric_key_prefix"] for named in measured]
    assert measured == ["validation", "test"]  # the latter by the model that is kept alone
    model, scores, samples = by_hand(kind, recipe, tmp_path / "hand", plain.metrics["best_step"])
    found = run.model.state_dict()
    assert all(torch.equal(found[name], values) for name, values in model.state_dict().items())
    table = pq.read_table(run.path / "predictions" / "test.parquet")
    np.testing.assert_allclose(table["logit"].to_numpy(), scores, atol=1e-6)
    metrics, before = run.metrics, plain.metrics
    assert metrics["training_samples"]["model"] == samples > before["training_samples"]["model"]
    assert metrics["split metrics"]["validation"] == before["split metrics"]["validation"]
    assert metrics["split metrics"]["test"] != before["split metrics"]["test"]
    assert metrics["before_refit"]["best_step"] == before["best_step"]
    assert metrics["evaluations"] == before["evaluations"]
    assert run.evaluate("test") == pytest.approx(metrics["split metrics"]["test"], abs=1e-6)
    assert not (run.path / ".refit").exists()
    kept = [pq.read_table(folder / "predictions" / "validation.parquet") for folder in (plain.path, run.path)]
    assert kept[0].equals(kept[1])
    baseline = strongest_baseline(metrics["baselines"])
    gap = metrics["test"]["auc"] - metrics["baselines"][baseline]["test"]["auc"]
    low, high = re.search(r"95 % interval (\S+) to (\S+)\)", metrics["verdict"]).groups()
    assert (float(low) + float(high)) / 2 == pytest.approx(abs(gap), abs=1e-3)  # of the same samples


def test_usual_shares_of_unknown_values_are_those_before_validation_was_trained_on(tmp_path):
    """Else rows of users who are all new, as users of a test part by users are, would be taken for another column."""
    data = {"name": "synthetic_sequence", "options": LOG, "split": "user", "statistics": ["basic"], "baselines": False}
    recipe = {**RECIPES["table"], "data": data}
    plain = train(recipe, output_dir=tmp_path / "plain")
    run = train(recipe, output_dir=tmp_path / "run", overrides={"training.refit": True})
    usual = {name: run.processor.usual_unknown(name) for name in run.processor.field_names}
    assert usual == {name: plain.processor.usual_unknown(name) for name in usual}
    assert usual["user_id"] == 1.0
    assert run.evaluate("test") == pytest.approx(run.metrics["test"], abs=1e-6)


@pytest.mark.parametrize("kind", RECIPES)
def test_samples_that_were_drawn_are_trained_on_again(tmp_path, kind):
    """Those of validation come beside them; logs and tables alike."""
    overrides = {
        "training.refit": True,
        "data.max_train_samples": 90,
        "data.max_eval_samples": 40,
        "data.baselines": False,
    }
    run = train(RECIPES[kind], output_dir=tmp_path / "run", overrides=overrides)
    assert run.metrics["before_refit"]["training_samples"]["model"] == 90
    assert run.metrics["training_samples"]["model"] == 90 + 40


@pytest.mark.parametrize(("kind", "when"), [("table", "chosen"), ("sequence", "half"), ("table", "end")])
def test_a_killed_run_goes_on_where_it_was(tmp_path, monkeypatch, kind, when):
    """Killed before the second training, in it, and when all but the metrics is written; the first training is not repeated."""
    recipe = {**RECIPES[kind], "training": {**RECIPES[kind]["training"], "refit": True}}
    whole = train(recipe, output_dir=tmp_path / "whole")

    def killed(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if when == "half":
            own = training._FirstStep.on_step_end
            last = whole.metrics["before_refit"]["steps"] // 3 + 5  # an epoch and a little

            def on_step_end(self, args, state, control, **kwargs):
                if (
                    args.output_dir.endswith("checkpoints")
                    and ".refit" in args.output_dir
                    and state.global_step == last
                ):
                    raise KeyboardInterrupt
                return own(self, args, state, control, **kwargs)

            patch.setattr(training._FirstStep, "on_step_end", on_step_end)
        else:
            patch.setattr(training, "results_table" if when == "end" else "StopAt", killed)
        with pytest.raises(KeyboardInterrupt):
            train(recipe, output_dir=tmp_path / "killed")
    calls, fit = [], training.Training._fit
    monkeypatch.setattr(training.Training, "_fit", lambda self, *args: calls.append(args) or fit(self, *args))
    run = train(recipe, output_dir=tmp_path / "killed")
    assert len(calls) == 1
    for name, values in whole.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], values), name
    assert run.metrics["split metrics"] == whole.metrics["split metrics"]
    assert run.processor.fingerprint == whole.processor.fingerprint


def plain_earlier(log, splits, count):
    """Parts at an earlier cut, sample by sample."""
    events = [*splits.train.tolist(), *splits.validation.tolist()]
    size = len(splits.validation)
    first, last = (log.time[events[len(events) - (count + back) * size]] for back in (1, 0))
    train = [event for event in events if log.time[event] < first]
    return train, [event for event in events if first <= log.time[event] < last]


def test_trials_at_earlier_times_choose_the_epoch(tmp_path):
    recipe, log = RECIPES["sequence"], load_log("synthetic_sequence", **LOG)
    changes = {"training.refit": True, "training.rolling_origin": 2, "training.epochs": 4}
    run = train(recipe, output_dir=tmp_path / "run", overrides=changes)
    found, splits = run.metrics["rolling_origin"], split_log(log)
    for count in (1, 2):
        parts = plain_earlier(log, splits, count)
        assert len(parts[1]) > 0.9 * len(splits.validation)
        assert [splits.earlier(count, log.time)[part].tolist() for part in PARTS] == [*parts, []]
        processor = lmctr.SequenceProcessor.fit(log, parts[0], item_features=["genres"])
        view = lmctr.data.SequenceView(log, processor)
        set_seed(5)
        model = AutoModelForCTR.from_config(lmctr.DINConfig(embedding_dim=4, **processor.model_config_values()))
        values = {key: value for key, value in recipe["training"].items() if key != "epochs"}
        values |= {"save_strategy": "no", "load_best_model_at_end": False}
        args = CTRTrainingArguments(str(tmp_path / "hand"), **values, stage2_epochs=4)
        sets = [lmctr.data.SequenceDataset(view, part) for part in parts]
        trainer = CTRTrainer(model, args, lmctr.data.SequenceCollator(view), *sets)
        trainer.train()
        measured = [entry["eval_auc"] for entry in trainer.state.log_history if "eval_auc" in entry]
        assert found["values"][count - 1] == pytest.approx(measured, abs=1e-9)
    assert found["values"][2] == [entry["auc"] for entry in run.metrics["evaluations"]]
    assert found["means"] == pytest.approx(np.mean(found["values"], axis=0), abs=1e-12)
    assert found["best_epoch"] == np.argmax(found["means"]) + 1
    assert found["best_epochs"] == [int(np.argmax(own)) + 1 for own in found["values"]]
    rows = len(splits.train) + len(splits.validation)
    assert run.metrics["steps"] == found["best_epoch"] * -(-rows // 64)


def test_trials_that_cannot_be(tmp_path):
    log = load_log("synthetic_sequence", **LOG)
    with pytest.raises(ValueError, match=r"8 trials at earlier times leave 4 of 380 training samples"):
        split_log(log).earlier(8, log.time)
    with pytest.raises(ValueError, match="cut by time, these are cut by 'user'"):
        split_log(log, rule="user").earlier(1, log.time)
    with pytest.raises(ValueError, match=r"training.rolling_origin tries earlier cuts of an interaction log"):
        train(RECIPES["table"], output_dir=tmp_path / "table", overrides={"training.rolling_origin": 1})
    assert not (tmp_path / "table").exists()  # before the data were read
    with pytest.raises(ValueError, match="rolling_origin compares epochs"):
        CTRTrainingArguments(str(tmp_path), rolling_origin=1, eval_strategy="no")


def test_impressions_of_validation_become_training_ones():
    options = {
        "num_impressions": 60,
        "num_users": 30,
        "num_ads": 40,
        "num_matched": 30,
        "num_preranked": 20,
        "num_ranked": 12,
    }
    source = load_impressions("synthetic_cascade", **options, fractions=(0.5, 0.25, 0.25))
    plain, merged = ImpressionStore.build(source), ImpressionStore.build(source.with_validation())
    parts = [np.asarray(store.split) for store in (plain, merged)]
    assert set(parts[0].tolist()) == {0, 1, 2}
    assert np.array_equal(parts[1], np.where(parts[0] == 1, 0, parts[0]))
    assert source.fingerprint != source.with_validation().fingerprint


@pytest.mark.parametrize("rule", ["rows", "given"])
def test_rows_of_validation_become_training_ones(rule):
    source = load_tabular("synthetic_table", **TABLE)  # its pieces say their part
    if rule == "rows":
        pieces = tuple(copy.copy(piece) for piece in source.pieces)
        for piece in pieces:
            object.__setattr__(piece, "part", None)
        source = lmctr.data.TableSource(pieces, source.fields, split=SplitRule("rows", (0.5, 0.25, 0.25)))
    merged = source.with_validation()
    count = {part: sum(len(rows) for rows in source.rows(part=part)) for part in PARTS}
    found = {part: sum(len(rows) for rows in merged.rows(part=part)) for part in PARTS}
    assert min(count.values()) > 0
    assert found == {"train": count["train"] + count["validation"], "validation": 0, "test": count["test"]}
    codes = [np.concatenate([rows.split for rows in table.rows()]) for table in (source, merged)]
    assert np.array_equal(codes[1], np.where(codes[0] == 1, 0, codes[0]))
    assert source.fingerprint != merged.fingerprint


def test_a_plateau_schedule_is_refused(tmp_path):
    with pytest.raises(ValueError, match="refit trains again without evaluations"):
        CTRTrainingArguments(str(tmp_path), refit=True, lr_scheduler_type="reduce_lr_on_plateau", warmup_steps=0)
