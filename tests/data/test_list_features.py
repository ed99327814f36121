"""Lists among the features of items and users: each value an id, the list the mean of their vectors."""

import logging

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lmctr import DINConfig, DINForCTR
from lmctr.data import InteractionLog, SequenceProcessor, SequenceView
from lmctr.data.processors.extend_sequence import extend_sequence_processor, sequence_sources

COUNT = 12


def lists_of(seed, most=5, values="abcdefg"):
    rng = np.random.default_rng(seed)
    drawn = [rng.choice([*values], rng.integers(0, most + 1)).tolist() for _ in range(COUNT)]
    return [None if rng.random() < 0.1 else own for own in drawn]


def log_of(seed, tags=None, likes=None, shown=COUNT):
    """Of `shown` of the items, each once or more."""
    rng = np.random.default_rng(seed)
    items = np.concatenate([np.arange(shown), rng.integers(0, shown, 30)])
    users = pa.table({"user_id": np.arange(3), "likes": pa.array(likes or [["x", "y"], ["y"], ["y", "x", "z"]])})
    tags = pa.array(lists_of(seed) if tags is None else tags, pa.list_(pa.string()))
    return InteractionLog.from_columns(
        np.arange(len(items)) % 3,
        items,
        np.arange(len(items)),
        rng.integers(0, 2, len(items)),
        catalogue=pa.table({"item_id": np.arange(COUNT), "tags": tags, "kind": [f"k{i % 3}" for i in range(COUNT)]}),
        users=users,
    )


def plain(tags, trained, most):
    """Vocabulary and padded ids of lists, by hand."""
    stands = {}
    for item in trained:
        for value in set(tags[item] or ()):
            stands[value] = stands.get(value, 0) + 1
    known = sorted(value for value, count in stands.items() if count > 1)
    own = [[value for value in dict.fromkeys(entry or ()) if value in known] for entry in tags]
    length = max(1, min(most, max(len(own[item]) for item in trained)))
    codes = [[known.index(value) + 2 for value in entry[:length]] or [1] for entry in own]
    return known, [entry + [0] * (length - len(entry)) for entry in codes]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10_000), most=st.integers(1, 6), shown=st.integers(3, COUNT))
def test_ids_of_lists_are_those_counted_by_hand(seed, most, shown):
    tags = lists_of(seed)
    log = log_of(seed, tags, shown=shown)
    processor = SequenceProcessor.fit(log, item_features=["tags", "kind"], user_features=["likes"], list_values=most)
    known, codes = plain(tags, range(shown), most)
    assert list(processor.features["tags"]) == known
    width = len(codes[0])
    assert processor.model_config_values()["item_feature_widths"] == [width, 1]
    found = processor.item_feature_codes(log.catalogue)
    np.testing.assert_array_equal(found[:, :width], codes)
    assert found.shape == (COUNT, width + 1)
    np.testing.assert_array_equal(processor.known_features[2:], found)
    assert list(processor.features["likes"]) == ["x", "y"]
    likes = [[2, 3], [3, 0], [3, 2]] if most > 1 else [[2], [3], [3]]
    np.testing.assert_array_equal(processor.user_feature_codes(log.users, 3), likes)


def test_requests_read_lists_as_files_do(tmp_path):
    tags = [["a", "b", "c"], ["b", "a"], None, ["c", "nobody"], [], ["a"], *[["b"]] * 6]
    log = log_of(0, tags)
    processor = SequenceProcessor.fit(log, item_features=["tags"], user_features=["likes"], list_values=3)
    assert processor.list_lengths == {"tags": 3, "likes": 2}
    processor.save_pretrained(tmp_path)
    again = SequenceProcessor.from_pretrained(tmp_path)
    assert again.fingerprint == processor.fingerprint
    assert again.list_lengths == processor.list_lengths
    codes = processor.item_feature_codes(log.catalogue)
    for item, known in enumerate(codes):
        for told in (tags[item], "|".join(tags[item] or ())):
            events = [{"item": item, "time": 3}, {"item": 99, "time": 4, "tags": told}]
            batch = again([events], [[item]], [10], users=[{"likes": "y|x"}], return_tensors="np")
            np.testing.assert_array_equal(batch["history_features"][0], [known, known])
            np.testing.assert_array_equal(batch["candidate_features"][0, 0], known)
            np.testing.assert_array_equal(batch["user_features"], [[3, 2]])


def test_without_list_values_a_list_is_one_value_as_ever():
    log = log_of(3)
    processor = SequenceProcessor.fit(log, item_features=["tags"])
    assert processor.list_lengths == {}
    assert "list_lengths" not in processor._settings()  # so that its fingerprint stays
    assert processor.item_feature_codes(log.catalogue).shape == (COUNT, 1)


def test_what_is_cut_off_is_said(caplog):
    tags = [[*"abcd"], [*"abcde"], *[["a"]] * 10]
    with caplog.at_level(logging.WARNING):
        SequenceProcessor.fit(log_of(0, tags), item_features=["tags"], list_values=3)
    assert "2 of 12 lists of 'tags' have more than 3 known values" in caplog.text
    assert "the longest has 4" in caplog.text  # "e" stands once
    with pytest.raises(ValueError, match="list_values: got 0, accepted: a whole number from 1, or None"):
        SequenceProcessor.fit(log_of(0, tags), item_features=["tags"], list_values=0)


@pytest.mark.parametrize("max_idle", [None, 1])
def test_lists_of_newer_events_keep_the_ids_of_their_values(max_idle):
    before = [["a", "b"], ["b", "a"], ["c"], ["c", "a"], *[["b"]] * 8]
    newer = [["b", "new"], ["new", "a"], None, ["d", "b", "new"], *[["b"]] * 8]
    old = SequenceProcessor.fit(log_of(0, before), item_features=["tags"], list_values=3)
    log = log_of(1, newer)
    processor, report = extend_sequence_processor(old, log, log.sample_events(), max_idle=max_idle)
    kept = [*"ab"] if max_idle else [*"abc"]
    assert list(processor.features["tags"]) == [*kept, "d", "new"]
    assert report["tags"] == {"added": 2, "met": 2, "evicted": 3 - len(kept), "size": len(kept) + 2}
    assert processor.list_lengths == old.list_lengths == {"tags": 2}
    known = [*processor.features["tags"]]
    expected = [[known.index(value) + 2 for value in (own or ())][:2] or [1] for own in newer]
    expected = [own + [0] * (2 - len(own)) for own in expected]
    np.testing.assert_array_equal(processor.item_feature_codes(log.catalogue), expected)
    np.testing.assert_array_equal(processor.known_features[2:], expected)
    codes = sequence_sources(old, processor)["item_feature.0"]
    assert [codes[place] for place in (2, 3, len(kept) + 2)] == [2, 3, -1]


def test_a_list_is_the_mean_of_its_values_vectors():
    tags = [["a", "b", "c"], ["b"], None, *[["a", "c"]] * 9]
    log = log_of(0, tags)
    processor = SequenceProcessor.fit(log, item_features=["kind", "tags"], user_features=["likes"], list_values=3)
    config = DINConfig(**processor.model_config_values(), embedding_dim=4)
    assert config.feature_sizes("item") == [5, 5, 5, 5]
    model = DINForCTR(config).double().eval()
    batch = SequenceView(log, processor).batch(log.sample_events()[:20])
    table = model.model.item_embedding.features[1].weight.detach().numpy()
    found = model.model.item_embedding(batch["history_items"], batch["history_features"])[..., 2, :].detach().numpy()
    ids = batch["history_features"][..., 1:].numpy()
    for row in range(len(ids)):
        for place, own in enumerate(ids[row]):
            own = own[own > 0]
            mean = table[own].mean(0) if len(own) else np.zeros(4)
            np.testing.assert_allclose(found[row, place], mean, atol=1e-12)
    logits = model(**batch).logits
    batch["history_features"][..., 1:] = batch["history_features"][..., 1:].flip(-1)  # whatever their order
    torch.testing.assert_close(model(**batch).logits, logits)


def test_widths_fit_the_features():
    with pytest.raises(ValueError, match=r"item_feature_widths.*for each of item_feature_vocab_sizes"):
        DINConfig(item_feature_vocab_sizes=[5, 4], item_feature_widths=[2])
    with pytest.raises(ValueError, match=r"user_feature_widths.*at least 1"):
        DINConfig(user_feature_vocab_sizes=[5], user_feature_widths=[0])
