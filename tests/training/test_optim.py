"""Optimisers of embedding tables against float64 loops, and through the trainer."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from toy_tables import ToyTable, make_table_model, make_table_trainer

from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.optim import (
    GroupedOptimizer,
    LazyAdamW,
    RowwiseAdagrad,
    clip_gradients,
    coalesce_gradients,
    gradient_norm,
    use_sparse_gradients,
)

V, D, STEPS = 11, 3, 7


def sparse_gradients(seed=0, steps=STEPS, num_ids=6):
    """For each step row ids with repeats and one gradient per id."""
    rng = np.random.default_rng(seed)
    return [(rng.integers(0, V - 2, num_ids), rng.normal(size=(num_ids, D))) for _ in range(steps)]


def run(optimizer_class, start, gradients, dtype=torch.float64, **options):
    table = nn.Parameter(torch.tensor(start, dtype=dtype))
    optimizer = optimizer_class([table], **options)
    for rows, values in gradients:
        indices, values = torch.tensor(rows)[None], torch.tensor(values, dtype=dtype)
        table.grad = torch.sparse_coo_tensor(indices, values, (V, D), check_invariants=True)
        optimizer.step()
    return table.detach().double().numpy(), optimizer


def summed(rows, values):
    total = {}
    for row, value in zip(rows, values):
        total[row] = total.get(row, 0.0) + value
    return total


def reference_adamw(start, gradients, lr, betas, eps, weight_decay):
    weight = np.array(start, dtype=np.float64)
    mean, square = np.zeros((V, D)), np.zeros((V, D))
    for step, (rows, values) in enumerate(gradients, start=1):
        for row, gradient in summed(rows, values).items():
            weight[row] *= 1 - lr * weight_decay
            for k in range(D):
                mean[row, k] = betas[0] * mean[row, k] + (1 - betas[0]) * gradient[k]
                square[row, k] = betas[1] * square[row, k] + (1 - betas[1]) * gradient[k] ** 2
                upper = mean[row, k] / (1 - betas[0] ** step)
                lower = np.sqrt(square[row, k] / (1 - betas[1] ** step)) + eps
                weight[row, k] -= lr * upper / lower
    return weight


def reference_adagrad(start, gradients, lr, eps, weight_decay, initial):
    weight, total = np.array(start, dtype=np.float64), np.full(V, initial)
    for rows, values in gradients:
        for row, gradient in summed(rows, values).items():
            total[row] += sum(gradient[k] ** 2 for k in range(D)) / D
            weight[row] = weight[row] * (1 - lr * weight_decay) - lr * gradient / (np.sqrt(total[row]) + eps)
    return weight


START = np.random.default_rng(9).normal(size=(V, D))


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
def test_lazy_adamw_is_the_loop(weight_decay):
    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": weight_decay}
    found, _ = run(LazyAdamW, START, sparse_gradients(), **options)
    np.testing.assert_allclose(found, reference_adamw(START, sparse_gradients(), **options), rtol=1e-12)
    single, _ = run(LazyAdamW, START, sparse_gradients(), dtype=torch.float32, **options)
    np.testing.assert_allclose(single, found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("weight_decay", "initial"), [(0.0, 0.0), (0.3, 0.1)])
def test_rowwise_adagrad_is_the_loop(weight_decay, initial):
    found, optimizer = run(
        RowwiseAdagrad,
        START,
        sparse_gradients(),
        lr=0.5,
        eps=1e-6,
        weight_decay=weight_decay,
        initial_accumulator_value=initial,
    )
    expected = reference_adagrad(START, sparse_gradients(), 0.5, 1e-6, weight_decay, initial)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert [value.numel() for state in optimizer.state.values() for value in state.values()] == [V]


@pytest.mark.parametrize("optimizer_class", [LazyAdamW, RowwiseAdagrad])
def test_rows_without_gradient_stay_as_they_are(optimizer_class):
    found, optimizer = run(optimizer_class, START, sparse_gradients(), weight_decay=0.5)
    np.testing.assert_array_equal(found[V - 2 :], START[V - 2 :])
    for state in optimizer.state.values():
        for name, value in state.items():
            assert name == "step" or not value[V - 2 :].any()


def test_lazy_adamw_is_adamw_where_every_row_is_touched():
    rng = np.random.default_rng(1)
    gradients = [(np.r_[np.arange(V), 3, 3], rng.normal(size=(V + 2, D))) for _ in range(5)]
    options = {"lr": 0.05, "betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.2}
    found, _ = run(LazyAdamW, START, gradients, **options)
    table = nn.Parameter(torch.tensor(START))
    optimizer = torch.optim.AdamW([table], **options)
    for rows, values in gradients:
        table.grad = torch.zeros(V, D, dtype=torch.float64).index_add_(0, torch.tensor(rows), torch.tensor(values))
        optimizer.step()
    np.testing.assert_allclose(found, table.detach().numpy(), rtol=1e-12)


def test_an_empty_gradient_and_a_dense_one():
    table = nn.Parameter(torch.tensor(START))
    optimizer = LazyAdamW([table])
    empty = torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, D, dtype=torch.float64)
    table.grad = torch.sparse_coo_tensor(*empty, (V, D), check_invariants=True)
    optimizer.step()
    np.testing.assert_array_equal(table.detach().numpy(), START)
    table.grad = torch.zeros(V, D, dtype=torch.float64)
    with pytest.raises(RuntimeError, match=r"shape \(11, 3\) has a dense gradient"):
        optimizer.step()


@pytest.mark.parametrize(("options", "message"), [({"lr": -1.0}, "lr must"), ({"betas": (0.9, 1.0)}, "betas must")])
def test_values_out_of_range(options, message):
    with pytest.raises(ValueError, match=message):
        LazyAdamW([nn.Parameter(torch.zeros(2, 2))], **options)


def mixed_parameters():
    """A table with repeated rows in its gradient, and a dense parameter."""
    table, dense = nn.Parameter(torch.zeros(V, D)), nn.Parameter(torch.zeros(4))
    rows, values = sparse_gradients()[0]
    values = torch.tensor(values, dtype=torch.float32)
    table.grad = torch.sparse_coo_tensor(torch.tensor(rows)[None], values, (V, D), check_invariants=True)
    dense.grad = torch.tensor([0.5, -1.0, 2.0, 0.0])
    return table, dense


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [1, 3, 16])
def test_rows_are_summed_as_coalesce_does(dtype, width):
    rows = torch.randint(0, 40, (300,), generator=torch.Generator().manual_seed(0))
    # whole numbers, whose sums no order of additions rounds
    values = torch.randint(-8, 9, (300, width), generator=torch.Generator().manual_seed(1)).to(dtype)
    table = nn.Parameter(torch.zeros(50, width, dtype=dtype))
    table.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), values, table.shape, check_invariants=True)
    wanted = table.grad.coalesce()
    coalesce_gradients([table])
    assert table.grad.is_coalesced()
    assert table.grad.dtype == dtype
    assert torch.equal(table.grad._indices(), wanted._indices())
    assert torch.equal(table.grad._values(), wanted._values())


def test_tables_read_at_the_same_rows_are_sorted_once(monkeypatch):
    sorts = []
    monkeypatch.setattr(torch.Tensor, "sort", lambda self, **options: sorts.append(1) or torch.sort(self, **options))
    tables = [nn.Parameter(torch.zeros(9, width)) for width in (1, 4, 4)]
    for table, rows in zip(tables, ([3, 1, 3], [3, 1, 3], [3, 1, 2])):
        table.grad = torch.sparse_coo_tensor(
            torch.tensor([rows]), torch.ones(3, table.shape[1]), table.shape, check_invariants=True
        )
    coalesce_gradients(tables)
    assert len(sorts) == 2
    assert tables[1].grad.to_dense()[3].tolist() == [2.0] * 4
    assert tables[2].grad.to_dense().sum(1).nonzero()[:, 0].tolist() == [1, 2, 3]


def test_norm_is_that_of_the_summed_rows():
    table, dense = mixed_parameters()
    whole = torch.cat([table.grad.to_dense().reshape(-1), dense.grad]).double()
    rows, values = sparse_gradients()[0]
    assert len(set(rows.tolist())) < len(rows)
    assert gradient_norm([table, dense]).item() == pytest.approx(whole.norm().item(), rel=1e-6)
    assert np.sqrt((values**2).sum() + 5.25) != pytest.approx(whole.norm().item(), rel=1e-2)


@pytest.mark.parametrize("max_norm", [0.5, 100.0])
def test_clipping_is_that_of_dense_gradients(max_norm):
    table, dense = mixed_parameters()
    other, plain = nn.Parameter(torch.zeros(V, D)), nn.Parameter(torch.zeros(4))
    other.grad, plain.grad = table.grad.to_dense(), dense.grad.clone()
    expected = torch.nn.utils.clip_grad_norm_([other, plain], max_norm)
    assert clip_gradients([table, dense], max_norm).item() == pytest.approx(expected.item(), rel=1e-6)
    torch.testing.assert_close(table.grad.to_dense(), other.grad)
    torch.testing.assert_close(dense.grad, plain.grad)


def test_grouped_optimizer_steps_saves_and_loads():
    def make():
        torch.manual_seed(0)
        model = make_table_model()
        tables = use_sparse_gradients(model)
        rest = [parameter for parameter in model.parameters() if all(parameter is not table for table in tables)]
        return model, GroupedOptimizer([torch.optim.AdamW(rest, lr=1e-2, fused=True), LazyAdamW(tables, lr=1e-2)])

    def steps(model, optimizer, number):
        data = ToyTable(64)
        for step in range(number):
            optimizer.zero_grad()
            rows = np.arange(step * 8, step * 8 + 8)
            model(torch.from_numpy(data.ids[rows]), labels=torch.from_numpy(data.labels[rows])).loss.backward()
            optimizer.step()

    model, optimizer = make()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    steps(model, optimizer, 3)
    assert all(not torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(part.state is optimizer.state for part in optimizer.parts)
    again, loaded = make()
    again.load_state_dict(model.state_dict())
    loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for group in loaded.param_groups:
        group["lr"] = 0.5
    assert [group["lr"] for part in loaded.parts for group in part.param_groups] == [0.5, 0.5]
    for group in optimizer.param_groups:
        group["lr"] = 0.5
    steps(model, optimizer, 3)
    steps(again, loaded, 3)
    for name, value in model.state_dict().items():
        assert torch.equal(value, again.state_dict()[name]), name


def test_float16_scaling_changes_no_step_and_skips_infinite_ones():
    """What the trainer does under fp16: scale the loss, unscale, clip, step; an infinite gradient skips the step."""
    weights = []
    for scaled in (False, True):
        torch.manual_seed(0)
        model = make_table_model()
        tables = use_sparse_gradients(model)
        rest = [parameter for parameter in model.parameters() if all(parameter is not table for table in tables)]
        optimizer = GroupedOptimizer([torch.optim.AdamW(rest, lr=1e-2, fused=True), LazyAdamW(tables, lr=1e-2)])
        scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, enabled=scaled)
        data = ToyTable(64)
        for step in range(4):
            optimizer.zero_grad()
            rows = np.arange(step * 8, step * 8 + 8)
            loss = model(torch.from_numpy(data.ids[rows]), labels=torch.from_numpy(data.labels[rows])).loss
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            clip_gradients(model.parameters(), 0.05)
            scaler.step(optimizer)
            scaler.update()
        weights.append({name: value.clone() for name, value in model.state_dict().items()})
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-5, atol=1e-7)
    optimizer.zero_grad()
    scaler.scale(model(torch.from_numpy(data.ids[:4])).logits.sum() * float("inf")).backward()
    scaler.step(optimizer)
    assert all(torch.equal(value, weights[1][name]) for name, value in model.state_dict().items())


def test_tied_tables_stay_dense():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.own = nn.Embedding(5, 4), nn.Embedding(6, 4)
            self.output = nn.Linear(4, 5, bias=False)
            self.output.weight = self.table.weight

    model = Tied()
    assert [weight.shape for weight in use_sparse_gradients(model)] == [(6, 4)]
    assert model.own.sparse
    assert not model.table.sparse


# ---- through the trainer --------------------------------------------------------------------------------------------


def trained(folder, **arguments):
    trainer = make_table_trainer(folder, **arguments)
    trainer.train()
    return trainer


@pytest.mark.parametrize(("name", "rate"), [("lazy_adam", 0.05), ("rowwise_adagrad", 0.5)])
def test_trainer_learns_with_sparse_optimizers(tmp_path, name, rate):
    trainer = trained(tmp_path, embedding_optimizer=name, embedding_learning_rate=rate, weight_decay=0.01)
    assert isinstance(trainer.optimizer.optimizer, GroupedOptimizer)
    assert trainer.evaluate()["eval_auc"] > 0.8
    norms = [entry["grad_norm"] for entry in trainer.state.log_history if "grad_norm" in entry]
    assert norms
    assert min(norms) > 0


def test_rows_never_seen_keep_their_initial_values(tmp_path):
    model = make_table_model()
    before = model.table.weight[-3:].clone()
    make_table_trainer(tmp_path, model=model, embedding_optimizer="lazy_adam", weight_decay=0.5).train()
    assert torch.equal(model.table.weight[-3:], before)


def test_sparse_training_is_dense_training_where_all_rows_are_touched(tmp_path):
    """A vocabulary of four values, in every batch: lazy and dense AdamW are the same, clipping included."""
    weights = {}
    for name in ("dense", "lazy_adam"):
        train = ToyTable(256, vocabulary=4)
        trainer = make_table_trainer(
            tmp_path / name,
            train=train,
            model=make_table_model(vocabulary=4),
            embedding_optimizer=name,
            max_grad_norm=0.05,
            weight_decay=0.1,
        )
        trainer.train()
        weights[name] = trainer.model.state_dict()
    for name, value in weights["dense"].items():
        torch.testing.assert_close(weights["lazy_adam"][name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["lazy_adam", "rowwise_adagrad"])
def test_resumed_training_reaches_the_same_weights(tmp_path, name):
    arguments = {"embedding_optimizer": name, "save_total_limit": None, "load_best_model_at_end": False}
    whole = trained(tmp_path / "whole", **arguments)
    checkpoints = sorted((tmp_path / "whole").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    again = make_table_trainer(tmp_path / "again", model=make_table_model(seed=5), **arguments)
    again.train(resume_from_checkpoint=str(checkpoints[0]))
    for key, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[key]), key


def test_accumulated_sparse_gradients_are_one_batch(tmp_path):
    weights = []
    for size, steps in ((32, 1), (8, 4)):
        trainer = trained(
            tmp_path / str(steps),
            embedding_optimizer="lazy_adam",
            per_device_train_batch_size=size,
            gradient_accumulation_steps=steps,
            adam_epsilon=1e-3,
        )
        weights.append(trainer.model.state_dict())
    for name, value in weights[0].items():
        torch.testing.assert_close(weights[1][name], value, rtol=1e-3, atol=1e-5)


def test_bf16_trains_with_sparse_tables(tmp_path):
    trainer = trained(tmp_path, embedding_optimizer="lazy_adam", bf16=True)
    assert trainer.model.table.weight.dtype == torch.float32
    assert trainer.evaluate()["eval_auc"] > 0.7


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"embedding_optimizer": "sparse"}, "embedding_optimizer must be dense, lazy_adam, rowwise_adagrad"),
        ({"embedding_learning_rate": 0.1}, "no effect with embedding_optimizer='dense'"),
        ({"embedding_optimizer": "lazy_adam", "embedding_learning_rate": -1.0}, "must be 0 or more"),
        (
            {"lr_scheduler_type": "reduce_lr_on_plateau", "lr_scheduler_kwargs": {"mode": "min"}},
            "leave mode out, or set 'max'",
        ),
    ],
)
def test_bad_arguments_name_the_value(tmp_path, arguments, message):
    with pytest.raises(ValueError, match=message):
        CTRTrainingArguments(str(tmp_path), use_cpu=True, **arguments)


def test_a_model_without_tables_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="has no embedding table"):
        make_table_trainer(tmp_path, model=nn.Linear(2, 1), embedding_optimizer="lazy_adam")


def test_plateau_decays_by_the_watched_metric_and_training_stops(tmp_path):
    """No gain is possible (learning rate 0): one decay per epoch after the first, and two epochs end the run."""
    trainer = trained(
        tmp_path,
        stage2_epochs=9,
        learning_rate=0.0,
        embedding_optimizer="lazy_adam",
        embedding_learning_rate=1e-12,
        lr_scheduler_type="reduce_lr_on_plateau",
        lr_scheduler_kwargs={"factor": 0.1, "patience": 0, "eps": 0.0},
        early_stopping_patience=2,
    )
    assert trainer.args.lr_scheduler_kwargs["mode"] == "max"
    assert trainer.state.epoch == 3
    assert trainer.optimizer.param_groups[-1]["lr"] == pytest.approx(1e-14)
