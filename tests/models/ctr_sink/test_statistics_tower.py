"""Statistics beside the text: the common suite, plain references of both heads, scales at the start, LoRA."""

import pytest
import torch
from test_modeling_ctr_sink import CTRSinkTester, model_of, score
from test_split_layout import SplitTester
from test_split_layout import model_of as split_model_of
from tiny_models import batch_of

FS = 5


def statistics_of(rows=3, seed=0):
    return torch.randn(rows, FS, generator=torch.Generator().manual_seed(seed))


class WithStatistics:
    def make_config(self, **values):
        return super().make_config(**({"num_statistics": FS, "statistics_hidden_sizes": [7, 6]} | values))

    read_by_head = ("labels", "statistics")

    def make_batch(self, config, seed=0):
        return {**super().make_batch(config, seed), "statistics": statistics_of(seed=seed)}


class TestBertWithStatistics(WithStatistics, CTRSinkTester):
    backbone = "bert"


class TestQwen2WithStatistics(WithStatistics, CTRSinkTester):
    backbone = "qwen2"


class TestSplitWithStatistics(WithStatistics, SplitTester):
    backbone = "bert"


def leaky(x):
    return torch.where(x > 0, x, 0.01 * x)


def reference(head, hidden, statistics, knots):
    """A row's logit from its text's part (n,) of the hidden layer, in float64."""
    tower, states = head.statistics, list(statistics)
    for knot in knots:
        states += [max(x - knot, 0.0) for x in statistics]
    states = torch.stack([torch.as_tensor(x, dtype=torch.float64) for x in states])
    for layer in tower.layers:
        states = leaky(layer.weight @ states + layer.bias)
    # The head's first layer on [pooled state, MLP's output], side by side.
    hidden = leaky(hidden + tower.join.weight @ states)
    return (head.out.weight @ hidden + head.out.bias + tower.skip.weight @ statistics).item()


@pytest.mark.parametrize("knots", [[], [-0.5, 1]])
@pytest.mark.parametrize("layout", ["single", "split"])
def test_logits_equal_a_plain_reference(layout, knots):
    values = {"num_statistics": FS, "statistics_hidden_sizes": [7, 6], "statistics_knots": knots}
    maker, tester = (
        (model_of, TestBertWithStatistics)
        if layout == "single"
        else (
            split_model_of,
            TestSplitWithStatistics,
        )
    )
    model = maker("bert", **values).double()
    batch = tester().make_batch(model.config)
    del batch["labels"]
    torch.nn.init.normal_(model.head.statistics.skip.weight)
    read = []
    model.head.dense.register_forward_hook(lambda module, args, output: read.append(output.detach()))
    found = score(model, batch)
    expected = [
        reference(model.head, hidden, row.double(), knots) for hidden, row in zip(read[0], batch["statistics"])
    ]
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float32), atol=1e-6, rtol=1e-6)
    changed = batch["statistics"].clone()
    changed[1] += 1.0
    moved = score(model, {**batch, "statistics": changed}) - found
    assert moved[1].abs() > 1e-3
    assert moved[[0, 2]].abs().max() < 1e-9


def test_statistics_are_asked_for_exactly_where_the_model_has_them():
    with_them, without = model_of("bert", num_statistics=FS), model_of("bert")
    batch = batch_of(without.config)
    with pytest.raises(ValueError, match=r"statistics: missing; .* needs statistics of shape \(3, 5\)"):
        score(with_them, batch)
    with pytest.raises(ValueError, match=r"expected shape \(3, 5\), got \(3, 4\)"):
        score(with_them, {**batch, "statistics": torch.zeros(3, 4)})
    with pytest.raises(
        ValueError, match=r"statistics: field 4 has nan in row 1; fill missing values before the model"
    ):
        score(with_them, {**batch, "statistics": torch.where(torch.arange(15).view(3, 5) == 9, torch.nan, 0.0)})
    with pytest.raises(ValueError, match="statistics: not expected"):
        score(without, {**batch, "statistics": statistics_of()})
    assert not any("statistics" in name for name, _ in without.named_parameters())


@pytest.mark.parametrize("initializer_range", [0.02, 0.3])
def test_new_weights_keep_the_scale_of_the_statistics(initializer_range):
    """Whatever the backbone's own scale is: at 0.02 the statistics would hardly be heard."""
    model = model_of("bert", num_statistics=100, initializer_range=initializer_range)
    tower = model.head.statistics
    statistics = torch.randn(2000, 100, generator=torch.Generator().manual_seed(0))
    assert 0.5 < tower(statistics).std() < 1.5
    assert not tower.skip(statistics, torch.zeros(2000, 1)).any()


def test_lora_trains_and_saves_the_tower_whole(tmp_path):
    from lmctr.training.lora import add_lora, load_adapter, merge_lora, save_adapter

    model = model_of("qwen2", num_statistics=FS)
    batch = {**batch_of(model.config), "statistics": statistics_of()}
    names = {name for name, _ in model.head.statistics.named_parameters()}
    tuned = add_lora(model, {"r": 2}).train()
    trained = {name: p for name, p in tuned.named_parameters() if p.requires_grad and "statistics" in name}
    assert {name.rsplit("statistics.", 1)[1] for name in trained} == names
    before = {name: parameter.detach().clone() for name, parameter in trained.items()}
    optimizer = torch.optim.SGD([p for p in tuned.parameters() if p.requires_grad], lr=1.0)
    tuned(**batch, labels=torch.tensor([1.0, 0.0, 1.0])).loss.backward()
    optimizer.step()
    assert [name for name, parameter in trained.items() if torch.equal(parameter, before[name])] == []
    save_adapter(tuned.eval(), tmp_path)
    again = merge_lora(load_adapter(model_of("qwen2", num_statistics=FS), tmp_path)).eval()
    torch.testing.assert_close(score(again, batch), score(tuned, batch), atol=1e-5, rtol=1e-5)
