"""Declared crosses of two fields: ids of pairs of values, the same from every kind of source."""

import numpy as np
import pandas as pd
import pytest

from lmctr.data.features.processor import TabularFeatureProcessor

FIELDS = [
    {"name": "ad", "type": "categorical"},
    {"name": "site", "type": "categorical"},
    {"name": "hour", "type": "categorical", "column": "time", "extract": "hour"},
    {"name": "ad_site", "type": "categorical", "cross": ["ad", "site"]},
    {"name": "ad_hour", "type": "categorical", "cross": ["ad", "hour"], "missing": "own_id"},
    {"name": "hashed", "type": "categorical", "cross": ["site", "ad"], "hash_buckets": 50},
]
TABLE = {
    "ad": [1, 1, 2, 2, 1, None],
    "site": ["x", "y", "x", "x", "x", "y"],
    "time": [0, 3600, 0, 0, 0, 0],
    "label": [1, 0, 1, 0, 1, 0],
}


def fitted(table=TABLE, fields=FIELDS):
    return TabularFeatureProcessor(fields).fit(table)


def ids(processor, table, name):
    return processor.transform(table)["input_ids"][:, processor.field_names.index(name)].tolist()


def test_pairs_have_ids_by_how_often_they_occur():
    processor = fitted()
    found = ids(processor, TABLE, "ad_site")
    pairs = list(zip(TABLE["ad"], TABLE["site"]))
    assert found[0] == found[4]
    assert found[2] == found[3]
    assert found[5] == 1  # a part is missing
    assert {found[0], found[2]} == {2, 3}  # twice each, the rest once
    assert found[1] == 4
    assert len(set(zip(pairs[:5], found))) == 3
    assert processor.vocab_size("ad_site") == 5
    assert ids(processor, TABLE, "ad_hour")[5] == 2
    unseen = {key: [value] for key, value in {"ad": 2, "site": "y", "time": 0, "label": 1}.items()}
    assert ids(processor, unseen, "ad_site") == [1]
    assert processor.oov_counts["ad_site"] == {"values": 1, "missing": 0, "unknown": 1}
    assert processor.oov_counts["ad"]["unknown"] == 0


def test_hashed_pairs_need_no_fit_and_know_their_order():
    processor = fitted()
    found = ids(processor, TABLE, "hashed")
    assert found[0] == found[4] != found[1]
    assert found[5] == 1
    assert all(2 <= place < 52 for place in found[:5])
    turned = fitted(fields=[*FIELDS[:-1], {**FIELDS[-1], "cross": ["ad", "site"]}])
    assert ids(turned, TABLE, "hashed") != found


def test_numbers_and_texts_of_one_value_make_one_pair(tmp_path):
    """A CSV with texts, a frame with floats, dicts of numbers: the pairs' ids are equal."""
    frame = pd.DataFrame(TABLE)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    processor = fitted(tmp_path / "rows.csv")
    expected = processor.transform(frame)["input_ids"]
    assert (expected[:5, 3:] > 1).all()
    np.testing.assert_array_equal(processor.transform(tmp_path / "rows.csv")["input_ids"], expected)
    rows = [{"ad": ad, "site": site, "time": time} for ad, site, time in zip(*list(TABLE.values())[:3])]
    np.testing.assert_array_equal(processor(rows, return_tensors="np")["input_ids"], expected)
    single = [processor([row], return_tensors="np")["input_ids"][0] for row in rows]
    np.testing.assert_array_equal(single, expected)


def test_saved_loaded_and_extended(tmp_path):
    processor = fitted()
    processor.save_pretrained(tmp_path)
    loaded = TabularFeatureProcessor.from_pretrained(tmp_path)
    assert loaded.fingerprint == processor.fingerprint
    np.testing.assert_array_equal(loaded.transform(TABLE)["input_ids"], processor.transform(TABLE)["input_ids"])
    loaded.extend({"ad": [3, 3], "site": ["x", "x"], "time": [0, 0], "label": [0, 1]})
    assert ids(loaded, {"ad": [3, 1], "site": ["x", "x"], "time": [0, 0], "label": [0, 1]}, "ad_site")[0] == 5


def test_min_count_is_of_pairs():
    fields = [*FIELDS[:3], {**FIELDS[3], "min_count": 2}]
    assert fitted(fields=fields).vocab_size("ad_site") == 4


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ({"cross": ["ad"]}, "list of two different fields"),
        ({"cross": ["ad", "ad"]}, "list of two different fields"),
        ({"cross": ["ad", "sites"]}, "cross names 'sites', which is no field.*site"),
        ({"cross": ["ad", "price"]}, "'price', which is no categorical field"),
        ({"cross": ["ad", "site"], "column": "c"}, "column belongs to a field with a column of its own"),
        ({"cross": ["ad", "site"], "value_type": "text"}, "value_type belongs"),
    ],
)
def test_wrong_crosses(field, words):
    with pytest.raises(ValueError, match=words):
        TabularFeatureProcessor(
            [*FIELDS[:3], {"name": "price", "type": "numeric"}, {"name": "c", "type": "categorical", **field}]
        )
