"""Permutation importance against a loop, with models whose answers hang on known columns."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sequence_rows import sequence_log, sequence_view

from lmctr import DINConfig, DINForCTR
from lmctr.analysis.importance import column_importance
from lmctr.data import TabularFeatureProcessor, TabularView
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.evaluation.metrics import auc, log_loss

NUM_ROWS = 61


class Reads(torch.nn.Module):
    """A model of tables whose logits are what a function makes of a batch."""

    def __init__(self, reads):
        super().__init__()
        self.scale, self.reads = torch.nn.Parameter(torch.ones(())), reads

    def forward(self, **batch):
        assert not {"labels", "sample_weight"} & batch.keys()
        return SimpleNamespace(logits=self.scale * self.reads(batch))


@pytest.fixture(scope="module")
def table():
    draw = np.random.default_rng(0)
    age, price = draw.normal(size=(2, NUM_ROWS))
    columns = {
        "age": age,
        "city": draw.choice(["x", "y", "z"], NUM_ROWS),
        "price": price,
        "tags": [list(draw.choice(["a", "b", "c"], draw.integers(0, 4))) for _ in range(NUM_ROWS)],
        "label": (price + 0.3 * draw.normal(size=NUM_ROWS) > 0).astype(int),
        "weight": draw.uniform(0.5, 2, NUM_ROWS),
    }
    fields = [
        {"name": "age", "type": "numeric"},
        {"name": "city", "type": "categorical"},
        {"name": "price", "type": "numeric"},
        {"name": "tags", "type": "multi_value", "max_length": 3},
    ]

    def view(**more):
        processor = TabularFeatureProcessor(fields, **more).fit(columns)
        return TabularView(TabularStore.build(table_source(columns), processor))

    return view


def test_what_is_made_of_one_column_is_shuffled_together():
    """Else a number and its bin stand in for each other, and both seem worth nothing."""
    prices = np.arange(60.0) - 29.5
    columns = {"price": prices, "label": (prices > 0).astype(int), "shop": np.arange(60) % 3}
    fields = [
        {"name": "price", "type": "numeric"},
        {"name": "shop", "type": "categorical"},
        {"name": "price_bin", "column": "price", "type": "numeric", "transform": "quantile", "num_bins": 2},
    ]
    view = TabularView(TabularStore.build(table_source(columns), TabularFeatureProcessor(fields).fit(columns)))
    both = {"numeric_values": [0], "input_ids": [1]}
    assert view.columns() == {"shop": {"input_ids": [0]}, "price, price_bin": both}

    def reads(batch):
        return batch["numeric_values"][:, 0].clamp(-1, 1) + 2 * (batch["input_ids"][:, 1] == batch["input_ids"].max())

    losses = {own.column: own.auc for own in column_importance(Reads(reads), view, np.arange(60)).losses}
    assert losses["price, price_bin"] > 0.4
    assert losses["shop"] == 0


def test_the_loss_of_a_column_against_a_loop(table):
    view = table()
    assert view.columns() == {
        "city": {"input_ids": [0]},
        "age": {"numeric_values": [0]},
        "price": {"numeric_values": [1]},
        "tags": {"sequence_ids": [0], "sequence_times": [0], "sequence_weights": [0]},
    }
    model = Reads(lambda batch: 2 * batch["numeric_values"][:, 1] + 0.1 * (batch["sequence_ids"] > 0).sum((1, 2)))
    rows = np.arange(NUM_ROWS)
    found = column_importance(model, view, rows, batch_size=20, seed=3)  # four batches of 15 and 16

    dealt = rows[np.random.default_rng(3).permutation(NUM_ROWS)]
    others = np.concatenate([np.roll(some, 1) for some in np.array_split(dealt, 4)])
    own, other = view.batch(dealt), view.batch(others)
    label = own["labels"].numpy()
    price, tags = (
        (one["numeric_values"][:, 1].double().numpy(), (one["sequence_ids"] > 0).sum((1, 2)).numpy())
        for one in (own, other)
    )
    whole = 2 * price[0] + 0.1 * price[1]
    expected = {"price": 2 * tags[0] + 0.1 * price[1], "tags": 2 * price[0] + 0.1 * tags[1]}
    assert found.num_samples == NUM_ROWS
    assert found.auc == pytest.approx(auc(label, whole))
    assert found.losses[0].column == "price"
    by_name = {one.column: one for one in found.losses}
    for name, logits in expected.items():
        assert by_name[name].auc == pytest.approx(auc(label, whole) - auc(label, logits))
        rise = log_loss(label, logits, from_logits=True) - log_loss(label, whole, from_logits=True)
        assert by_name[name].log_loss == pytest.approx(rise, abs=1e-6)
        assert by_name[name].low <= by_name[name].auc <= by_name[name].high
    for name in ("age", "city"):  # which the model does not read
        assert (by_name[name].auc, by_name[name].low, by_name[name].high, by_name[name].log_loss) == (0, 0, 0, 0)


def test_weighted_samples(table):
    view = table(weight="weight")
    found = column_importance(Reads(lambda batch: batch["numeric_values"][:, 1]), view, np.arange(NUM_ROWS))
    batch = view.batch(np.arange(NUM_ROWS))
    whole = auc(batch["labels"].numpy(), batch["numeric_values"][:, 1].numpy(), batch["sample_weight"].numpy())
    assert found.auc == pytest.approx(whole)
    assert found.losses[0].column == "price"
    assert found.losses[0].low is None


def test_a_sequence_model():
    log = sequence_log(num_users=12)
    view = sequence_view(log, item_features=["genres"], user_features=["country"])
    torch.manual_seed(0)
    model = DINForCTR(DINConfig(**view.processor.model_config_values(), initializer_range=1.0)).train()
    found = column_importance(model, view, log.sample_events())
    assert model.training
    names = {one.column for one in found.losses}
    assert names == {"history", "item", "scenario", "item genres", "user country"}
    assert all(one.log_loss != 0 for one in found.losses)
    assert not any("forward" in vars(module) for module in model.modules())


class Encoder(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, ids):
        self.calls += 1
        return (ids == 2).any(-1).float()


def test_what_is_the_same_is_encoded_once(table):
    model = Reads(lambda batch: model.model(ids=batch["input_ids"]) + batch["numeric_values"][:, 1])
    model.model = Encoder()
    found = column_importance(model, table(), np.arange(NUM_ROWS), batch_size=40)
    assert {one.column for one in found.losses if one.log_loss} == {"city", "price"}
    assert model.model.calls == 2 * 3  # of each batch as it is, with other cities, and again as it is


def test_what_cannot_be_measured(table):
    view = table()
    model = Reads(lambda batch: batch["numeric_values"][:, 1])
    with pytest.raises(ValueError, match="there are no samples to score"):
        column_importance(model, view, [])
    with pytest.raises(ValueError, match="rows must be from 0 to 60"):
        column_importance(model, view, [61])
