import json
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import warm
from datasets import Dataset
from torch.utils.data import ConcatDataset, Subset, random_split
from toy_training import ToyCollator, ToyDataset, make_model, make_trainer
from transformers import HfArgumentParser, TrainerCallback, default_data_collator

import lmctr
from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.checkpoints import newest_complete_checkpoint
from lmctr.training.checks import check_best_metric
from lmctr.training.trainer import CTRTrainer

SCRIPT = Path(__file__).with_name("toy_training.py")
TIME_AWARE = ["--ema-decay", 0.8, "--half-life", 10]


class Recorder(TrainerCallback):
    """Writes down what each forward pass pooled, by training or evaluation and by epoch."""

    def __init__(self, model):
        self.calls = []
        self.epoch = None
        model.register_forward_pre_hook(self.hook, with_kwargs=True)
        self.model = model

    def hook(self, module, args, kwargs):
        self.calls.append((self.epoch, "train" if module.training else "eval", kwargs["pooling"]))

    def on_epoch_begin(self, args, state, control, **kwargs):
        self.epoch = int(state.epoch)

    def kinds(self):
        return sorted(set(self.calls))


def run_script(folder, *words, processes=1, check=True):
    if processes == 1:
        return warm.run(SCRIPT, folder, *words, check=check)
    running = warm.launch(SCRIPT, folder, *words, processes=processes)
    assert [process.wait() for process in running] == [0] * processes, running


def same_weights(left, right):
    left = torch.load(left, weights_only=True)
    right = torch.load(right, weights_only=True)
    return left.keys() == right.keys() and all(torch.equal(left[key], right[key]) for key in left)


# ---- stages -------------------------------------------------------------------------------------------------------


def test_pooling_follows_the_stage_and_evaluation_pools_all(tmp_path):
    recorder = Recorder(model := make_model())
    make_trainer(tmp_path, model=model, callbacks=[recorder], stage1_epochs=2, stage2_epochs=1).train()
    pooled = {0: "sinks", 1: "sinks", 2: "all"}
    assert recorder.kinds() == [
        own for epoch, name in pooled.items() for own in [(epoch, "eval", "all"), (epoch, "train", name)]
    ]


def test_without_a_second_stage_steps_past_the_epochs_are_of_the_first(tmp_path):
    recorder = Recorder(model := make_model())
    make_trainer(tmp_path, model=model, callbacks=[recorder], stage2_epochs=0, max_steps=15).train()
    assert {pooling for _, mode, pooling in recorder.calls if mode == "train"} == {"sinks"}


@pytest.mark.parametrize(("step", "first"), [(5, "sinks"), (10, "sinks"), (20, "all"), (25, "all")])
def test_resumed_run_continues_in_the_right_stage(tmp_path, step, first):
    arguments = {"stage1_epochs": 2, "stage2_epochs": 1, "eval_strategy": "no", "save_total_limit": None}
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=5, **arguments)
    trainer.train()  # 10 steps per epoch
    model = make_model()
    recorder = Recorder(model)
    trainer = make_trainer(tmp_path, model=model, callbacks=[recorder], save_strategy="no", **arguments)
    trainer.train(resume_from_checkpoint=tmp_path / f"checkpoint-{step}")
    training = [pooling for _, mode, pooling in recorder.calls if mode == "train"]
    assert training[0] == first
    assert len(training) == 30 - step
    assert training.count("sinks") == max(20 - step, 0)


def test_one_schedule_and_one_optimiser_over_both_stages(tmp_path):
    rates, optimisers = [], set()

    class Rates(TrainerCallback):
        def on_step_end(self, args, state, control, lr_scheduler=None, optimizer=None, **kwargs):
            rates.append(lr_scheduler.get_last_lr()[0])
            optimisers.add(id(optimizer))

    trainer = make_trainer(tmp_path, callbacks=[Rates()], stage1_epochs=1, stage2_epochs=2, warmup_steps=0.1)
    trainer.train()
    assert len(optimisers) == 1
    assert len(rates) == 30
    peak = int(np.argmax(rates))
    assert peak == 2
    assert rates[peak] == pytest.approx(1e-2)
    assert all(later < earlier for earlier, later in zip(rates[peak:], rates[peak + 1 :]))
    assert rates[-1] == pytest.approx(0.0, abs=1e-9)


def with_scores(trainer, scores):
    """Let evaluations report the given AUCs one after the other."""
    scores = iter(scores)
    loop = trainer.evaluation_loop

    def evaluation_loop(*args, **kwargs):
        output = loop(*args, **kwargs)
        output.metrics["eval_auc"] = next(scores)
        return output

    trainer.evaluation_loop = evaluation_loop
    return trainer


def test_best_checkpoint_never_comes_from_stage_one(tmp_path):
    trainer = with_scores(make_trainer(tmp_path, stage1_epochs=2, stage2_epochs=2), [0.99, 0.98, 0.6, 0.5])
    trainer.train()
    assert trainer.state.best_metric == 0.6
    assert trainer.state.best_global_step == 30
    assert trainer.state.best_model_checkpoint == str(tmp_path / "checkpoint-30")
    best = make_model(seed=9)
    from safetensors.torch import load_file

    best.load_state_dict(load_file(tmp_path / "checkpoint-30" / "model.safetensors"))
    assert all(torch.equal(a, b) for a, b in zip(best.state_dict().values(), trainer.model.state_dict().values()))


def test_early_stopping_counts_stage_two_only(tmp_path):
    scores = [0.99, 0.98, 0.6, 0.7, 0.65, 0.64, 0.9]
    trainer = make_trainer(tmp_path, stage1_epochs=2, stage2_epochs=5, early_stopping_patience=2)
    with_scores(trainer, scores).train()
    assert trainer.state.epoch == 6.0
    assert trainer.state.best_metric == 0.7


def test_early_stopping_survives_a_kill_after_the_last_checkpoint(tmp_path):
    arguments = {"stage1_epochs": 1, "stage2_epochs": 5, "early_stopping_patience": 1, "save_total_limit": 3}
    trainer = with_scores(make_trainer(tmp_path, **arguments), [0.9, 0.7, 0.6])
    trainer.train()
    assert trainer.state.global_step == 30
    again = with_scores(make_trainer(tmp_path, **arguments), [])  # a further evaluation would raise
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-30")
    assert again.state.global_step == 30
    assert all(
        torch.equal(a, b) for a, b in zip(again.model.state_dict().values(), trainer.model.state_dict().values())
    )


def test_moved_run_folder_still_finds_its_best_checkpoint(tmp_path):
    trainer = with_scores(make_trainer(tmp_path / "a", stage1_epochs=0, stage2_epochs=3), [0.9, 0.7, 0.6])
    trainer.train()
    (tmp_path / "a").rename(tmp_path / "b")
    again = make_trainer(tmp_path / "b", stage1_epochs=0, stage2_epochs=3)
    again.train(resume_from_checkpoint=tmp_path / "b" / "checkpoint-30")
    assert again.state.best_model_checkpoint == str(tmp_path / "b" / "checkpoint-10")
    assert all(
        torch.equal(a, b) for a, b in zip(again.model.state_dict().values(), trainer.model.state_dict().values())
    )


def test_stage_one_without_sinks_is_an_error(tmp_path):
    with pytest.raises(ValueError, match=r'stage1_epochs=1 pools the sinks only, but sink_kind="none"'):
        make_trainer(tmp_path, model=make_model(sink_kind="none"), stage1_epochs=1)
    make_trainer(tmp_path, model=make_model(sink_kind="none"), stage1_epochs=0)


# ---- loss and batches ---------------------------------------------------------------------------------------------


def plain_loss(model, dataset, rows, collator):
    batch = collator(list(rows))
    with torch.no_grad():
        logits = model(**{key: batch[key] for key in ("input_ids", "attention_mask", "sink_buckets", "target_mask")})
    logits = logits["logits"].double().numpy()
    labels = dataset.labels[rows].astype(np.float64)
    weight = np.ones(len(rows)) if dataset.sample_weight is None else dataset.sample_weight[rows].astype(np.float64)
    return weight * (np.logaddexp(0.0, logits) - labels * logits), weight


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("accumulation", [1, 2, 4])
def test_loss_is_the_weighted_mean_over_the_global_batch(tmp_path, weighted, accumulation):
    """75 rows in global batches of 16: the last one holds 11. Learning rate 0 keeps the weights."""
    dataset = ToyDataset(75, weighted=weighted)
    model = make_model(dropout=0.0).eval()
    trainer = make_trainer(
        tmp_path,
        train=dataset,
        model=model,
        learning_rate=0.0,
        weight_decay=0.0,
        per_device_train_batch_size=16 // accumulation,
        gradient_accumulation_steps=accumulation,
        logging_steps=1,
        stage1_epochs=0,
        stage2_epochs=1,
        eval_strategy="no",
        save_strategy="no",
    )
    batches = trainer.get_train_dataloader().batch_sampler.global_batches(0)
    trainer.train()
    logged = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(logged) == len(batches) == 5
    for value, rows in zip(logged, batches):
        loss, weight = plain_loss(model.eval(), dataset, rows, ToyCollator(dataset))
        assert value == pytest.approx(loss.sum() / weight.sum(), abs=1e-5)


def test_accumulation_trains_as_one_batch(tmp_path):
    states = []
    for batch, accumulation in ((16, 1), (4, 4)):
        trainer = make_trainer(
            tmp_path / str(accumulation),
            model=make_model(dropout=0.0),
            per_device_train_batch_size=batch,
            gradient_accumulation_steps=accumulation,
            learning_rate=1e-3,
            optim="sgd",
        )
        trainer.train()
        states.append(trainer.model.state_dict())
    for key, value in states[0].items():
        torch.testing.assert_close(value, states[1][key], atol=1e-6, rtol=1e-5)


def test_epochs_differ_and_each_sample_comes_once(tmp_path):
    train = ToyDataset(75)
    collator = ToyCollator(train)
    make_trainer(tmp_path, train=train, collator=collator, save_strategy="no", load_best_model_at_end=False).train()
    epochs = [collator.seen[start : start + 10] for start in (0, 10, 20)]
    for epoch in epochs:
        assert sorted(row for batch in epoch for row in batch) == list(range(75))
    assert epochs[0] != epochs[1] != epochs[2]


# ---- evaluation ---------------------------------------------------------------------------------------------------


def test_metrics_are_exact_and_in_the_dataset_order(tmp_path):
    dataset = ToyDataset(45, seed=2, weighted=True)
    trainer = make_trainer(tmp_path, model=make_model(dropout=0.0))
    output = trainer.predict(dataset, metric_key_prefix="test")
    collator = ToyCollator(dataset)
    expected = []
    with torch.no_grad():
        for row in range(45):
            batch = collator([row])
            batch.pop("labels"), batch.pop("sample_weight")
            expected.append(trainer.model.eval()(**batch)["logits"].item())
    np.testing.assert_allclose(output.predictions, expected, atol=1e-5)
    np.testing.assert_array_equal(output.label_ids, dataset.labels)
    measured = evaluate_predictions(
        dataset.labels.astype(np.float64), output.predictions, dataset.groups, dataset.sample_weight
    )
    for key, value in measured.items():
        assert output.metrics[f"test_{key}"] == value
    assert output.metrics["test_loss"] == measured["log_loss"]


@pytest.mark.parametrize("part", ["train", "evaluation"])
def test_one_class_sets_stop_before_training(tmp_path, part):
    trainer = make_trainer(tmp_path, **{part: ToyDataset(20, one_class=True)})
    with pytest.raises(
        ValueError, match=r"_dataset \(20 samples\) has only the label 1; AUC needs positives and negatives"
    ):
        trainer.train()
    assert trainer.state.global_step == 0


def test_wrong_argument_class_is_an_error(tmp_path):
    from transformers import TrainingArguments

    with pytest.raises(ValueError, match="CTRTrainingArguments, got TrainingArguments"):
        CTRTrainer(model=make_model(), args=TrainingArguments(str(tmp_path), use_cpu=True), data_collator=list)


# ---- arguments ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"learning_rate": None}, "learning_rate must be a number, got None"),
        ({"learning_rate": "1e-3"}, "learning_rate must be a number, got '1e-3'"),
        ({"per_device_train_batch_size": None}, "per_device_train_batch_size must be a number, got None"),
        ({"ema_decay": "0.9"}, "ema_decay must be a number or None, got '0.9'"),
        ({"early_stopping_patience": "two"}, "early_stopping_patience must be a number or None, got 'two'"),
        ({"warmup_steps": True}, "warmup_steps must be a number, got True"),
        ({"boosting_share": None}, "boosting_share must lie between 0 .no trees. and 1, or be 'auto', got None"),
        ({"metric_for_best_model": 3}, "metric_for_best_model must be a text or None, got 3"),
        ({"callbacks": "a:B"}, "callbacks must be a list of module:Class or None, got 'a:B'"),
    ],
)
def test_arguments_of_another_kind_are_named(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        CTRTrainingArguments(str(tmp_path), use_cpu=True, **arguments)


def test_argument_defaults(tmp_path):
    args = CTRTrainingArguments(str(tmp_path), stage1_epochs=2, stage2_epochs=3, use_cpu=True)
    assert args.num_train_epochs == 5
    assert args.lr_scheduler_type == "cosine"
    assert args.warmup_steps == 0.05
    assert args.optim == "adamw_torch_fused"
    assert args.weight_decay == 5e-5
    assert args.label_names == ["labels"]
    assert args.metric_for_best_model == "eval_auc"
    assert args.greater_is_better is True
    assert args.load_best_model_at_end is True
    assert args.report_to == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"stage1_epochs": -1}, "stage1_epochs must be a whole number of at least 0, got -1"),
        ({"stage2_epochs": 1.5}, "stage2_epochs must be a whole number"),
        ({"stage1_epochs": 0, "stage2_epochs": 0}, "nothing would be trained"),
        ({"length_group_batches": 0}, "length_group_batches"),
        ({"early_stopping_patience": 0}, "early_stopping_patience must be at least 1"),
        ({"early_stopping_patience": 1, "eval_strategy": "no"}, "needs evaluations"),
        ({"auto_find_batch_size": True}, "auto_find_batch_size"),
        ({"bf16_full_eval": True}, "set bf16 instead"),
        ({"fp16_full_eval": True}, "set fp16 instead"),
        ({"train_sampling_strategy": "batch_rebalance"}, "train_sampling_strategy"),
        ({"eval_strategy": "steps", "eval_steps": 5, "save_strategy": "steps", "save_steps": 10}, "must be equal"),
        ({"max_steps": 0}, "max_steps must be at least 1, got 0; -1 for all steps"),
        ({"eval_accumulation_steps": 0}, "eval_accumulation_steps must be at least 1, got 0"),
        ({"eval_on_start": True, "eval_strategy": "no"}, "eval_on_start needs evaluations"),
        ({"fp16": True}, "fp16 is set, but the training is on the CPU, where it would be float32"),
        ({"weight_decay": -0.1}, "weight_decay must be 0 or more, got -0.1"),
        ({"adam_beta1": 1.0}, "adam_beta1 must be 0 or more and below 1, got 1.0"),
        ({"warmup_steps": float("nan")}, "warmup_steps must be 0 or more, got nan"),
        ({"max_grad_norm": float("nan")}, "max_grad_norm must be 0 or more, got nan"),
        ({"seed": -1}, "seed must be a whole number from 0 to 4294967295, got -1"),
        ({"dataloader_num_workers": -1}, "dataloader_num_workers must be a whole number from 0, got -1"),
        ({"report_to": "x"}, "report_to: x is not supported"),
        ({"torch_compile_backend": "x"}, "torch_compile_backend is 'x', accepted: .*inductor"),
        ({"torch_compile_mode": "x"}, "torch_compile_mode is 'x', accepted: default, .*max-autotune"),
        ({"log_level": "loud"}, "log_level is 'loud', accepted: .*debug"),
        ({"log_level_replica": "loud"}, "log_level_replica is 'loud', accepted: .*debug"),
        ({"neftune_noise_alpha": -1.0}, "neftune_noise_alpha must be 0 or more, got -1.0"),
        ({"accelerator_config": {"split": True}}, "accelerator_config has no key 'split'; its keys: split_batches"),
        ({"optim": "adagrad", "optim_args": "epsilon=1e-8"}, "optim='adagrad': 'epsilon=1e-8' is not read by this"),
        ({"optim": "sgd", "optim_args": "momentum"}, "optim='sgd': 'momentum' is no name=number"),
        ({"optim": "adagrad", "optim_args": "eps=-1"}, "optim_args='eps=-1' of optim='adagrad': Invalid epsilon"),
        ({"lr_scheduler_kwargs": {"x": 1}}, "of lr_scheduler_type='cosine': .* unexpected keyword argument 'x'"),
        ({"lr_scheduler_type": "cosine_with_min_lr"}, "of lr_scheduler_type='cosine_with_min_lr': One of min_lr"),
        (
            {"save_strategy": "no"},
            "save_strategy='no' is not accepted beside eval_strategy='epoch'.*set load_best_model_at_end to false",
        ),
    ],
)
def test_bad_arguments(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        CTRTrainingArguments(str(tmp_path), use_cpu=True, **arguments)


@pytest.mark.parametrize("name", ["gradient_checkpointing"])
def test_gradient_checkpointing_gives_the_same_weights(tmp_path, name):
    states = []
    for value in (False, True):
        trainer = make_trainer(tmp_path / str(value), model=make_model(dropout=0.0), **{name: value})
        trainer.train()
        assert trainer.model.model.language_model.is_gradient_checkpointing is value
        states.append(trainer.model.state_dict())
    for key, item in states[0].items():
        torch.testing.assert_close(item, states[1][key], atol=1e-5, rtol=1e-4)


def test_bf16_trains(tmp_path):
    trainer = make_trainer(tmp_path, bf16=True)
    trainer.train()
    assert all(torch.isfinite(value).all() for value in trainer.model.state_dict().values())
    assert next(trainer.model.parameters()).dtype == torch.float32


# ---- kills and processes ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(("kill_at", "steps", "more"), [(17, None, TIME_AWARE), (14, 4, [])])
def test_killed_run_resumes_to_the_same_weights(tmp_path, kill_at, steps, more):
    """Saving each epoch (killed in the middle of one), and saving each four steps (resumed in the middle of one)."""
    words = [*(["--steps", steps] if steps else []), *more]
    run_script(tmp_path / "whole", *words)
    killed = run_script(tmp_path / "killed", "--kill-at", kill_at, *words, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "killed" / "weights.pt").exists()
    checkpoint, _ = newest_complete_checkpoint(tmp_path / "killed")
    assert checkpoint.name == ("checkpoint-12" if steps else "checkpoint-10")
    run_script(tmp_path / "killed", "--resume", checkpoint, *words)
    assert same_weights(tmp_path / "whole" / "weights.pt", tmp_path / "killed" / "weights.pt")
    assert same_metrics(tmp_path / "whole", tmp_path / "killed") == 0.0


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--weighted", *TIME_AWARE]])
def test_two_processes_train_as_one(tmp_path, more):
    """75 samples do not divide by the global batch of 16, nor by two: every row counts exactly once all the same."""
    # Plain gradient descent: Adam would hide a wrong factor on the loss.
    words = ["--dropout", 0, "--optim", "sgd", "--learning-rate", 0.3, *more]
    run_script(tmp_path / "one", "--batch", 16, *words)
    run_script(tmp_path / "two", "--batch", 8, *words, processes=2)
    seen = [json.loads((tmp_path / "two" / f"seen-{rank}.json").read_text()) for rank in (0, 1)]
    steps_per_epoch = 5
    for epoch in range(3):
        part = slice(epoch * steps_per_epoch, (epoch + 1) * steps_per_epoch)
        rows = [row for rank in seen for batch in rank[part] for row in batch]
        assert sorted(rows) == list(range(75))
    left = torch.load(tmp_path / "one" / "weights.pt", weights_only=True)
    right = torch.load(tmp_path / "two" / "weights.pt", weights_only=True)
    for key, value in left.items():
        torch.testing.assert_close(value, right[key], atol=1e-5, rtol=1e-4)
    assert same_metrics(tmp_path / "one", tmp_path / "two") < 1e-4
    metrics = json.loads((tmp_path / "two" / "metrics.json").read_text())
    assert metrics["eval_num_samples"] == 33


def same_metrics(left, right):
    """Largest difference of the exact metrics of two runs."""
    left = json.loads((left / "metrics.json").read_text())
    right = json.loads((right / "metrics.json").read_text())
    names = [name for name in left if not name.endswith(("runtime", "per_second", "preparation_time"))]
    assert set(names) <= set(right)
    return max(abs(left[name] - right[name]) for name in names)


def test_resuming_with_another_global_batch_or_model_is_an_error(tmp_path):
    make_trainer(tmp_path, stage1_epochs=0, stage2_epochs=1).train()
    trainer = make_trainer(tmp_path, stage1_epochs=0, stage2_epochs=1, per_device_train_batch_size=4)
    with pytest.raises(ValueError, match="written with 8 samples per optimiser step, now it is 4"):
        trainer.train(resume_from_checkpoint=tmp_path / "checkpoint-10")
    trainer = make_trainer(tmp_path, stage1_epochs=0, stage2_epochs=1, model=make_model(sink_embedding_dim=4))
    with pytest.raises(
        ValueError, match=r"checkpoint-10 has weights of another model \(size mismatch for .*\); resume"
    ):
        trainer.train(resume_from_checkpoint=tmp_path / "checkpoint-10")


# ---- what transformers' users expect ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"label_smoothing_factor": 0.4}, "the loss is binary cross-entropy"),
        ({"dataloader_drop_last": True}, "each sample is seen exactly once per epoch"),
        ({"batch_eval_metrics": True}, "metrics are exact"),
        ({"include_for_metrics": ["inputs"]}, "metrics are exact"),
        ({"eval_do_concat_batches": False}, "metrics are exact"),
        ({"auto_find_batch_size": True}, "it changes the global batch while training"),
    ],
)
def test_arguments_that_would_have_no_effect_are_refused(tmp_path, arguments, reason):
    (name,) = arguments
    with pytest.raises(ValueError, match=rf"{name}=.* is not accepted: {reason}"):
        CTRTrainingArguments(str(tmp_path), **arguments)


def test_a_script_of_ones_own_parses_the_arguments(tmp_path):
    words = ["--output_dir", str(tmp_path), "--use_cpu", "--bf16", "--boosting_share", "0.5", "--report_to", "none"]
    (made,) = HfArgumentParser(CTRTrainingArguments).parse_args_into_dataclasses([*words, "--ema_decay", "0.9"])
    assert (made.bf16, made.boosting_share, made.ema_decay, made.report_to) == (True, 0.5, 0.9, [])
    (made,) = HfArgumentParser(CTRTrainingArguments).parse_dict({"output_dir": str(tmp_path), "bf16": "auto"})
    assert made.chooses_bf16


def test_num_train_epochs_alone_says_how_long(tmp_path):
    def stages(**values):
        made = CTRTrainingArguments(str(tmp_path), **values)
        assert made.num_train_epochs == made.stage1_epochs + made.stage2_epochs
        return made.stage1_epochs, made.stage2_epochs

    assert stages() == (0, 3)
    assert stages(num_train_epochs=7) == (0, 7)
    assert stages(num_train_epochs=5.0, stage1_epochs=2) == (2, 3)
    assert stages(num_train_epochs=4, stage1_epochs=1, stage2_epochs=3) == (1, 3)
    for values in ({"num_train_epochs": 0.5}, {"num_train_epochs": 9, "stage2_epochs": 2}):
        with pytest.raises(ValueError, match=r"num_train_epochs=.*accepted is their sum, or a whole number"):
            CTRTrainingArguments(str(tmp_path), **values)


def test_a_loss_of_ones_own(tmp_path):
    """Twice the model's own loss is twice its gradients; that of evaluation stays the log loss."""
    counted = []

    def doubled(outputs, labels, num_items_in_batch=None):
        counted.append(float(num_items_in_batch))
        return 2 * F.binary_cross_entropy_with_logits(outputs.logits, labels, reduction="sum") / num_items_in_batch

    norms = {}
    for name, own in {"plain": None, "own": doubled}.items():
        trainer = make_trainer(
            tmp_path / name, model=make_model(dropout=0.0), max_steps=1, logging_steps=1, max_grad_norm=1e9
        )
        trainer.compute_loss_func = own
        trainer.train()
        norms[name] = next(entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry)
        if own is not None:
            output = trainer.predict(trainer.eval_dataset)
            assert output.metrics["test_loss"] == pytest.approx(output.metrics["test_log_loss"])
    assert counted == [8.0]
    assert norms["own"] == pytest.approx(2 * norms["plain"], rel=1e-4)


@pytest.mark.parametrize("half_life", [None, 10.0])
def test_a_loss_of_ones_own_loses_no_weights(tmp_path, half_life):
    train = ToyDataset(weighted=half_life is None)
    trainer = make_trainer(tmp_path, train=train, recency_half_life=half_life)
    trainer.compute_loss_func = lambda outputs, labels, num_items_in_batch=None: outputs.logits.sum()
    with pytest.raises(ValueError, match="compute_loss_func gets no weights, but the samples have some"):
        trainer.train()


def test_logits_are_processed_for_ones_own_metrics_alone(tmp_path):
    seen = []

    def metrics(prediction):
        seen.append(prediction.predictions)
        return {"mean": prediction.predictions.mean()}

    trainer = make_trainer(tmp_path, model=make_model())
    plain = trainer.predict(trainer.eval_dataset)
    trainer.compute_metrics, trainer.preprocess_logits_for_metrics = metrics, lambda logits, labels: logits.sigmoid()
    output = trainer.predict(trainer.eval_dataset)
    np.testing.assert_array_equal(output.predictions, plain.predictions)
    assert output.metrics["test_loss"] == plain.metrics["test_loss"]
    np.testing.assert_allclose(seen[0], 1 / (1 + np.exp(-plain.predictions)), rtol=1e-5)
    assert output.metrics["test_mean"] == pytest.approx(seen[0].mean())
    assert type(output.metrics["test_mean"]) is float, "a number of numpy could not be written down with a checkpoint"
    trainer.compute_metrics = lambda prediction: None
    with pytest.raises(ValueError, match="compute_metrics: gave None; accepted: a dict of metrics by their names"):
        trainer.evaluate()


def test_columns_of_a_data_set_are_read(tmp_path):
    """Labels, weights and users of a `datasets.Dataset` count as those that a data set has as attributes."""
    rng = np.random.default_rng(0)
    model = lmctr.DeepFMForCTR(lmctr.DeepFMConfig(vocab_sizes=[9, 9], hidden_units=[4], initializer_range=0.5)).eval()
    labels, weight, users = rng.integers(0, 2, 60).astype(np.float32), rng.uniform(0.1, 9, 60), rng.integers(0, 6, 60)
    columns = {"input_ids": rng.integers(2, 9, (60, 2)), "labels": labels, "sample_weight": weight, "groups": users}
    rows = Dataset.from_dict(columns)

    def trainer(evaluation, **data):
        made = CTRTrainingArguments(str(tmp_path), use_cpu=True, disable_tqdm=True, remove_unused_columns=False)
        return CTRTrainer(model, made, default_data_collator, train_dataset=rows, eval_dataset=evaluation, **data)

    found = trainer(rows).evaluate()
    with torch.no_grad():
        logits = model(input_ids=torch.from_numpy(columns["input_ids"])).logits.numpy()
    expected = evaluate_predictions(labels.astype(np.float64), logits, groups=users, sample_weight=weight)
    for name in ("log_loss", "auc", "grouped_auc"):
        assert found[f"eval_{name}"] == pytest.approx(expected[name], rel=1e-5), name
    assert abs(expected["log_loss"] - evaluate_predictions(labels.astype(np.float64), logits)["log_loss"]) > 1e-3
    few, _ = random_split(rows, [25, 35], torch.Generator().manual_seed(0))
    places = np.array(few.indices)
    expected = evaluate_predictions(
        labels[places].astype(np.float64), logits[places], groups=users[places], sample_weight=weight[places]
    )
    for part in (few, ConcatDataset([Subset(few, range(9)), Subset(few, range(9, 25))])):
        found = trainer(part).evaluate()
        for name in ("log_loss", "auc", "grouped_auc"):
            assert found[f"eval_{name}"] == pytest.approx(expected[name], rel=1e-5), name
    one_class = rows.select(np.flatnonzero(labels == 1))
    with pytest.raises(ValueError, match=r"eval_dataset \(.* samples\) has only the label 1"):
        trainer(one_class).train()
    trainer(rows).train()
    with pytest.raises(ValueError, match=r"eval_dataset: a stream \(IterableDataset\) has no length"):
        trainer(rows.to_iterable_dataset())
    store = lmctr.data.TabularStore({"input_ids": columns["input_ids"].astype(np.int32), "labels": labels})
    with pytest.raises(
        ValueError, match="eval_dataset: a TabularStore has no items; give a data set, of a store Tabular"
    ):
        trainer(store)
    for wrong, told in (("runs/x", "model: got 'runs/x'; give the model"), (model.model, "a DeepFMModel has no head")):
        with pytest.raises(ValueError, match=told):
            CTRTrainer(wrong, CTRTrainingArguments(str(tmp_path), use_cpu=True), default_data_collator, rows)


def test_seconds_of_a_run_that_goes_on_are_all_of_its_seconds(tmp_path):
    class Sleep(TrainerCallback):
        def on_epoch_begin(self, args, state, control, **kwargs):
            time.sleep(0.2)

    class Stop(TrainerCallback):
        def on_save(self, args, state, control, **kwargs):
            control.should_training_stop = state.epoch >= 2

    first = make_trainer(tmp_path, model=make_model(), callbacks=[Sleep(), Stop()], load_best_model_at_end=False)
    first.train()
    checkpoint, _ = newest_complete_checkpoint(tmp_path)
    again = make_trainer(tmp_path, model=make_model(), callbacks=[Sleep()], load_best_model_at_end=False)
    metrics = again.train(resume_from_checkpoint=checkpoint).metrics
    assert metrics["train_runtime"] > 0.6  # three epochs, of which this process trained one
    for gone_on in (metrics, again.train(resume_from_checkpoint=newest_complete_checkpoint(tmp_path)[0]).metrics):
        seconds = gone_on["train_runtime"]
        assert gone_on["train_samples_per_second"] == pytest.approx(3 * len(again.train_dataset) / seconds, rel=1e-3)
        assert gone_on["train_steps_per_second"] == pytest.approx(30 / seconds, rel=1e-3)


def test_a_training_that_ended_within_an_epoch_goes_on_no_further(tmp_path):
    arguments = {"stage1_epochs": 0, "max_steps": 13, "load_best_model_at_end": False, "lr_scheduler_type": "constant"}
    trainer = make_trainer(tmp_path, **arguments)
    metrics = trainer.train().metrics
    done = 75 + 3 * 8  # an epoch of ten steps, the last of three samples, and three steps
    assert metrics["train_samples_per_second"] == pytest.approx(done / metrics["train_runtime"], rel=1e-3)
    again = make_trainer(tmp_path, **arguments)
    again.train(resume_from_checkpoint=tmp_path / "checkpoint-13")
    assert again.state.global_step == 13
    assert all(
        torch.equal(a, b) for a, b in zip(again.model.state_dict().values(), trainer.model.state_dict().values())
    )


@pytest.mark.parametrize("arguments", [{"new_modules_learning_rate": 0.5}, {"embedding_optimizer": "lazy_adam"}])
def test_an_optimizer_of_ones_own_has_its_own_groups(tmp_path, arguments):
    (name,) = arguments
    model = make_model()
    made = CTRTrainingArguments(str(tmp_path), use_cpu=True, **arguments)
    with pytest.raises(ValueError, match=f"{name}=.* has no effect on an optimizer that is given"):
        CTRTrainer(
            model,
            made,
            ToyCollator(ToyDataset()),
            optimizers=(torch.optim.SGD(model.parameters(), lr=0.1), None),
        )


def test_an_optimizer_of_another_model_would_train_nothing(tmp_path):
    model, args = make_model(), CTRTrainingArguments(str(tmp_path), use_cpu=True, eval_strategy="no")

    def given(optimized):
        return CTRTrainer(
            model, args, ToyCollator(ToyDataset()), optimizers=(torch.optim.SGD(optimized.parameters(), lr=0.1), None)
        )

    given(model.head)
    with pytest.raises(ValueError, match="optimizers: the optimizer holds no parameter that the model trains"):
        given(make_model())


def test_a_diverged_model_is_told(tmp_path):
    model = make_model()
    trainer = make_trainer(tmp_path, model=model, learning_rate=0.5, max_grad_norm=3.0)
    with torch.no_grad():
        next(iter(model.parameters())).fill_(torch.nan)
    said = r"of \d+ logits of the model are NaN or infinite: the training diverged; .* \(now 0.5\), .* max_grad_norm \(now 3\)"
    with pytest.raises(ValueError, match=said):
        trainer.evaluate()


def test_the_best_of_several_evaluation_sets_says_whose(tmp_path, monkeypatch):
    trainer, looked_at = make_trainer(tmp_path), []
    monkeypatch.setattr(
        "lmctr.training.trainer.check_best_metric", lambda *args: looked_at.append(args) or check_best_metric(*args)
    )
    trainer.eval_dataset = {"old": ToyDataset(33, seed=1), "new": ToyDataset(33, seed=2)}
    with pytest.raises(
        ValueError, match=r"metric_for_best_model='eval_auc' names none of several eval_datasets.*'eval_old_auc'"
    ):
        trainer.train()
    with pytest.raises(ValueError, match=r"eval_dataset: got 'next', accepted: one of old, new, or a data set"):
        trainer.evaluate("next")
    assert trainer.evaluate("new")["eval_auc"] == trainer.evaluate(trainer.eval_dataset["new"])["eval_auc"]
    trainer.args.metric_for_best_model = "eval_new_auc"
    trainer.train()
    assert looked_at == [("eval_auc", trainer.eval_dataset, []), ("eval_new_auc", trainer.eval_dataset, [])]
    assert trainer.state.best_metric == max(
        entry["eval_new_auc"]
        for entry in trainer.state.log_history
        if entry.get("epoch", 0) > 1 and "eval_new_auc" in entry
    )


@pytest.mark.parametrize(
    ("metric", "tasks", "said"),
    [
        (
            "eval_logloss",
            [],
            "eval_logloss' is no metric of these samples; accepted: eval_loss, eval_auc, eval_log_loss",
        ),
        ("eval_sale_auc", [], "eval_sale_auc' is no metric of these samples"),
        ("mean_auc", [], "mean_auc' is no metric of these samples"),
        ("eval_sale_auc", ["click", "sale"], None),
        ("eval_mean_auc", ["click", "sale"], None),
        (
            "eval_buy_auc",
            ["click", "sale"],
            "eval_buy_auc' is no metric of .*, eval_mean_auc, eval_click_auc, eval_sale",
        ),
        ("eval_grouped_auc", [], None),
    ],
)
def test_a_metric_that_no_evaluation_has_is_told_before_the_first_epoch(tmp_path, metric, tasks, said):
    trainer = make_trainer(tmp_path, metric_for_best_model=metric)
    trainer.model.config.task_names, trainer.training_step = tasks, lambda *args: 1 / 0
    with pytest.raises(ValueError if said else ZeroDivisionError, match=said or "division"):
        trainer.train()


def test_no_groups_no_grouped_metric():
    samples = ToyDataset(33)
    check_best_metric("user_auc", samples)
    samples.groups = None
    with pytest.raises(ValueError, match="metric_for_best_model='user_auc' is no metric of these samples"):
        check_best_metric("user_auc", samples)


def test_an_evaluation_at_the_start_is_made_once(tmp_path):
    """One more of a run that goes on would count as an evaluation without improvement."""
    trainer = make_trainer(tmp_path, eval_on_start=True)
    trainer.train()
    newest, _ = newest_complete_checkpoint(tmp_path)
    again = make_trainer(tmp_path, eval_on_start=True)
    again.train(str(newest))
    steps = [[entry["step"] for entry in one.state.log_history if "eval_auc" in entry] for one in (trainer, again)]
    assert steps[0] == steps[1]
    assert steps[0][0] == 0
    assert again.args.eval_on_start


def test_several_values_may_be_processed_for_ones_own_metrics(tmp_path):
    trainer = make_trainer(tmp_path)
    trainer.preprocess_logits_for_metrics = lambda logits, labels: (logits.sigmoid(), logits > 0)
    trainer.compute_metrics = lambda found: {"shapes": [part.shape for part in found.predictions]}
    assert trainer.evaluate()["eval_shapes"] == [(33,), (33,)]


def test_a_label_of_another_name_is_told(tmp_path):
    train = ToyDataset()
    collate = ToyCollator(train)

    def renamed(items):
        batch = collate(items)
        return batch | {"click": batch.pop("labels")}

    with pytest.raises(ValueError, match=r"no 'labels', as the column of clicks is to be called; it has .*, click$"):
        make_trainer(tmp_path, train=train, collator=renamed).train()
