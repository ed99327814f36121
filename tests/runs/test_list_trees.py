"""Boosted trees beside a tabular model know lists by the mean rate of their values."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from scipy.special import logit

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.evaluation.rates import value_rates
from lmctr.hub.model_card import build_card

TAGS = [f"t{number}" for number in range(12)]
FIELDS = [
    {"name": "shop", "type": "categorical"},
    {"name": "price", "type": "numeric", "transform": "standardize"},
    {"name": "tags", "type": "multi_value", "separator": "|", "max_length": 6},
    {"name": "seen", "type": "sequence", "separator": " ", "share_with": "shop", "max_length": 5},
]


def table(count, seed=0, tags=TAGS):
    draw = np.random.default_rng(seed)
    lists = [list(draw.choice(tags, draw.integers(0, 6), replace=False)) for _ in range(count)]
    shop, price = draw.integers(0, 8, count), draw.normal(size=count)
    worth = np.array([sum(int(tag[1:]) % 3 - 1 for tag in own) for own in lists])
    label = (1.5 * worth + price + draw.logistic(size=count) > 0).astype(int)
    seen = [" ".join(f"s{number}" for number in draw.integers(0, 8, draw.integers(0, 5))) for _ in range(count)]
    shops = [f"s{number}" for number in shop]
    return pd.DataFrame(
        {
            "shop": shops,
            "price": price.round(3),
            "tags": ["|".join(own) for own in lists],
            "seen": seen,
            "label": label,
        }
    )


def recipe(folder, frame, fields=FIELDS, **more):
    folder.mkdir(exist_ok=True)
    frame.to_csv(folder / "rows.csv", index=False)
    schema = {"name": "rows", "files": "rows.csv", "label": "label", "fields": fields}
    (folder / "schema.yaml").write_text(yaml.safe_dump(schema))
    training = {"epochs": 1, "per_device_train_batch_size": 128, "boosting_share": 0.5, "seed": 0}
    return {
        "data": {"name": str(folder / "schema.yaml"), "split": "random", "fractions": [0.8, 0.1, 0.1]},
        "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [8]},
        "training": training | more,
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Read it only."""
    folder = tmp_path_factory.mktemp("lists")
    return lmctr.runs.train(recipe(folder / "data", table(900)), output_dir=folder / "run")


def test_the_rate_of_a_list_is_the_mean_of_its_values():
    """Of rows to score those of all training rows, of a training row those of the folds that it is not in, in plain loops."""
    draw = np.random.default_rng(1)
    count, size, folds, strength = 300, 7, 5, 5.0
    ids = draw.integers(1, size, (count, 4)) * (draw.random((count, 4)) < 0.7)
    labels, weight = draw.integers(-1, 2, count).astype(np.float32), draw.uniform(0.5, 2.0, count)
    fold, fitted = np.random.default_rng([0, 77]).integers(0, folds, count), np.arange(0, count, 3)
    known = labels >= 0
    prior = np.average(labels[known], weights=weight[known])

    def odds(value, rows):
        held = [(labels[row], weight[row]) for row in rows if known[row] for own in ids[row] if own == value]
        positives, total = (sum(column) for column in zip(*((one * by, by) for one, by in held), strict=True))
        return logit((positives + strength * prior) / (total + strength))

    whole, own = value_rates([ids], [size], labels, weight, fitted)
    every = [odds(value, range(count)) for value in range(1, size)]
    np.testing.assert_allclose(whole[:, 0], [logit(prior), *every], rtol=1e-5)
    for place, row in enumerate(fitted[:40]):
        others = np.flatnonzero(fold != fold[row])
        values = [odds(value, others) for value in ids[row] if value]
        np.testing.assert_allclose(own[place, 0, 0], np.mean(values) if values else logit(prior), rtol=1e-5)


def test_a_model_reads_lists_by_their_rates(run):
    """Also where a row has none, in whatever place of the list its values stand, and after it was saved."""
    assert run.model.config.boosted_trees["rated_fields"][-2:] == [1, 2]  # behind the one categorical field
    rates = run.model.trees_beside().rates
    rows = [
        {"shop": "s1", "price": 0.0, "tags": "t1|t5", "seen": "s3"},
        {"shop": "s1", "price": 0.0, "tags": "", "seen": ""},
    ]
    batch = run.processor(rows, return_tensors="pt")
    given = batch["input_ids"], batch["sequence_ids"]
    values = rates.table.view(torch.float32)[rates.starts[-2] :, 0]
    tags = batch["sequence_ids"][0, 0]
    found = rates(*given)
    mean = values[tags[tags > 0].long()].mean()
    torch.testing.assert_close(found[0, -2], mean)
    assert values[tags[tags > 0].long()].std() > 0.05
    torch.testing.assert_close(found[1, -2], values[0])
    torch.testing.assert_close(rates(given[0], given[1].flip(2)), found, rtol=0, atol=0)
    stored = lmctr.AutoModelForCTR.from_pretrained(run.path).eval()
    with torch.no_grad():
        torch.testing.assert_close(stored(**batch).logits, torch.from_numpy(run.predict(rows)))


def test_lists_tell_the_trees_what_the_other_fields_do_not(run, tmp_path):
    """Trees that read lists are better than ones that cannot."""
    without = lmctr.runs.train(
        recipe(tmp_path / "data", table(900), [*FIELDS[:2], {**FIELDS[3]}], boosting_share=1.0),
        output_dir=tmp_path / "without",
    )
    lists = lmctr.runs.train(recipe(tmp_path / "data", table(900), boosting_share=1.0), output_dir=tmp_path / "with")
    aucs = [own.metrics["split metrics"]["test"]["auc"] for own in (without, lists)]
    assert aucs[1] > aucs[0] + 0.1


def test_lists_alone_are_enough(tmp_path):
    frame, fields = table(600), [FIELDS[2]]
    run = lmctr.runs.train(recipe(tmp_path / "data", frame, fields, boosting_share=1.0), output_dir=tmp_path / "run")
    assert run.model.config.boosted_trees["rated_fields"] == [0]
    found = run.predict([{"tags": "t2|t5"}, {"tags": "t0|t3"}, {"tags": ""}])  # worth 2, -2 and 0
    assert found[0] > found[2] > found[1]


@pytest.mark.usefixtures("one_registry_of_operators")
def test_a_graph_and_a_card_know_the_lists(run, tmp_path):
    assert main(["export", str(run.path), "--format", "onnx", "--output", str(tmp_path)]) == 0
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert parity["largest_difference"] < 1e-4 < parity["largest_logit"]
    assert "and the rates of all categorical ones, tags, seen;" in str(build_card(run.path))


def test_rates_follow_values_of_lists_that_move(run, tmp_path):
    """A new value has the rate of unknown ones, known ones what they had."""
    newer = table(700, seed=5, tags=[*TAGS[::-1], "t99"])
    second = lmctr.runs.train(
        recipe(tmp_path / "data", newer, epochs=1),
        output_dir=tmp_path / "day1",
        overrides={"training.from_run": str(run.path)},
    )
    before, after = (TabularFeatureProcessor.from_pretrained(own.path) for own in (run, second))
    assert len(after.state.vocabularies["tags"]) == len(before.state.vocabularies["tags"]) + 1
    rows = [
        {"shop": "s1", "price": 0.1, "tags": "|".join(TAGS[start : start + 3]), "seen": "s3"} for start in range(9)
    ]
    found = []
    for own, processor in ((run, before), (second, after)):
        batch = processor([*rows, {**rows[0], "tags": "t99"}], return_tensors="pt")
        found.append(own.model.trees_beside().rates(batch["input_ids"], batch["sequence_ids"]))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert found[0][:, -2].std() > 0.05
