"""Boosted trees beside a tabular model know the values of its fields by their rates."""

import csv
import json
import logging
from collections import defaultdict

import numpy as np
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import roc_auc_score
from test_field_trees import settings

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.hub.model_card import build_card

ITEMS = 320


def write(path, first, count, seed):
    """Rows of items `first` to `first` + ITEMS, each with a taste for clicks and another for likes; a label is not always known."""
    generator = np.random.default_rng(seed)
    tastes = np.random.default_rng(7).normal(size=(2 * ITEMS, 2)) * 2
    item, kind = generator.integers(0, ITEMS, count) + first, generator.integers(0, 5, count)
    price = generator.normal(size=count).round(3)
    scores = tastes[item] + 0.5 * (kind[:, None] == [1, 2]) * price[:, None] + generator.logistic(size=(count, 2))
    lines = ["item,kind,price,click,like"]
    for row in range(count):
        like = "" if row % 7 == 3 else int(scores[row, 1] > 0)
        name = f"rare {seed} {row}" if row % 50 == 1 else f"i{item[row]}"  # unknown, and never clicked
        scores[row] -= 20 * (row % 50 == 1)
        lines.append(f"{name},k{kind[row]},{price[row]},{int(scores[row, 0] > 0)},{like}")
    path.write_text("\n".join(lines) + "\n")
    return path


def recipe_of(file, labels, share=1.0):
    fields = [{"name": "item", "type": "categorical", "min_count": 2}, {"name": "kind", "type": "categorical"}]
    fields.append({"name": "price", "type": "numeric", "transform": "raw"})
    options = {"fields": fields} | ({"label": labels[0]} if len(labels) == 1 else {})
    return {
        "data": {
            "name": str(file),
            "options": options,
            "labels": labels if len(labels) > 1 else None,
            "split": "rows",
            "baselines": False,
        },
        "model": {"family": "dnn", "embedding_dim": 2, "hidden_units": [4]},
        "training": {"epochs": 1, "boosting_share": share, "use_cpu": True, "seed": 3},
    }


def plain_rates(ids, labels, fold, size):
    """By the letter: of every value, and of every row from the rows of the other folds."""
    known = [row for row in range(len(ids)) if labels[row] >= 0]
    prior = sum(labels[row] for row in known) / len(known)

    def log_odds(sums):
        rate = (sums[0] + 5 * prior) / (sums[1] + 5)
        return np.log(rate / (1 - rate))

    whole, without = (
        defaultdict(lambda: [0.0, 0.0]),
        {other: defaultdict(lambda: [0.0, 0.0]) for other in range(5)},
    )
    for row in known:
        for sums in (whole, *(own for other, own in without.items() if other != fold[row])):
            sums[ids[row]][0] += labels[row]
            sums[ids[row]][1] += 1
    rows = [log_odds(without[fold[row]][ids[row]]) for row in range(len(ids))]
    return np.array([log_odds(whole[value]) for value in range(size)]), np.array(rows)


def lines(file):
    with file.open() as rows:
        return [{**row, "price": float(row["price"])} for row in csv.DictReader(rows)]


def columns_of(run, rows):
    encoded = TabularFeatureProcessor.from_pretrained(run.path)(rows, return_tensors="np")
    return encoded["numeric_values"], encoded["input_ids"]


def with_rates(numbers, ids, rates):
    return np.column_stack([numbers, ids, rates.astype(np.float32)]).astype(np.float32)


@pytest.mark.parametrize(("labels", "most"), [(["click"], None), (["click", "like"], None), (["click"], 1500)])
def test_the_trees_read_rates_that_leave_the_row_out(labels, most, tmp_path, monkeypatch):
    if most is not None:  # the trees are fitted on some rows, the rates count all of them
        monkeypatch.setattr("lmctr.runs.inputs.tabular.MAX_FITTED_EVENTS", most)
    file = write(tmp_path / "rows.csv", 0, 5000, seed=0)
    run = lmctr.runs.train(recipe_of(file, labels), output_dir=tmp_path / "run")
    assert run.model.config.boosted_trees["rated_fields"] == [0, 1]
    train = 4000
    labels = np.array([[-100 if line[name] == "" else int(line[name]) for name in labels] for line in lines(file)])
    numbers, ids = columns_of(run, lines(file))
    fold = np.random.default_rng([0, 77]).integers(0, 5, train)
    fitted = np.arange(train)
    if most is not None:
        fitted = np.sort(np.random.default_rng(0).choice(train, most, replace=False))
    expected = []
    for own in labels.T:
        whole, without = zip(
            *(
                plain_rates(ids[:train, field], own[:train], fold, run.model.config.vocab_sizes[field])
                for field in (0, 1)
            )
        )
        rows, halves = fitted[own[fitted] >= 0], []
        for number in range(6):
            rated = 1 + number % 2  # the field of many values, then both, three times
            trees = HistGradientBoostingClassifier(**settings(len(rows), 3 + 1000 * number))
            trees.fit(with_rates(numbers[:train], ids[:train], np.stack(without, 1)[:, :rated])[rows], own[rows])
            rates = np.stack([whole[field][ids[:, field]] for field in range(rated)], 1)
            halves.append(trees.decision_function(with_rates(numbers, ids, rates)[train:]))
        expected.append(np.mean(halves, 0))
    found = run.predict(lines(file)[train:])
    np.testing.assert_allclose(found.reshape(1000, -1), np.stack(expected, 1), atol=1e-4)
    for place, own in enumerate(labels[train:].T):  # ids alone: about 0.6
        assert roc_auc_score(own[own >= 0], np.stack(expected, 1)[own >= 0, place]) > 0.78


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Half trees, half network. Read it only."""
    folder = tmp_path_factory.mktemp("rates")
    recipe = recipe_of(write(folder / "rows.csv", 0, 5000, seed=0), ["click"], share=0.5)
    return lmctr.runs.train(recipe, output_dir=folder / "run")


@pytest.mark.usefixtures("one_registry_of_operators")
def test_saved_cast_shown_and_exported(run, tmp_path, caplog, recwarn):
    again = lmctr.AutoModelForCTR.from_pretrained(run.path)
    rates, before = (own.trees_beside().rates.table for own in (again, run.model))
    assert torch.equal(rates, before)
    assert torch.equal(again.half().trees_beside().rates.table, before)
    assert "on the numbers and ids of the fields and the rates of all categorical ones; their share" in str(
        build_card(run.path)
    )
    caplog.clear()
    recwarn.clear()
    assert main(["export", str(run.path), "--format", "onnx", "--output", str(tmp_path), "--quiet"]) == 0
    logged = [entry.getMessage() for entry in caplog.records if entry.levelno >= logging.WARNING]
    assert logged + [str(entry.message) for entry in recwarn] == []
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert parity["largest_difference"] < 1e-4 < parity["largest_logit"]


def test_bins_of_numbers_that_are_read_too_have_no_rates_in_few_rows(tmp_path, monkeypatch):
    recipe = recipe_of(write(tmp_path / "rows.csv", 0, 3000, seed=0), ["click"])
    bins = {"type": "numeric", "transform": "quantile", "num_bins": 8, "column": "price"}
    recipe["data"]["options"]["fields"][1:1] = [{"name": "price_bin", **bins}]
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert run.model.config.field_names[:3] == ["item", "price_bin", "kind"]
    assert run.model.config.boosted_trees["rated_fields"] == [0, 2]
    assert "and the rates of item, kind; their share" in str(build_card(run.path))
    again = lmctr.AutoModelForCTR.from_pretrained(run.path)
    numbers, ids = (torch.from_numpy(own) for own in columns_of(run, lines(tmp_path / "rows.csv")[:50]))
    inputs = {"numeric_values": numbers, "input_ids": ids}
    np.testing.assert_allclose(again.eval()(**inputs).logits.detach(), run.predict(lines(tmp_path / "rows.csv")[:50]))
    monkeypatch.setattr("lmctr.runs.inputs.tabular.MANY_ROWS", 2400)
    many = lmctr.runs.train(recipe, output_dir=tmp_path / "many")
    assert many.model.config.boosted_trees["rated_fields"] == [0, 1, 2]
    monkeypatch.undo()
    fields = recipe["data"]["options"]["fields"]
    fields[2:] = fields[2:3]  # the bins alone
    alone = lmctr.runs.train(recipe, output_dir=tmp_path / "alone")
    assert alone.model.config.boosted_trees["rated_fields"] == [0, 1, 2]


def test_rates_go_with_the_values_to_the_next_day(run, tmp_path):
    file = write(tmp_path / "day1.csv", ITEMS // 2, 5000, seed=1)
    still = {"training.from_run": str(run.path), "training.learning_rate": 0.0, "training.weight_decay": 0.0}
    second = lmctr.runs.train(recipe_of(file, ["click"], share=0.5), output_dir=tmp_path / "run", overrides=still)
    found = []
    for own in (run, second):
        values = TabularFeatureProcessor.from_pretrained(own.path).state.vocabularies["item"].values.to_pylist()
        table = own.model.trees_beside().rates.table.view(torch.float32)[:, 0].tolist()
        assert len(table) == len(values) + 2 + 5 + 2  # of the items, then of the kinds
        found.append(dict(zip(["missing", "unknown", *values], table)))
    before, after = found
    assert len(after) == len(before) + ITEMS // 2
    assert all(after[value] == rate for value, rate in before.items())
    assert {after[value] for value in after.keys() - before.keys()} == {before["unknown"]}
    assert len(set(before.values())) > 100
    assert before["unknown"] < min(before["missing"], -2)


def test_words_for_fields_that_are_none():
    trees = {"trees": 2, "leaves": 4, "share": 0.5, "rated_fields": [1]}
    lmctr.DNNConfig(vocab_sizes=[3, 300], boosted_trees=trees)
    with pytest.raises(ValueError, match=r"rated_fields \(places of categorical fields, of two, or of lists\)"):
        lmctr.DNNConfig(vocab_sizes=[300], boosted_trees=trees)
    lmctr.DNNConfig(vocab_sizes=[3, 300], boosted_trees={**trees, "rated_fields": [1, [0, 1]]})
    for pair in ([0, 2], [0], [0, 1, 1], [0, -1]):
        with pytest.raises(ValueError, match="of two, or of lists"):
            lmctr.DNNConfig(vocab_sizes=[3, 300], boosted_trees={**trees, "rated_fields": [pair]})
    lists = {"num_sequences": 1, "sequence_tables": [1]}
    lmctr.DNNConfig(vocab_sizes=[3, 300], **lists, boosted_trees={**trees, "rated_fields": [2]})
    for wrong in (3, [0, 2]):  # no list, and a pair with one
        with pytest.raises(ValueError, match="of two, or of lists"):
            lmctr.DNNConfig(vocab_sizes=[3, 300], **lists, boosted_trees={**trees, "rated_fields": [wrong]})
