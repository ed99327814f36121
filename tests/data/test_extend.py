"""Living vocabularies: what becomes of ids when newer rows come, value by value."""

import numpy as np
import pytest

from lmctr.data.features.extend import id_sources
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.registry import load_tabular

FIELDS = [
    {"name": "ad", "type": "categorical", "missing": "own_id"},
    {"name": "shown", "type": "categorical", "share_with": "ad", "missing": "own_id"},
    {"name": "tags", "type": "multi_value", "max_length": 3},
    {"name": "clicked", "type": "sequence", "share_with": "ad", "max_length": 3},
    {"name": "city", "type": "categorical", "hash_buckets": 5},
    {"name": "price", "type": "numeric", "transform": "quantile", "num_bins": 4},
    {"name": "age", "type": "numeric", "transform": "standardize"},
]


def day(ads, **columns):
    count = len(ads)
    rows = {
        "ad": ads,
        "shown": [ads[0]] * count,
        "tags": [["x"]] * count,
        "clicked": [[ads[0]], *[[]] * (count - 1)],
        "city": ["c"] * count,
        "price": list(range(count)),
        "age": [float(n) for n in range(count)],
        "label": [n % 2 for n in range(count)],
    }
    return rows | columns


def fitted(ads, **limits):
    fields = [{**field, **(limits if field["name"] == "ad" else {})} for field in FIELDS]
    return TabularFeatureProcessor(fields).fit(day(ads))


def values(processor, name="ad"):
    return processor.state.vocabularies[name].values.to_pylist()


def test_new_values_get_ids_behind_the_known_ones():
    processor = fitted(["a", "a", "b", "b", "c"])
    before = processor.transform(day(["a", "b", "c", "d"]))
    known = values(processor)
    report = processor.extend(day(["d", "e", "e", "a"], tags=[["y"], ["y", "x"], [], []]))
    assert values(processor) == [*known, *("d", "e")[:: 1 if values(processor)[3] == "d" else -1]]
    assert report["ad"] == {"added": 2, "met": 1, "evicted": 0, "size": 5}
    assert report["tags"] == {"added": 1, "met": 1, "evicted": 0, "size": 2}
    after = processor.transform(day(["a", "b", "c", "d"]))
    np.testing.assert_array_equal(after["input_ids"][:3], before["input_ids"][:3])
    assert before["input_ids"][3, 0] == 1
    assert after["input_ids"][3, 0] > 5
    assert processor.statistics["num_rows"] == 9
    assert processor.statistics["extensions"] == 1
    np.testing.assert_array_equal(after["numeric_values"], before["numeric_values"])  # means stay what they were


def test_fields_that_share_a_vocabulary_add_to_it():
    processor = fitted(["a", "b", "b"])
    processor.extend(day(["a", "b"], shown=["s", "s"], clicked=[["t"], []]))
    assert {"s", "t"} <= set(values(processor))


def test_rare_new_values_wait():
    processor = fitted(["a", "a", "b", "b"], min_count=2)
    report = processor.extend(day(["d", "e", "e"], shown=["a"] * 3, clicked=[["a"], [], []]))
    assert set(values(processor)) == {"a", "b", "e"}
    assert report["ad"]["added"] == 1


def test_values_that_stay_away_lose_their_ids():
    processor = fitted(["a", "a", "b", "b", "c"], max_idle=2)
    first = processor.extend(day(["a", "d"]))
    assert first["ad"]["evicted"] == 0
    second = processor.extend(day(["a", "b"]))  # b came back in time, c is absent for the second time, d for the first
    assert second["ad"]["evicted"] == 1
    assert set(values(processor)) == {"a", "b", "d"}
    found = processor.transform(day(["c", "b"]))
    assert found["input_ids"][0, 0] == 1
    assert found["input_ids"][1, 0] > 2


def test_the_longest_absent_go_first_then_the_rarest():
    processor = fitted(["a", "a", "a", "b", "b", "c"], max_size=3)
    processor.extend(day(["d", "d", "b", "c"], shown=["b"] * 4))  # a is absent, though the most frequent
    assert set(values(processor)) == {"b", "c", "d"}
    processor.extend(day(["e", "e", "e", "e", "d", "c", "b"], shown=["b"] * 7))
    assert len(values(processor)) == 3
    assert "c" not in values(processor)  # all are there; c was seen least


def test_saved_and_loaded_it_goes_on_alike(tmp_path):
    processor = fitted(["a", "a", "b", "b", "c"], max_idle=2)
    processor.extend(day(["a", "d"]))
    processor.save_pretrained(tmp_path)
    loaded = TabularFeatureProcessor.from_pretrained(tmp_path)
    assert loaded.fingerprint == processor.fingerprint
    for one in (processor, loaded):
        one.extend(day(["a", "e"]))
    assert values(loaded) == values(processor)
    assert loaded.fingerprint == processor.fingerprint


def test_each_id_knows_what_it_was():
    processor = fitted(["a", "a", "b", "b", "c"], max_idle=1)
    later = TabularFeatureProcessor(processor._settings()["fields"]).continued(processor)
    later.extend(day(["c", "d", "d"], shown=["c"] * 3, tags=[["y"], ["y"], []]))
    sources = id_sources(processor, later)
    config = later.model_config_values()
    assert [len(own) for own in sources] == config["vocab_sizes"] + config["sequence_vocab_sizes"]
    (old,) = processor.lookup("ad", ["c"])
    assert sources[0].tolist() == [0, 1, 2, *(old if value == "c" else -1 for value in values(later))]
    assert sources[1].tolist() == sources[0].tolist()  # a table of its own, by the shared vocabulary
    assert sources[2].tolist() == list(range(7))  # hashed: as ever
    assert sources[-1].tolist() == [0, 1, 2, -1]  # tags: y is new


def test_fields_must_be_those_of_before():
    processor = fitted(["a", "b"])
    other = [*FIELDS[:-1], {"name": "age", "type": "numeric"}]
    with pytest.raises(ValueError, match=r"field 'age' is .* here and .*standardize.* in the earlier processor"):
        TabularFeatureProcessor(other).continued(processor)
    with pytest.raises(ValueError, match="labels: label, order here, label in the earlier"):
        TabularFeatureProcessor(FIELDS, extra_labels=["order"]).continued(processor)
    with pytest.raises(ValueError, match="not fitted"):
        TabularFeatureProcessor(FIELDS).extend(day(["a"]))


def test_max_idle_belongs_to_a_vocabulary():
    with pytest.raises(ValueError, match="hash_buckets takes the place of a vocabulary"):
        TabularFeatureProcessor([{"name": "a", "type": "categorical", "hash_buckets": 4, "max_idle": 2}])


def test_generated_values_come_and_go():
    options = {
        "num_rows": 4000,
        "num_categorical": 3,
        "num_numeric": 1,
        "num_pairs": 1,
        "vocab_size": 200,
        "drift": 0.3,
    }
    days = [load_tabular("synthetic_table", **options, day=number) for number in range(3)]
    tables = [[row for rows in source.rows() for row in rows.table.to_pylist()] for source in days]
    seen = [{row["C3"] for row in table} for table in tables]
    kept = [len(seen[0] & later) / len(seen[0]) for later in seen[1:]]
    assert 0.5 < kept[0] < 0.9
    assert kept[1] < kept[0]
    rate = [np.mean([row["label"] for row in table]) for table in tables]
    assert max(rate) - min(rate) < 0.15
    still = [load_tabular("synthetic_table", **{**options, "drift": 0.0}, day=number) for number in range(2)]
    first, second = ([row for rows in source.rows() for row in rows.table.to_pylist()] for source in still)
    assert first != second
    assert max(row["C3"] for row in second) < max(seen[0]) + 1 + 200
