"""Options that touch the same thing, two at a time: what each does alone is tested elsewhere."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file
from tiny_backbones import TINY_BERT

import lmctr
from lmctr.training.trainer import CTRTrainer

LOG = {"num_users": 40, "num_items": 30, "events_per_user": 50, "num_topics": 2}
TRAINING = {"epochs": 3, "learning_rate": 2e-2, "per_device_train_batch_size": 64, "use_cpu": True, "seed": 3}
SEQUENCE = {
    "data": {"name": "synthetic_sequence", "options": LOG, "baselines": False},
    "model": {"family": "din", "embedding_dim": 4},
    "training": TRAINING,
}
TABLE = {
    "data": {
        "name": "synthetic_table",
        "options": {"num_rows": 1000, "num_categorical": 3, "num_numeric": 1, "num_pairs": 1, "vocab_size": 60},
        "baselines": False,
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
    "training": TRAINING,
}
TEXT = {
    "data": {
        "name": "synthetic",
        "options": {"num_users": 40, "num_items": 40, "events_per_user": 20},
        "prompt": {"base": "generic/en", "item": "{genres}"},
        "num_behaviors": 4,
        "max_train_samples": 200,
        "max_eval_samples": 100,
        "baselines": False,
    },
    "model": {
        "family": "ctr_sink",
        "backbone": TINY_BERT | {"num_hidden_layers": 2, "initializer_range": 0.1},
        "tokenizer": {"type": "wordpiece", "vocab_size": 200},
        "sink_kind": "sink",
        "sink_signal": "recency",
        "num_sink_buckets": 8,
        "sink_embedding_dim": 8,
    },
    "training": {
        "stage2_epochs": 2,
        "learning_rate": 5e-3,
        "per_device_train_batch_size": 32,
        "use_cpu": True,
        "seed": 3,
    },
}


def train(folder, recipe, quiet=True, **overrides):
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    return lmctr.runs.train(recipe, output_dir=folder, overrides=keys, quiet=quiet)


def test_rows_that_do_not_hold_all_samples_are_references_too(tmp_path):
    """The first rows of the test part lack samples: they are kept for `lmctr push` all the same."""
    run = train(tmp_path / "run", SEQUENCE, data__eval_candidates_per_row=4, training__epochs=1)
    kept = load_file(run.path / "reference.safetensors")
    assert kept["logits"].shape == (8, 4)
    assert run.evaluate("test")["auc"] == pytest.approx(run.metrics["test"]["auc"])


def test_rows_without_all_labels_are_references_too(tmp_path):
    table = half_labelled()
    pq.write_table(table, tmp_path / "rows.parquet")
    rule = {"labels": ["click", "sale"], "split": "rows"}
    data = {"name": str(tmp_path / "rows.parquet"), "options": rule, "baselines": False}
    run = train(tmp_path / "run", {**TABLE, "data": data}, training__epochs=1)
    assert len(load_file(run.path / "reference.safetensors")["logits"]) == 8
    scores = run.predict(table.slice(900).to_pylist())
    first = pq.read_table(run.path / "predictions" / "test.parquet")
    assert scores[:, 0] == pytest.approx(first["logit"].to_numpy(), abs=1e-5)


def half_labelled():
    """1,000 rows whose last tenth has one label of the two each."""
    draw = np.random.default_rng(0)
    click = draw.integers(0, 2, 1000)
    sale = [None if row >= 900 and row % 2 else int(value) for row, value in enumerate(draw.integers(0, 2, 1000))]
    click = [None if row >= 900 and not row % 2 else int(value) for row, value in enumerate(click)]
    return pa.table({"user": [f"u{value}" for value in draw.integers(0, 20, 1000)], "click": click, "sale": sale})


def test_cuts_are_compared_by_the_loss_too(tmp_path):
    found = train(
        tmp_path / "run", SEQUENCE, training__rolling_origin=1, training__metric_for_best_model="eval_loss"
    ).metrics
    values = [[entry["log_loss"] for entry in found["evaluations"]], found["rolling_origin"]["values"][1]]
    assert values[1] == pytest.approx(values[0])
    means = found["rolling_origin"]["means"]
    assert found["rolling_origin"]["best_epoch"] == int(np.argmin(means)) + 1


@pytest.mark.parametrize("values", [{"max_steps": 10}, {"metric_for_best_model": None}])
def test_cuts_need_whole_epochs_and_a_metric(tmp_path, values):
    with pytest.raises(ValueError, match="rolling_origin compares whole epochs by metric_for_best_model, got"):
        lmctr.CTRTrainingArguments(str(tmp_path), rolling_origin=1, load_best_model_at_end=False, **values)


def test_the_last_weights_are_of_the_last_step(tmp_path):
    """Without `load_best_model_at_end` a next day takes up the optimiser of the weights that it takes up, and refit trains all steps."""
    # a metric that stays as it is: the first evaluation is the best one
    last = {"training__load_best_model_at_end": False, "training__metric_for_best_model": "eval_positive_rate"}
    first = train(tmp_path / "day0", TABLE, **last)
    steps = first.metrics["steps"]
    assert first.metrics["best_step"] == steps
    train(tmp_path / "day1", TABLE, **last, training__from_run=str(first.path), training__epochs=1)
    state = torch.load(next((tmp_path / "day1" / "checkpoints").glob("*")) / "optimizer.pt", weights_only=True)[
        "state"
    ]
    assert {int(entry["step"]) for entry in state.values()} == {steps + steps // 3}
    again = train(tmp_path / "again", TABLE, **last, training__refit=True)
    assert again.metrics["steps"] == again.metrics["planned_steps"]


def test_an_evaluation_at_the_start_is_none_of_the_second_training(tmp_path):
    found = train(tmp_path / "run", TABLE, training__refit=True, training__eval_on_start=True, training__epochs=1)
    assert [entry["step"] for entry in found.metrics["evaluations"]] == [0, 13]
    assert found.metrics["before_refit"]["steps"] == 13


def test_the_metric_that_decides_is_known_before_data_are_read(tmp_path):
    keys = {"training__metric_for_best_model": "eval_logloss", "data__path": "nowhere"}
    with pytest.raises(ValueError, match=r"'eval_logloss' is no metric of these samples; .*eval_log_loss"):
        train(tmp_path / "run", TABLE, **keys)


def test_a_training_that_ends_in_stage_1_says_so(tmp_path, capsys):
    keys = {"training__stage1_epochs": 1, "training__stage2_epochs": 1}
    told = "max_steps=7 ends in stage 1, whose 1 epochs (stage1_epochs) are 7 steps"
    for steps in (7, 8):
        run = train(tmp_path / str(steps), TEXT, quiet=False, **keys, training__max_steps=steps)
        assert run.metrics["steps"] == steps
        said = capsys.readouterr().out
        assert (told in said) == (steps == 7)
        assert f" samples per step, {steps} steps, 1 process" in said  # which they are, whatever the epochs


def test_tables_of_words_have_no_optimiser_of_their_own(tmp_path):
    with pytest.raises(
        ValueError, match="embedding_optimizer='lazy_adam' trains tables of ids, but a model with a tok"
    ):
        train(tmp_path / "run", TEXT, training__embedding_optimizer="lazy_adam", data__name="no such data")


def test_whole_tables_are_checked_before_data_are_read(tmp_path):
    keys = {"training__embedding_optimizer": "lazy_adam", "model__regularize_tables": True}
    with pytest.raises(ValueError, match="regularize_tables reads whole tables"):
        train(tmp_path / "run", TABLE, **keys, data__path="nowhere")


def test_a_cut_off_epoch_goes_on_with_the_texts_that_it_had_read(tmp_path, monkeypatch):
    """With `items_ahead: epoch` texts are read once an epoch, by the weights of then."""
    keys = {"model__layout": "split", "model__items_ahead": "epoch"}
    keys |= {f"training__{name}_strategy": "steps" for name in ("eval", "save")}
    keys |= {f"training__{name}_steps": 3 for name in ("eval", "save")}
    whole = train(tmp_path / "whole", TEXT, **keys)
    step, seen = CTRTrainer.training_step, []

    def cut_off(self, *args, **kwargs):
        seen.append(None)
        if len(seen) == 6:
            raise KeyboardInterrupt
        return step(self, *args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(CTRTrainer, "training_step", cut_off)
        with pytest.raises(KeyboardInterrupt):
            train(tmp_path / "cut", TEXT, **keys)
    resumed = train(tmp_path / "cut", TEXT, **keys)
    one, other = (load_file(run.path / "model.safetensors") for run in (whole, resumed))
    assert all(torch.equal(one[name], other[name]) for name in one)
