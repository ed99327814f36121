"""Tables whose gradients are the batch's rows up to the step of a dense optimiser train as with whole gradients."""

import pytest
import torch
from toy_tables import make_table_model, make_table_trainer
from transformers import TrainerCallback

from lmctr.models.common.table_bank import TableBank
from lmctr.training.row_gradients import RowGradients


class Seen(TrainerCallback):
    """Whether the table's gradient was COO before each step, and the rows of it behind the step."""

    def __init__(self):
        self.is_sparse = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.is_sparse.append(model.table.weight.grad.is_sparse)


def trained(folder, seen=None, optim="adamw_torch_fused", **arguments):
    model = make_table_model()
    bank = TableBank(*model.table.weight.shape)
    bank.load_state_dict(model.table.state_dict())
    model.table = bank
    trainer = make_table_trainer(folder, model=model, optim=optim, weight_decay=0.1, **arguments)
    trainer.add_callback(seen or Seen())
    trainer.train()
    return trainer


SETTINGS = {
    "fused": {"max_grad_norm": 0.0},
    "a loop over parameters": {"optim": "adamw_torch", "max_grad_norm": 0.0},
    "momentum": {"optim": "sgd", "optim_args": "momentum=0.9", "max_grad_norm": 0.0},
    "accumulated": {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 4, "max_grad_norm": 0.0},
    "clipped": {"max_grad_norm": 0.05},
    "averaged": {"ema_decay": 0.9, "max_grad_norm": 0.0},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_the_steps_are_those_of_whole_gradients(tmp_path, monkeypatch, name):
    rows = Seen()
    found = trained(tmp_path / "rows", rows, **SETTINGS[name])
    monkeypatch.setattr(RowGradients, "attach", lambda *_: None)
    whole = Seen()
    expected = trained(tmp_path / "whole", whole, **SETTINGS[name])
    assert rows.is_sparse == [True] * len(whole.is_sparse)
    assert whole.is_sparse == [False] * len(whole.is_sparse)
    exact = name not in ("accumulated", "clipped")  # those sum in another order
    for key, value in expected.model.state_dict().items():
        torch.testing.assert_close(found.model.state_dict()[key], value, **({"rtol": 0, "atol": 0} if exact else {}))


def test_model_and_optimiser_are_left_as_they_were(tmp_path):
    trainer = trained(tmp_path)
    optimizer, table = trainer.optimizer.optimizer, trainer.model.table
    assert not optimizer._optimizer_step_pre_hooks
    assert not optimizer._optimizer_step_post_hooks
    table(torch.tensor([1, 2])).sum().backward()
    assert not table.weight.grad.is_sparse
    assert optimizer.state[table.weight]["exp_avg"].shape == table.weight.shape


def test_a_training_that_fails_leaves_them_too(tmp_path):
    class Stop(TrainerCallback):
        def on_step_end(self, *_, **kwargs):
            raise RuntimeError("stop")

    stopped = make_table_model()
    stopped.table = TableBank(*stopped.table.weight.shape)
    trainer = make_table_trainer(tmp_path, model=stopped)
    trainer.add_callback(Stop())
    with pytest.raises(RuntimeError, match="stop"):
        trainer.train()
    assert not stopped.table.row_gradients


@pytest.mark.parametrize("arguments", [{"optim": "adafactor"}, {"embedding_optimizer": "lazy_adam"}])
def test_optimisers_that_it_is_not_for(tmp_path, arguments):
    seen = Seen()
    trained(tmp_path, seen, **arguments)
    assert set(seen.is_sparse) == {"embedding_optimizer" in arguments}
