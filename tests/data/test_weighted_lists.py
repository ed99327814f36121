"""Weighted lists: from "red:0.5" to the weighted mean of vectors, in every family that pools by the mean."""

import numpy as np
import pytest
import torch

from lmctr import DeepFMConfig, DeepFMForCTR, DNNConfig, DNNForCTR, FATConfig, FATForCTR
from lmctr.data.batches.tabular import TabularView
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.tables.load import table_source
from lmctr.data.tables.store import TabularStore
from lmctr.runs.examples import example_rows
from lmctr.runs.folder import RunFolder
from lmctr.serving import score

FIELDS = [
    {"name": "ad", "type": "categorical"},
    {"name": "tags", "type": "multi_value", "separator": " ", "weight_separator": ":", "max_length": 3},
    {"name": "seen", "type": "sequence", "max_length": 2},
]
TABLE = {
    "ad": ["a", "b", "a", "b"],
    "tags": ["red:0.5 blue:2", "blue:1", "", "green:0 red:3 blue:1 x:y:4"],
    "seen": [["p", "q"], ["q"], [], ["p"]],
    "label": [1, 0, 1, 0],
}


@pytest.fixture
def processor():
    return TabularFeatureProcessor(FIELDS).fit(TABLE)


def test_values_and_weights_part_at_the_last_separator(processor):
    assert set(processor.state.vocabularies["tags"].values.to_pylist()) == {"red", "blue", "green", "x:y"}
    arrays = processor.transform(TABLE)
    red, blue, green = processor.lookup("tags", ["red", "blue", "green"])
    np.testing.assert_array_equal(
        arrays["sequence_ids"][:, 0], [[red, blue, 0], [blue, 0, 0], [0, 0, 0], [green, red, blue]]
    )
    weights = [[0.5, 2, 0], [1, 0, 0], [0, 0, 0], [0, 3, 1]]
    np.testing.assert_array_equal(arrays["sequence_weights"][:, 0], weights)
    np.testing.assert_array_equal(arrays["sequence_weights"][:, 1], [[1, 1, 0], [1, 0, 0], [0, 0, 0], [1, 0, 0]])


def test_lists_dicts_and_stores_give_the_same(processor):
    expected = processor.transform(TABLE)["sequence_weights"]
    rows = [{key: values[n] for key, values in TABLE.items() if key != "label"} for n in range(4)]
    lists = [{**row, "tags": row["tags"].split(" ") if row["tags"] else []} for row in rows]
    for some in (rows, lists):
        np.testing.assert_array_equal(processor(some, return_tensors="np")["sequence_weights"], expected)
        single = [processor([row], return_tensors="np")["sequence_weights"][0] for row in some]
        np.testing.assert_array_equal(single, expected)
    store = TabularStore.build(table_source(TABLE, fields=FIELDS, split="rows", fractions=(0.5, 0.25, 0.25)))
    batch = TabularView(store).batch([0, 3, -1])
    np.testing.assert_array_equal(batch["sequence_weights"][:2, 0], expected[[0, 3], 0])


@pytest.mark.parametrize(
    ("tags", "words"),
    [
        ("red", r"column 'tags'.*entries without a weight.*row 2: 'red'.*'red:0.5'"),
        ("red:", "without a weight"),
        ("red:-1", "weights of at least 0"),
        ("red:inf", "without a weight"),
        ("red:much", "without a weight"),
    ],
)
def test_entries_without_a_weight_are_named(processor, tags, words):
    with pytest.raises(ValueError, match=words):
        processor.transform({**TABLE, "tags": ["red:1", tags, "", ""]})
    with pytest.raises(ValueError, match="the entries are int64, without weights"):
        processor.transform({**TABLE, "tags": [[1], [2], [3], [4]]})


@pytest.mark.parametrize(("config", "model"), [(DNNConfig, DNNForCTR), (DeepFMConfig, DeepFMForCTR)])
def test_a_list_is_the_weighted_mean_of_its_vectors(processor, config, model):
    torch.manual_seed(0)
    one = model(
        config(**processor.model_config_values(), embedding_dim=4, hidden_units=[8], initializer_range=0.5)
    ).eval()
    batch = processor(TABLE)
    vectors = one.model.embedding(**batch)
    table, group = one.model.embedding.groups["4"].table.weight, one.model.embedding.groups["4"]
    for row in range(4):
        total, weight = torch.zeros(4), 0.0
        for place in range(3):
            own = float(batch["sequence_weights"][row, 0, place])
            if batch["sequence_ids"][row, 0, place]:
                total = total + own * table[group.sequence_starts[0] + int(batch["sequence_ids"][row, 0, place])]
                weight += own
        torch.testing.assert_close(vectors[row, 1], total / weight if weight else total)
    changed = {**batch, "sequence_weights": batch["sequence_weights"] * torch.tensor([5.0, 1.0, 1.0])}
    with torch.no_grad():
        before, after = one(**batch).logits, one(**changed).logits
        assert (before != after)[[0]].all()
        torch.testing.assert_close(before[1:3], after[1:3])
        equal = {**batch, "sequence_weights": (batch["sequence_ids"] > 0) * 7.0}
        plain = {key: value for key, value in batch.items() if key != "sequence_weights"}
        torch.testing.assert_close(one(**equal).logits, one(**plain).logits)


def test_what_cannot_weigh_says_so(processor):
    batch = processor(TABLE)
    values = processor.model_config_values()
    fat = FATForCTR(FATConfig(**values, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, projection="full"))
    with pytest.raises(ValueError, match="an attention of its own; leave weight_separator out"):
        fat(**batch)
    dnn = DNNForCTR(DNNConfig(**values, hidden_units=[4]))
    with pytest.raises(ValueError, match=r"sequence_weights: shape \(4, 2, 1\) does not fit"):
        dnn(**{**batch, "sequence_weights": batch["sequence_weights"][..., :1]})
    for value in (float("nan"), float("inf"), -1.0):
        wrong = batch["sequence_weights"].clone()
        wrong[1, 0, 2] = value
        with pytest.raises(
            ValueError, match=f"sequence_weights: field '.*' has {value:g} in row 1, which is no weight"
        ):
            dnn(**{**batch, "sequence_weights": wrong})


@pytest.mark.parametrize("shared", [["ad"], ["tags"], ["tags", "seen"], []])
def test_candidates_that_share_columns_are_scored_as_whole_rows(shared, processor):
    torch.manual_seed(0)
    size = {"embedding_dim": 4, "hidden_units": [8], "initializer_range": 0.5}
    model = DNNForCTR(DNNConfig(**processor.model_config_values(), **size)).eval()
    rows = [{name: values[n] for name, values in TABLE.items() if name != "label"} for n in range(4)]
    rows[1]["seen"] = ["p", "of another day"]
    user = {name: rows[3][name] for name in shared}
    own = [{name: value for name, value in row.items() if name not in shared} for row in rows]
    whole, found = processor([{**user, **one} for one in own]), processor.of_candidates(user, own)[0]
    assert found.keys() == whole.keys()
    assert all(torch.equal(found[name], whole[name]) for name in whole)
    with torch.no_grad():
        expected = model(**whole).logits
    assert expected.std() > 1e-3
    torch.testing.assert_close(score(model, processor, [user], own, 0), expected, atol=1e-6, rtol=1e-6)


def test_the_example_of_a_card_is_scored(processor, tmp_path):
    """Its lists have weights too, where the data had the values often enough to show some."""
    more = TabularFeatureProcessor(FIELDS).fit({name: values * 30 for name, values in TABLE.items()})
    DNNForCTR(DNNConfig(**more.model_config_values(), hidden_units=[4])).save_pretrained(tmp_path)
    more.save_pretrained(tmp_path)
    first, missing = example_rows(RunFolder(tmp_path))["rows"]
    assert len(first["tags"].split()) == 2
    assert all(entry.endswith(":1") for entry in first["tags"].split())
    assert more([first, missing])["sequence_weights"][0, 0].tolist() == [1, 1, 0]
