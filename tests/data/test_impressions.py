"""Impressions: the processor of both sides, the store, batches, and bad input."""

import dataclasses
import json

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoProcessor

import lmctr
from lmctr.data import (
    ImpressionCollator,
    ImpressionDataset,
    ImpressionSource,
    ImpressionStore,
    ImpressionView,
    load_impressions,
)
from lmctr.data.impressions.source import ImpressionBlock
from lmctr.data.processors.impressions import ImpressionProcessor
from lmctr.utils.ragged import padded_grids

USER_FIELDS = (
    {"name": "region", "type": "categorical"},
    {"name": "age", "type": "numeric"},
    {"name": "clicked", "type": "sequence", "max_length": 3, "share_with": "ad.ad_id"},
    {"name": "visited", "type": "sequence", "max_length": 2},
)
AD_FIELDS = (
    {"name": "ad_id", "type": "categorical"},
    {"name": "kind", "type": "categorical", "missing": "own_id"},
    {"name": "clicks", "type": "numeric", "transform": "log1p"},
)


def block(**changes):
    """Four impressions with 2, 0, 1 and 3 ads; the last one is the test part."""
    values = {
        "users": pa.table(
            {
                "region": ["north", "south", None, "west"],
                "age": [1.0, 2.0, 3.0, 4.0],
                "clicked": [["b", "a"], [], ["c"], ["a", "zz", "b", "b"]],
                "visited": [["x"], ["y"], ["x", "y"], []],
            }
        ),
        "ads": pa.table(
            {
                "ad_id": ["a", "b", "c", "a", "new", "b"],
                "kind": ["k", None, "k", "k", "k", None],
                "clicks": [0, 1, 2, 3, 4, 5],
            }
        ),
        "counts": np.array([2, 0, 1, 3]),
        "ranks": np.array([2, 1, 1, 3, 2, 1.0]),
        "ecpm": np.array([5, 0, 0, 7, 6, 0.0]),
        "split": np.array([0, 0, 0, 2], dtype=np.int8),
        "stages": np.array([3, 1, 1, 3, 2, 1], dtype=np.int8),
        "groups": np.array([10, 11, 12, 13]),
        "weight": np.array([1.0, 1.0, 2.0, 0.5]),
    }
    return ImpressionBlock(**values | changes)


def source(*blocks, user_fields=USER_FIELDS, ad_fields=AD_FIELDS):
    blocks = blocks or (block(),)
    return ImpressionSource(lambda: iter(blocks), user_fields, ad_fields, lambda: "content")


@pytest.fixture(scope="module")
def store():
    return ImpressionStore.build(source())


def test_store_is_ragged_and_counts_what_it_leaves_out(store):
    assert len(store) == 3
    assert store.num_ads == 6
    assert store.counts.tolist() == [2, 1, 3]
    assert store.offsets.tolist() == [0, 2, 3, 6]
    assert store.groups.tolist() == [10, 12, 13]
    assert store.statistics["train"] == {"impressions": 2, "ads": 3, "empty": 1, "single": 1, "no_revenue": 1}
    assert store.statistics["test"] == {"impressions": 1, "ads": 3, "empty": 0, "single": 0, "no_revenue": 0}
    assert [rows.tolist() for _, rows in store.splits.items()] == [[0, 1], [], [2]]


def test_only_the_training_part_is_fitted_on(store):
    ids = store.processor.ad.lookup("ad_id", ["a", "b", "c", "new"])
    assert ids[3] == 1
    assert sorted(ids[:3]) == [2, 3, 4]
    assert store.statistics["ad values"]["ad_id"] == {"values": 6, "missing": 0, "unknown": 1}


def test_a_sequence_reads_the_ids_of_the_ads_field(store):
    a, b, c = store.processor.ad.lookup("ad_id", ["a", "b", "c"])
    assert store.user_sequence_ids[:, 0].tolist() == [[b, a, 0], [c, 0, 0], [1, b, b]]
    values = store.processor.model_config_values()
    assert values["user_sequence_tables"] == [1, 3]  # one categorical field of the user, two of the ad, then its own
    assert values["user_sequence_vocab_sizes"] == [4]
    assert values["ad_vocab_sizes"] == [5, 4]
    assert values["user_vocab_sizes"] == [3]
    assert values["ad_num_numeric"] == 1
    assert values["user_num_numeric"] == 1


def test_batches_are_padded_to_their_longest_impression(store):
    batch = ImpressionCollator(ImpressionView(store))([1, 0])
    assert batch["ad_mask"].tolist() == [[True, False], [True, True]]
    assert batch["labels"].tolist() == [[1.0, -100.0], [2.0, 1.0]]
    assert batch["ecpm"].tolist() == [[0.0, 0.0], [5.0, 0.0]]
    assert batch["ad_input_ids"].shape == (2, 2, 2)
    assert batch["ad_input_ids"][0, 1].tolist() == [0, 0]
    assert torch.allclose(
        batch["ad_numeric_values"][..., 0], torch.tensor([[np.log1p(2), 0], [0, np.log1p(1)]]).float()
    )
    assert batch["user_sequence_ids"].shape == (2, 2, 2)  # trimmed to the longest sequence
    assert batch["sample_weight"].tolist() == [2.0, 1.0]
    assert ImpressionCollator(ImpressionView(store))([2])["ad_mask"].shape == (1, 3)


def test_a_filler_has_no_ads(store):
    batch = ImpressionCollator(ImpressionView(store))([2, -1])
    assert not batch["ad_mask"][1].any()
    assert (batch["labels"][1] == -100).all()
    assert batch["sample_weight"].tolist() == [0.5, 0.0]


def test_dataset_knows_lengths(store):
    dataset = ImpressionDataset(ImpressionView(store), [2, 0])
    assert dataset.lengths.tolist() == [3, 2]
    assert dataset.__getitems__([1, 0]) == [0, 2]
    with pytest.raises(ValueError, match="rows must be from 0 to 2"):
        ImpressionDataset(ImpressionView(store), [3])


def test_a_model_takes_the_batches(store):
    config = lmctr.RetrievalMLPConfig(
        **store.processor.model_config_values(), embedding_dim=2, hidden_units=[4], arf_top_m=1
    )
    model = lmctr.RetrievalMLPForCTR(config).eval()
    view = ImpressionView(store)
    whole = model(**view.batch([0, 1, 2]))
    assert whole.loss.isfinite()
    for row, count in enumerate(store.counts):
        alone = model(**view.batch([row])).logits[0]
        assert torch.allclose(alone, whole.logits[row, :count], atol=1e-6)


def test_store_on_disk_is_used_again_and_checked(tmp_path):
    built = ImpressionStore.build(source(), directory=tmp_path)
    again = ImpressionStore.build(source(), directory=tmp_path)
    assert built.directory == again.directory
    memory = ImpressionStore.build(source())
    for name, values in memory._arrays().items():
        np.testing.assert_array_equal(getattr(again, name), values)
    other = ImpressionStore.build(source(user_fields=USER_FIELDS[:3]), directory=tmp_path)
    assert other.directory != built.directory
    np.save(built.directory / "ranks.npy", np.zeros(2, np.float32))
    with pytest.raises(ValueError, match=r"ranks.npy: 2 rows, expected 6; build the store again"):
        ImpressionStore.load(built.directory)
    (built.directory / "impressions.json").unlink()
    with pytest.raises(FileNotFoundError, match="no finished store"):
        ImpressionStore.load(built.directory)


def test_processor_is_saved_with_both_sides(store, tmp_path):
    processor = store.processor
    processor.save_pretrained(tmp_path)
    loaded = ImpressionProcessor.from_pretrained(tmp_path)
    assert loaded.fingerprint == processor.fingerprint
    assert loaded.model_config_values() == processor.model_config_values()
    assert loaded.user.state.vocabularies["clicked"] is loaded.ad.state.vocabularies["ad_id"]
    lmctr.RetrievalMLPConfig(**processor.model_config_values()).save_pretrained(tmp_path)
    assert type(AutoProcessor.from_pretrained(tmp_path)) is ImpressionProcessor
    assert AutoFeatureExtractor.from_pretrained(tmp_path).fingerprint == processor.fingerprint
    changed = json.loads((tmp_path / "preprocessor_config.json").read_text())
    changed["ad_fields"].append({"name": "brand", "type": "categorical"})
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(changed))
    with pytest.raises(ValueError, match="hold nothing for the field 'brand'"):
        ImpressionProcessor.from_pretrained(tmp_path)


def test_a_vocabulary_changes_the_fingerprint(store):
    ads = block().ads.set_column(0, "ad_id", pa.array(["a", "b", "d", "a", "new", "b"]))
    assert ImpressionStore.build(source(block(ads=ads))).processor.fingerprint != store.processor.fingerprint


def test_calling_the_processor_gives_what_the_store_holds(store):
    view = ImpressionView(store)
    users = block().users.to_pylist()
    ads = block().ads.to_pylist()
    inputs = store.processor(users=[users[0], users[3]], ads=[ads[:2], ads[3:]])
    expected = view.batch([0, 2])
    for key in ("user_input_ids", "user_numeric_values", "ad_input_ids", "ad_numeric_values", "ad_mask"):
        assert torch.equal(inputs[key], expected[key]), key
    assert torch.equal(
        inputs["user_sequence_ids"][..., : expected["user_sequence_ids"].shape[2]], expected["user_sequence_ids"]
    )
    assert "labels" not in inputs


def test_hashed_ids_are_shared_too():
    ads = [{"name": "ad_id", "type": "categorical", "hash_buckets": 50}, *AD_FIELDS[1:]]
    built = ImpressionStore.build(source(ad_fields=tuple(ads)))
    a, b = built.processor.ad.lookup("ad_id", ["a", "b"])
    assert built.user_sequence_ids[0, 0].tolist() == [b, a, 0]
    assert built.processor.model_config_values()["user_sequence_tables"] == [1, 3]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"ecpm": np.array([5, 0, 0, 7, np.nan, 0])},
            r"ecpm must be finite and at least 0, got nan at impression 3, ad 1",
        ),
        ({"ecpm": np.array([5, 0, -1, 7, 6, 0.0])}, r"ecpm must be .* got -1.0 at impression 2, ad 0 \(1 such"),
        ({"ranks": np.array([2, np.inf, 1, 3, 2, 1])}, r"ranks must be .* got inf at impression 0, ad 1"),
        ({"ranks": np.array([2, 1, 1, 3, 2])}, r"ranks has the shape \(5,\), expected \(6,\)"),
        ({"weight": np.array([1, -1, 1, 1.0])}, r"weight must be .* got -1.0 at impression 1"),
        ({"counts": np.array([2, 0, 1, 4])}, r"ads has 6 rows, the counts of 4 impressions need 7"),
        ({"counts": np.array([3, 0, -1, 4])}, r"counts must be whole numbers from 0"),
        ({"counts": np.array([2.0, 0, 1, 3])}, r"counts must be whole numbers from 0"),
        ({"split": np.array([0, 0, 0])}, r"split has the shape \(3,\), expected \(4,\)"),
    ],
)
def test_bad_blocks_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        block(**changes)


def test_data_without_ads_or_training_are_refused():
    empty = block(
        counts=np.zeros(4, np.int64),
        **{n: np.zeros(0) for n in ("ranks", "ecpm")},
        ads=block().ads.slice(0, 0),
        stages=None,
    )
    with pytest.raises(ValueError, match="the training part has no ads to fit on"):
        ImpressionStore.build(source(empty))
    with pytest.raises(ValueError, match="the training part has no ads to fit on"):
        ImpressionStore.build(source(block(split=np.full(4, 2, np.int8))))
    processor = ImpressionStore.build(source()).processor
    with pytest.raises(ValueError, match="no impression of any part has ads"):
        ImpressionStore.build(source(empty), processor)


@pytest.mark.parametrize(
    ("side", "field", "message"),
    [
        ("user", {"name": "clicked", "type": "sequence", "share_with": "ad.aid"}, "accepted: .* ad.ad_id, ad.kind"),
        ("user", {"name": "clicked", "type": "sequence", "share_with": "ad.clicks"}, "accepted: a categorical field"),
        ("user", {"name": "seen", "type": "categorical", "share_with": "ad.ad_id"}, "only a sequence or multi_value"),
        ("user", {"name": "seen", "type": "sequence", "time_column": "t"}, "time"),
        ("user", {"name": "city", "type": "categorical", "embedding_dim": 4}, "one width for all"),
        ("ad", {"name": "tags", "type": "multi_value"}, "accepted for ads: categorical, numeric"),
        ("ad", {"name": "tag", "type": "categorial"}, "ad_fields: .* Did you mean 'categorical'"),
    ],
)
def test_fields_that_have_no_use_are_refused(side, field, message):
    fields = {"user": [dict(USER_FIELDS[0])], "ad": [dict(entry) for entry in AD_FIELDS]}
    fields[side].append(field)
    with pytest.raises(ValueError, match=message):
        ImpressionProcessor(fields["user"], fields["ad"])


def test_bad_calls_are_named(store):
    users, ads = block().users.to_pylist(), block().ads.to_pylist()
    with pytest.raises(ValueError, match="1 lists of ads for 2 users"):
        store.processor(users=users[:2], ads=[ads])
    with pytest.raises(ValueError, match="ads of user 1: there is no ad"):
        store.processor(users=users[:2], ads=[ads, []])
    with pytest.raises(ValueError, match=r"ads of user 0: .*clicks"):
        store.processor(users=users[:1], ads=[[{"ad_id": "a", "kind": "k"}]])
    with pytest.raises(ValueError, match="expected a list with the ads of each user"):
        store.processor(users=users[:1], ads={"ad_id": ["a"]})
    with pytest.raises(ValueError, match="not fitted"):
        ImpressionProcessor(USER_FIELDS, AD_FIELDS)(users=users, ads=[ads] * 4)
    with pytest.raises(ValueError, match=r"unknown key 'user_field'"):
        ImpressionProcessor(USER_FIELDS, AD_FIELDS, user_field=())


def test_unknown_names_are_answered_with_the_nearest():
    with pytest.raises(ValueError, match="Did you mean 'synthetic_cascade'"):
        load_impressions("synthetic_cascad")
    with pytest.raises(ValueError, match="num_impressions"):
        load_impressions("synthetic_cascade", num_impression=5)


def test_padded_grids_against_a_loop():
    counts = np.array([0, 3, 1])
    flat = {"x": np.arange(8.0).reshape(4, 2), "y": np.arange(1, 5)}
    grids, mask = padded_grids(flat, counts)
    start = 0
    for row, count in enumerate(counts):
        assert mask[row].tolist() == [True] * count + [False] * (3 - count)
        np.testing.assert_array_equal(grids["x"][row, :count], flat["x"][start : start + count])
        assert not grids["x"][row, count:].any()
        assert not grids["y"][row, count:].any()
        start += count


def test_take_keeps_ads_with_their_impressions():
    kept = block().take(np.array([True, False, False, True]))
    assert kept.counts.tolist() == [2, 3]
    assert kept.ranks.tolist() == [2, 1, 3, 2, 1]
    assert kept.ads["ad_id"].to_pylist() == ["a", "b", "a", "new", "b"]
    assert kept.groups.tolist() == [10, 13]
    assert {field.name for field in dataclasses.fields(kept)} >= {"oracle", "times"}
