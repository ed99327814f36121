"""Boosted trees beside a tabular model know pairs of fields by their rates, where these tell more than the fields alone."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from test_field_trees import settings
from test_value_rates import columns_of, lines, plain_rates, recipe_of, with_rates

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.evaluation.rates import MOST_CELLS, MOST_PAIRS, chosen_pairs, pair_ids, value_rates
from lmctr.hub.model_card import build_card

SIZES = [14, 33, 6, 9]
DAYS, MONTHS = 12, 12


def rows_of(count, strength, seed=0):
    """Ids of four fields, and labels in which the first two and the last two have something to say together, which `strength` multiplies."""
    generator = np.random.default_rng(seed)
    ids = np.column_stack([generator.integers(0, size, count) for size in SIZES])
    alone = sum(generator.normal(size=size)[own] for size, own in zip(SIZES, ids.T))
    first, second = (generator.normal(size=SIZES[place : place + 2]) for place in (0, 2))
    together = first[ids[:, 0], ids[:, 1]] + 0.8 * second[ids[:, 2], ids[:, 3]]
    return ids, (alone + strength * together + generator.logistic(size=count) > 0).astype(np.float32)


def given(ids, labels, weight=None, columns="abcd", are_bins=(False,) * 4):
    rates = value_rates(ids.T, SIZES, labels, weight, np.arange(len(ids)))[1][:, 0]
    return {
        "ids": ids,
        "sizes": SIZES,
        "fields": [
            SimpleNamespace(source_column=column, extract=None, type="numeric" if is_bins else "categorical")
            for column, is_bins in zip(columns, are_bins)
        ],
        "rates": rates,
        "labels": labels,
        "weight": weight,
    }


def plain_gains(ids, rates, labels, weight):
    """By the letter: what a pair's rows of the four other folds tell of each row beyond the regression, and how sure the gain is."""
    known = [row for row in range(len(ids)) if labels[row] >= 0 and weight[row] > 0]
    fold = np.random.default_rng([0, 77]).integers(0, 5, len(ids))
    line = LogisticRegression(C=0.1, max_iter=500).fit(rates[known], labels[known], weight[known])
    logits = line.decision_function(rates)
    rate = 1 / (1 + np.exp(-logits))
    smooth = 5 * np.mean([weight[row] * rate[row] * (1 - rate[row]) for row in known])
    found = {}
    for one, two in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)):
        sums = {}
        for row in known:
            own = sums.setdefault((fold[row], ids[row, one], ids[row, two]), [0.0, 0.0])
            own[0] += weight[row] * (labels[row] - rate[row])
            own[1] += weight[row] * rate[row] * (1 - rate[row])
        gains = []
        for row in known:
            others = [
                sums.get((other, ids[row, one], ids[row, two]), (0, 0)) for other in range(5) if other != fold[row]
            ]
            step = sum(own[0] for own in others) / (sum(own[1] for own in others) + smooth)
            before, after = (np.log1p(np.exp(-z if labels[row] else z)) for z in (logits[row], logits[row] + step))
            gains.append(weight[row] * (before - after))
        found[one, two] = np.mean(gains), np.mean(gains) / np.std(gains) * np.sqrt(len(gains))
    loss = np.mean([weight[row] * np.log1p(np.exp(-logits[row] if labels[row] else logits[row])) for row in known])
    assert max(gain for gain, _ in found.values()) > 0.03 * loss
    return {pair: (gain, sure * (gain >= 0.01 * loss)) for pair, (gain, sure) in found.items()}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_pair_is_chosen_by_what_it_tells_of_rows_that_it_was_not_counted_on(weighted):
    ids, labels = rows_of(8000, 2.5)
    generator = np.random.default_rng(1)
    weight = generator.choice([0.0, 0.5, 2.0], 8000).astype(np.float32) if weighted else None
    labels[generator.random(8000) < 0.1] = -100
    own = given(ids, labels, weight)
    gains = plain_gains(ids, own["rates"], labels, np.ones(8000) if weight is None else weight)
    expected = sorted((pair for pair, (_, sure) in gains.items() if sure >= 3.5), key=lambda pair: -gains[pair][0])
    assert set(expected) == {(0, 1), (2, 3)}
    assert chosen_pairs(**own) == expected


def test_no_pair_of_fields_that_tell_nothing_together():
    for seed in range(8):
        assert chosen_pairs(**given(*rows_of(3000, 0.0, seed))) == []


def test_which_pairs_are_not_tried(monkeypatch):
    ids, labels = rows_of(20_000, 1.5)
    assert chosen_pairs(**given(ids, labels)) == [(0, 1), (2, 3)]
    assert chosen_pairs(**given(ids, labels, columns="aacd")) == [(2, 3)]  # a number's bins and its codes
    assert chosen_pairs(**given(ids, labels, are_bins=[True, True, True, False])) == [
        (2, 3)
    ]  # trees part the bins of two numbers
    assert chosen_pairs(**given(ids, labels, columns=[0, 1, 0, 1])) == [
        (0, 1)
    ]  # the better one of the same two columns
    assert chosen_pairs(**given(ids[:900], labels[:900])) == []
    assert (
        chosen_pairs(**given(ids, np.where(np.cumsum(labels) > 19, 0, labels))) == []
    )  # of too few clicks to stop by
    with (
        monkeypatch.context() as patch
    ):  # a table whose best pair gains more than a hundredth, but less than what is asked of the best
        patch.setattr("lmctr.evaluation.rates._LEAST_OF_BEST", 0.5)
        assert chosen_pairs(**given(ids, labels)) == []
    monkeypatch.setattr("lmctr.evaluation.rates.MOST_CELLS", 14 * 33 - 1)
    assert chosen_pairs(**given(ids, labels)) == [(2, 3)]
    monkeypatch.setattr("lmctr.evaluation.rates.MOST_CELLS", MOST_CELLS)
    monkeypatch.setattr("lmctr.evaluation.rates.MOST_PAIRS", 1)
    assert chosen_pairs(**given(ids, labels)) == [(0, 1)]
    assert MOST_PAIRS == 8


def write(path, first, seed):
    """Campaigns that run on some days of some months, of months from `first` on."""
    runs = np.random.default_rng(7).normal(size=(DAYS, 2 * MONTHS)) * 2
    generator = np.random.default_rng(seed)
    day, month = generator.integers(0, DAYS, 4000), generator.integers(0, MONTHS, 4000) + first
    price = generator.normal(size=4000).round(3)
    clicked = (runs[day, month] + 0.5 * price + generator.logistic(size=4000) > 0).astype(int)
    rows = [f"d{day[row]},m{month[row]},{price[row]},{clicked[row]}" for row in range(4000)]
    path.write_text("\n".join(["day,month,price,click", *rows]) + "\n")
    return path


def recipe(file, share):
    found = recipe_of(file, ["click"], share)
    found["data"]["options"]["fields"][:2] = [{"name": name, "type": "categorical"} for name in ("day", "month")]
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Trees alone. Read it only."""
    folder = tmp_path_factory.mktemp("pairs")
    return lmctr.runs.train(recipe(write(folder / "rows.csv", 0, 0), 1.0), output_dir=folder / "run")


def test_half_of_the_trees_read_the_rates_of_pairs_that_leave_the_row_out(run):
    assert run.model.config.boosted_trees["rated_fields"] == [0, 1, [0, 1]]
    sizes, rows = run.model.config.vocab_sizes, lines(run.path.parent / "rows.csv")
    numbers, ids = columns_of(run, rows)
    labels, train = np.array([int(row["click"]) for row in rows]), 3200
    fold = np.random.default_rng([0, 77]).integers(0, 5, train)
    values = [ids[:, 0], ids[:, 1], pair_ids(ids, sizes, (0, 1))]
    known = [
        plain_rates(own[:train], labels[:train], fold, size)
        for own, size in zip(values, (*sizes, sizes[0] * sizes[1]))
    ]
    halves = []
    for number in range(6):
        rated = 3 * (number % 2)  # none, of which no field has many values, then all
        trees = HistGradientBoostingClassifier(**settings(train, 3 + 1000 * number))
        without = np.stack([own for _, own in known], 1)[:, :rated]
        trees.fit(with_rates(numbers[:train], ids[:train], without), labels[:train])
        rates = np.stack([whole[own] for (whole, _), own in zip(known, values)], 1)[:, :rated]
        halves.append(trees.decision_function(with_rates(numbers, ids, rates)[train:]))
    np.testing.assert_allclose(run.predict(rows[train:]), np.mean(halves, 0), atol=1e-4)


def test_saved_shown_and_exported(run, tmp_path):
    again = lmctr.AutoModelForCTR.from_pretrained(run.path).eval()
    numbers, ids = (torch.from_numpy(own) for own in columns_of(run, lines(run.path.parent / "rows.csv")[:50]))
    found = again(numeric_values=numbers, input_ids=ids.to(torch.int32)).logits.detach()
    np.testing.assert_array_equal(found, run.predict(lines(run.path.parent / "rows.csv")[:50]))
    assert "and the rates of all categorical ones, day with month; their share" in str(build_card(run.path))
    # a program as that of rates of single fields, which test_value_rates writes as ONNX
    assert main(["export", str(run.path), "--format", "torch", "--output", str(tmp_path), "--quiet"]) == 0
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert parity["largest_difference"] < 1e-4 < parity["largest_logit"]


def test_rates_of_pairs_go_with_the_values_to_the_next_day(run, tmp_path):
    file = write(tmp_path / "day1.csv", MONTHS // 2, seed=1)
    still = {"training.from_run": str(run.path), "training.learning_rate": 0.0, "training.weight_decay": 0.0}
    second = lmctr.runs.train(recipe(file, 1.0), output_dir=tmp_path / "run", overrides=still)
    found = []
    for own in (run, second):
        vocabularies = TabularFeatureProcessor.from_pretrained(own.path).state.vocabularies
        days, months = (["missing", "unknown", *vocabularies[name].values.to_pylist()] for name in ("day", "month"))
        rates = own.model.trees_beside().rates
        table = rates.table.view(torch.float32)[rates.starts[2] :, 0].tolist()
        assert len(table) == len(days) * len(months)
        found.append(dict(zip(((day, month) for day in days for month in months), table)))
    before, after = found
    assert len(after) == len(before) + (DAYS + 2) * MONTHS // 2
    assert all(after[pair] == rate for pair, rate in before.items())
    assert all(after[day, month] == before[day, "unknown"] for day, month in after.keys() - before.keys())
    assert len(set(before.values())) > 100
