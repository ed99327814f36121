"""The average of the weights, against sums over all steps in float64."""

from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from toy_tables import FIELDS, WIDTH, TableModel, ToyTable, make_table_trainer
from toy_training import make_model, make_trainer
from transformers import TrainerCallback, set_seed

from lmctr.models.common.base import ctr_loss
from lmctr.models.common.outputs import CTROutput
from lmctr.training.averaging import AVERAGE_FILE, WeightAverage
from lmctr.training.lora import add_lora

DECAY = 0.9


class Steps(TrainerCallback):
    """Keeps the weights after each step."""

    def __init__(self):
        self.kept = []

    def on_step_end(self, args, state, control, model, **kwargs):
        self.kept.append({name: values.detach().clone().double() for name, values in model.state_dict().items()})

    def average(self, steps=None):
        """sum d^(T-t) w_t / sum d^(T-t), term by term."""
        kept = self.kept[:steps]
        shares = [DECAY ** (len(kept) - t) for t in range(1, len(kept) + 1)]
        return {
            name: sum(share * weights[name] for share, weights in zip(shares, kept)) / sum(shares) for name in kept[0]
        }


class NormedTableModel(TableModel):
    """With a batch norm, whose statistics are buffers."""

    def __init__(self, vocabulary):
        super().__init__(vocabulary)
        self.norm = nn.BatchNorm1d(FIELDS * WIDTH)

    def forward(self, ids, labels=None, sample_weight=None, num_items_in_batch=None):
        hidden = torch.relu(self.hidden(self.norm(self.table(ids).flatten(1))))
        logits = self.head(hidden).squeeze(-1)
        loss = None if labels is None else ctr_loss(logits, labels, sample_weight, num_items_in_batch)
        return CTROutput(loss=loss, logits=logits)


def normed_model(seed=0, vocabulary=500):
    set_seed(seed)
    return NormedTableModel(vocabulary)


def table_trainer(folder, model=None, **arguments):
    """A table of which a batch touches a twentieth."""
    values = {"ema_decay": DECAY, "per_device_train_batch_size": 8, "stage2_epochs": 2, "save_total_limit": None}
    train = ToyTable(200, vocabulary=500)
    return make_table_trainer(folder, train=train, model=model or normed_model(), **{**values, **arguments})


def assert_is(found, expected):
    for name, values in expected.items():
        if found[name].is_floating_point():
            torch.testing.assert_close(found[name].double(), values, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("optimizer", ["dense", "lazy_adam", "rowwise_adagrad"])
@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_result_is_the_plain_sum(tmp_path, optimizer, accumulation):
    trainer = table_trainer(
        tmp_path,
        embedding_optimizer=optimizer,
        gradient_accumulation_steps=accumulation,
        weight_decay=0.1,
        eval_strategy="no",
    )
    steps = Steps()
    before = trainer.model.table.weight.detach().clone()
    trainer.add_callback(steps)
    trainer.train()
    assert len(steps.kept) == 2 * -(-25 // accumulation)
    assert_is(trainer.model.state_dict(), steps.average())
    if optimizer != "dense":  # rows that no step touched are what they were, to the bit
        assert torch.equal(trainer.model.table.weight[-3:], before[-3:])


def test_the_average_is_measured_saved_and_chosen(tmp_path):
    trainer = table_trainer(tmp_path, embedding_optimizer="lazy_adam", stage2_epochs=3)
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    logged = {entry["step"]: entry for entry in trainer.state.log_history if "eval_auc" in entry}
    assert sorted(logged) == [25, 50, 75]
    plain = table_trainer(tmp_path / "plain", ema_decay=None)
    for step, entry in logged.items():
        plain.model.load_state_dict(steps.average(step))
        measured = plain.evaluate()
        assert entry["eval_loss"] == pytest.approx(measured["eval_loss"], abs=1e-6)
        plain.model.load_state_dict(steps.kept[step - 1])  # what trains is another model
        assert abs(entry["eval_loss"] - plain.evaluate()["eval_loss"]) > 1e-5
        checkpoint = tmp_path / f"checkpoint-{step}"
        assert_is(load_file(checkpoint / "model.safetensors"), steps.average(step))
        assert (checkpoint / AVERAGE_FILE).is_file()
    assert_is(trainer.model.state_dict(), steps.average(trainer.state.best_global_step))
    assert trainer.evaluate()["eval_auc"] == max(entry["eval_auc"] for entry in logged.values())


def test_several_evaluation_sets_are_measured_by_the_same_average(tmp_path):
    losses = []
    for name, metric in (("one", "eval_auc"), ("several", "eval_late_auc")):
        values = {"embedding_optimizer": "lazy_adam", "metric_for_best_model": metric, "stage2_epochs": 1}
        trainer = table_trainer(tmp_path / name, **values)
        if name == "several":
            trainer.eval_dataset = {"late": trainer.eval_dataset}
        trainer.train()
        key = metric.replace("auc", "loss")
        losses.append([entry[key] for entry in trainer.state.log_history if key in entry])
    assert losses[0] == losses[1]


def test_a_training_after_one_that_failed_has_an_average_of_its_own(tmp_path):
    class Fails(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == 5:
                raise ArithmeticError

    trainer, steps = table_trainer(tmp_path, eval_strategy="no", max_steps=12), Steps()
    fails = Fails()
    trainer.add_callback(fails)
    with pytest.raises(ArithmeticError):
        trainer.train()
    trainer.remove_callback(fails)
    trainer.add_callback(steps)
    trainer.train()
    assert_is(trainer.model.state_dict(), steps.average())


def test_a_step_that_was_skipped_is_no_step(tmp_path):
    """Float16 gradients that overflow change no weight, at first not even the initial ones."""
    average, model = WeightAverage(DECAY), TableModel(4)
    average.begin(model)
    average.on_optimizer_step(None, None, None, optimizer=SimpleNamespace(step_was_skipped=True))
    assert average.step == 0
    average.on_optimizer_step(None, None, None, optimizer=SimpleNamespace(step_was_skipped=False))
    assert average.step == 1


@pytest.mark.parametrize("optimizer", ["dense", "lazy_adam"])
def test_training_goes_on_as_without_an_average(tmp_path, optimizer):
    kept = []
    for decay in (None, DECAY):
        trainer, steps = table_trainer(tmp_path / str(decay), ema_decay=decay, embedding_optimizer=optimizer), Steps()
        trainer.add_callback(steps)
        trainer.train()
        kept.append(steps.kept[-1])
    assert all(torch.equal(kept[0][name], kept[1][name]) for name in kept[0])


@pytest.mark.parametrize("optimizer", ["dense", "lazy_adam"])
def test_a_resumed_training_is_the_same_to_the_bit(tmp_path, optimizer):
    arguments = {"embedding_optimizer": optimizer, "load_best_model_at_end": False, "stage2_epochs": 3}
    whole = table_trainer(tmp_path / "whole", **arguments)
    whole.train()
    again = table_trainer(tmp_path / "again", model=normed_model(seed=5), **arguments)
    again.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-25"))
    for name, values in whole.model.state_dict().items():
        assert torch.equal(values, again.model.state_dict()[name]), name


def test_checkpoints_of_another_average_are_refused(tmp_path):
    table_trainer(tmp_path / "none", ema_decay=None, stage2_epochs=1).train()
    table_trainer(tmp_path / "other", ema_decay=0.5, stage2_epochs=1).train()
    with pytest.raises(ValueError, match=f"has no {AVERAGE_FILE}: it was written without ema_decay, now it is 0.9"):
        table_trainer(tmp_path / "a").train(resume_from_checkpoint=str(tmp_path / "none" / "checkpoint-25"))
    with pytest.raises(ValueError, match=r"written with ema_decay=0.5, now it is 0.9"):
        table_trainer(tmp_path / "b").train(resume_from_checkpoint=str(tmp_path / "other" / "checkpoint-25"))


def test_stages_and_adapters(tmp_path):
    """Adapters and the modules trained whole are averaged over both stages; frozen weights stay as they are."""
    model = add_lora(make_model(), {"r": 2, "alpha": 4, "dropout": 0.0})
    frozen = {name: p.detach().clone() for name, p in model.named_parameters() if not p.requires_grad}
    trained = {name for name, p in model.named_parameters() if p.requires_grad}
    steps = Steps()
    arguments = {"stage1_epochs": 1, "stage2_epochs": 2, "save_total_limit": None, "ema_decay": DECAY}
    trainer = make_trainer(tmp_path / "whole", model=model, callbacks=[steps], **arguments)
    trainer.train()
    result, expected = trainer.model.state_dict(), steps.average(trainer.state.best_global_step)
    assert_is(result, {name: expected[name] for name in trained})
    assert all(torch.equal(result[name], values) for name, values in frozen.items())
    again = add_lora(make_model(seed=0), {"r": 2, "alpha": 4, "dropout": 0.0})
    resumed = make_trainer(tmp_path / "again", model=again, **arguments)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-10"))
    found = [{e["step"]: e["eval_loss"] for e in t.state.log_history if "eval_loss" in e} for t in (trainer, resumed)]
    assert found[0] == found[1]


@pytest.mark.parametrize("decay", [0.0, 1.0, -0.5, float("nan")])
def test_a_decay_out_of_range(tmp_path, decay):
    with pytest.raises(ValueError, match=r"ema_decay must lie between 0 and 1"):
        table_trainer(tmp_path, ema_decay=decay)


def test_sharded_models_are_refused(tmp_path):
    with pytest.raises(ValueError, match="does not work with FSDP"):
        table_trainer(tmp_path, fsdp="full_shard")


def test_half_precision_weights_are_averaged_in_float32(tmp_path):
    trainer = table_trainer(tmp_path, model=normed_model().bfloat16(), eval_strategy="no", learning_rate=1e-3)
    steps = Steps()
    trainer.add_callback(steps)
    trainer.train()
    for name, found in trainer.model.state_dict().items():
        if found.dtype == torch.bfloat16:
            difference = (found.double() - steps.average()[name]).abs().max().item()
            assert difference <= 2**-8 * found.abs().max().item(), name  # of the last rounding only
