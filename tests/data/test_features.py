"""The feature processor against a plain reference written here, and its saving, loading and serving."""

import copy
import math
import shutil
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
from transformers import AutoFeatureExtractor, AutoProcessor

import lmctr
from lmctr.data import TabularFeatureProcessor
from lmctr.data.features.fields import override_fields
from lmctr.data.features.files import VOCABULARY_FILE
from lmctr.data.features.vocabulary import CountAccumulator, Vocabulary, _HashIndex, hash_string, hash_strings
from lmctr.data.tables.load import table_source

FIELDS = [
    {"name": "ad", "type": "categorical", "min_count": 2},
    {"name": "site", "type": "categorical", "missing": "own_id"},
    {"name": "price", "type": "numeric", "transform": "log1p"},
    {"name": "age", "type": "numeric", "transform": "standardize"},
    {"name": "depth", "type": "numeric", "transform": "quantile", "num_bins": 5},
    {"name": "raw", "type": "numeric", "fill_value": -1.0},
    {"name": "seen", "type": "sequence", "separator": "|", "max_length": 3, "share_with": "ad"},
    {"name": "tags", "type": "multi_value", "max_length": 2},
]


def make_rows(count=500, seed=0):
    rng = np.random.default_rng(seed)
    rows = []
    for _ in range(count):
        rows.append(
            {
                "label": int(rng.random() < 0.3),
                "ad": f"a{min(int(rng.pareto(1) * 3), 60)}" if rng.random() > 0.05 else None,
                "site": int(rng.integers(0, 9)) if rng.random() > 0.1 else None,
                "price": float(rng.normal() * 5) if rng.random() > 0.1 else None,
                "age": float(rng.integers(18, 60)) if rng.random() > 0.2 else None,
                "depth": float(rng.integers(0, 40)) if rng.random() > 0.1 else None,
                "raw": float(rng.normal()) if rng.random() > 0.1 else None,
                "seen": "|".join(f"a{v}" for v in rng.integers(0, 70, rng.integers(0, 6))),
                "tags": [f"t{v}" for v in rng.integers(0, 4, rng.integers(0, 4))],
            }
        )
    return rows


def columns_of(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


def vocabulary(counter, first, min_count=1):
    kept = [value for value, count in counter.items() if count >= min_count]
    kept.sort(key=lambda value: (-counter[value], value))
    return {value: first + place for place, value in enumerate(kept)}


def reference(train, rows):
    """What the processor should give, by loops over rows and fields."""
    ads = Counter(row["ad"] for row in train if row["ad"] is not None)
    ads.update(value for row in train for value in row["seen"].split("|") if value)
    ad_ids = vocabulary(ads, 2, min_count=2)
    site_ids = vocabulary(Counter(str(row["site"]) for row in train if row["site"] is not None), 3)
    tag_ids = vocabulary(Counter(tag for row in train for tag in row["tags"]), 2)
    ages = [row["age"] for row in train if row["age"] is not None]
    mean = sum(ages) / len(ages)
    deviation = math.sqrt(sum((age - mean) ** 2 for age in ages) / len(ages))
    depths = sorted(row["depth"] for row in train if row["depth"] is not None)
    bounds = sorted({depths[math.ceil(len(depths) * k / 5) - 1] for k in range(1, 5)})
    bounds = [bound for bound in bounds if bound > depths[0]]
    ids, numbers, lists = [], [], []
    for row in rows:
        depth = 1 if row["depth"] is None else 2 + sum(row["depth"] >= bound for bound in bounds)
        site = 2 if row["site"] is None else site_ids.get(str(row["site"]), 1)
        ids.append([ad_ids.get(row["ad"], 1), site, depth])
        price = row["price"] or 0.0
        age = mean if row["age"] is None else row["age"]
        raw = -1.0 if row["raw"] is None else row["raw"]
        numbers.append([math.copysign(math.log1p(abs(price)), price), (age - mean) / deviation, raw])
        seen = [ad_ids.get(value, 1) for value in row["seen"].split("|") if value][-3:]
        tags = [tag_ids.get(tag, 1) for tag in row["tags"]][:2]
        lists.append([values + [0] * (3 - len(values)) for values in (seen, tags)])
    return np.array(ids), np.array(numbers), np.array(lists)


@pytest.fixture(scope="module")
def fitted():
    return TabularFeatureProcessor(FIELDS).fit(columns_of(make_rows()))


def test_transform_agrees_with_a_plain_reference(fitted):
    train, rows = make_rows(), make_rows(200, seed=1)
    rows[0] |= {"ad": "never seen", "site": 99, "seen": "x|a1|y|a2"}
    ids, numbers, lists = reference(train, rows)
    arrays = fitted.transform(columns_of(rows))
    assert arrays["input_ids"].dtype == np.int32
    assert arrays["numeric_values"].dtype == np.float32
    np.testing.assert_array_equal(arrays["input_ids"], ids)
    np.testing.assert_allclose(arrays["numeric_values"], numbers, atol=1e-6)
    np.testing.assert_array_equal(arrays["sequence_ids"], lists)
    np.testing.assert_array_equal(arrays["labels"], [row["label"] for row in rows])
    assert fitted.field_names == ["ad", "site", "depth", "price", "age", "raw", "seen", "tags"]
    missing = sum(row["ad"] is None for row in rows)
    unknown = int((ids[:, 0] == 1).sum()) - missing
    assert unknown >= 1
    assert fitted.oov_counts["ad"] == {"values": 200, "missing": missing, "unknown": unknown}
    assert fitted.oov_counts["seen"]["unknown"] >= 2


def test_the_result_does_not_depend_on_the_blocks(fitted):
    table = pa.Table.from_pylist(make_rows())
    again = TabularFeatureProcessor(FIELDS).fit(table.to_batches(max_chunksize=7))
    assert again.fingerprint == fitted.fingerprint
    assert again.statistics == fitted.statistics
    assert fitted.statistics["num_rows"] == 500
    np.testing.assert_array_equal(
        again.transform(table.to_batches(max_chunksize=11))["input_ids"], fitted.transform(table)["input_ids"]
    )


@pytest.mark.parametrize("form", ["dicts", "columns", "table", "batch"])
def test_serving_gives_the_forward_keys_by_the_same_code(fitted, form):
    rows = make_rows(20, seed=2)
    for row in rows:
        del row["label"]  # a row to score has none
        row["another"] = object() if form == "dicts" else "x"
    table = None if form == "dicts" else pa.Table.from_pylist(rows)
    given = {"dicts": rows, "columns": columns_of(rows), "table": table}.get(form)
    batch = fitted(table.to_batches()[0] if form == "batch" else given)
    assert list(batch) == ["input_ids", "numeric_values", "sequence_ids"]
    expected = fitted.transform(columns_of([{k: v for k, v in row.items() if k != "another"} for row in rows]))
    for key, values in batch.items():
        assert isinstance(values, torch.Tensor)
        np.testing.assert_array_equal(values.numpy(), expected[key])
    assert batch["input_ids"].dtype == torch.int32
    assert batch["numeric_values"].dtype == torch.float32


def test_numbers_and_texts_of_one_value_have_one_id(fitted):
    base = make_rows(1)[0]
    given = [5, "5", 5.0, np.int64(5)]
    ids = [int(fitted([base | {"site": value}])["input_ids"][0, 1]) for value in given]
    together = fitted([base | {"site": value} for value in given])["input_ids"][:, 1].tolist()
    assert len({*ids, *together}) == 1
    assert ids[0] > 2
    assert int(fitted([base | {"site": float("nan")}])["input_ids"][0, 1]) == 2
    assert int(fitted([base | {"site": ""}])["input_ids"][0, 1]) == 2
    np.testing.assert_array_equal(fitted.lookup("site", [5, "nothing"]), [ids[0], 1])


def test_labels_only_when_asked_for(fitted):
    rows = make_rows(3)
    assert fitted(rows, return_labels=True)["labels"].tolist() == [row["label"] for row in rows]
    assert isinstance(fitted(rows, return_tensors="np")["input_ids"], np.ndarray)


def test_save_and_load(fitted, tmp_path):
    written = fitted.save_pretrained(tmp_path)
    assert {p.rsplit("/", 1)[1] for p in map(str, written)} == {p.name for p in tmp_path.iterdir()}
    assert (tmp_path / "preprocessor_config.json").stat().st_size < 6000
    loaded = TabularFeatureProcessor.from_pretrained(tmp_path)
    assert loaded.fingerprint == fitted.fingerprint
    assert loaded.statistics == fitted.statistics
    rows = columns_of(make_rows(50, seed=3))
    for key, values in fitted.transform(rows).items():
        np.testing.assert_array_equal(loaded.transform(rows)[key], values)
    assert loaded.model_config_values() == fitted.model_config_values()


def test_auto_classes_load_it_beside_a_model_and_alone(fitted, tmp_path):
    values = fitted.model_config_values()
    model = lmctr.DNNForCTR(lmctr.DNNConfig(**values, embedding_dim=4, hidden_units=[8]))
    model.save_pretrained(tmp_path)
    fitted.save_pretrained(tmp_path)
    for auto in (AutoProcessor, AutoFeatureExtractor):
        loaded = auto.from_pretrained(tmp_path)
        assert type(loaded) is TabularFeatureProcessor
        assert loaded.fingerprint == fitted.fingerprint
    rows = make_rows(4)
    logits = model.eval()(**loaded(rows)).logits
    assert logits.shape == (4,)
    assert torch.isfinite(logits).all()
    (tmp_path / "config.json").unlink()
    for auto in (AutoProcessor, AutoFeatureExtractor):
        assert auto.from_pretrained(tmp_path).fingerprint == fitted.fingerprint


def test_fingerprint_changes_with_what_the_arrays_depend_on(fitted):
    rows = make_rows()
    other = TabularFeatureProcessor(FIELDS).fit(columns_of(rows[:-50]))
    assert other.fingerprint != fitted.fingerprint
    fields = [dict(field) for field in FIELDS]
    fields[2]["transform"] = "raw"
    other = TabularFeatureProcessor(fields).fit(columns_of(rows))
    assert other.fingerprint != fitted.fingerprint
    before = other(rows[:3])["numeric_values"]
    other.fields = copy.deepcopy(fitted).fields  # after use
    assert not torch.equal(other(rows[:3])["numeric_values"], before)
    assert torch.equal(other(rows[:3])["numeric_values"], fitted(rows[:3])["numeric_values"])


@pytest.mark.parametrize(
    ("part", "name"), [("bounds", "depth"), ("moments", "age"), ("vocabularies", "site"), ("value_types", "site")]
)
def test_fingerprint_covers_each_fitted_value(fitted, part, name):
    """One bound, moment, value or type apart, all else alike: arrays of the two must not be mixed."""
    state = copy.deepcopy(fitted.state)
    values = getattr(state, part)
    if part == "bounds":
        values[name][-1] = np.nextafter(values[name][-1], np.inf)
    elif part == "moments":
        values[name] = (values[name][0], np.nextafter(values[name][1], np.inf))
    elif part == "vocabularies":
        own = values[name]
        values[name] = Vocabulary(own.values.take(np.arange(len(own))[::-1]), own.first_id, own.counts)
    else:
        values[name] = "another"
    other = TabularFeatureProcessor(FIELDS)
    other._set_state(state)
    assert other.fingerprint != fitted.fingerprint
    same = TabularFeatureProcessor(FIELDS)
    same._set_state(copy.deepcopy(fitted.state))
    assert same.fingerprint == fitted.fingerprint


def test_side_files_of_another_processor_are_an_error(fitted, tmp_path):
    fitted.save_pretrained(tmp_path / "a")
    TabularFeatureProcessor([FIELDS[2]]).fit(columns_of(make_rows())).save_pretrained(tmp_path / "b")
    for path in (tmp_path / "b").iterdir():
        if path.name != "preprocessor_config.json":
            shutil.copy(path, tmp_path / "a")
    with pytest.raises(ValueError, match="hold nothing for the field 'ad'"):
        TabularFeatureProcessor.from_pretrained(tmp_path / "a")
    (tmp_path / "b" / VOCABULARY_FILE).write_bytes(b"no parquet")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        TabularFeatureProcessor.from_pretrained(tmp_path / "b")
    (tmp_path / "b" / VOCABULARY_FILE).unlink()
    with pytest.raises(OSError, match=VOCABULARY_FILE):
        TabularFeatureProcessor.from_pretrained(tmp_path / "b")


def test_model_config_values(fitted):
    values = fitted.model_config_values()
    assert values["vocab_sizes"] == [fitted.vocab_size(name) for name in ("ad", "site", "depth")]
    assert values["vocab_sizes"][1] == 9 + 3  # nine sites, and padding, unknown, missing
    assert values["num_numeric"] == 3
    assert values["num_sequences"] == 2
    assert values["sequence_tables"] == [0, 3]  # ad's table, and the first of sequence_vocab_sizes
    assert values["sequence_vocab_sizes"] == [4 + 2]
    assert values["processor_fingerprint"] == fitted.fingerprint
    assert "embedding_dim" not in values


def test_embedding_sizes_per_field():
    rows = columns_of(make_rows())
    fields = [{"name": "ad", "type": "categorical", "embedding_dim": 8}, {"name": "price", "type": "numeric"}]
    fields += [{"name": "seen", "type": "sequence", "separator": "|", "share_with": "ad"}]
    assert TabularFeatureProcessor(fields).fit(rows).model_config_values(5)["embedding_dim"] == [8, 5, 8]
    assert TabularFeatureProcessor(fields, embedding_dim=6).fit(rows).model_config_values()["embedding_dim"] == [
        8,
        6,
        8,
    ]


def test_two_sequences_share_one_table_of_their_own():
    rows = {"label": [0, 1], "a": [["x", "y"], ["y"]], "b": [["z"], ["x"]]}
    fields = [{"name": "a", "type": "sequence"}, {"name": "b", "type": "sequence", "share_with": "a"}]
    processor = TabularFeatureProcessor(fields).fit(rows)
    values = processor.model_config_values()
    assert values["sequence_tables"] == [0, 0]
    assert values["sequence_vocab_sizes"] == [5]
    ids = processor.transform(rows)["sequence_ids"]
    assert ids[0, 0, 0] == ids[1, 1, 0]
    assert ids.shape == (2, 2, 50)


def test_hash_buckets_need_no_vocabulary_and_are_stable():
    field = {"name": "ad", "type": "categorical", "hash_buckets": 11}
    rows = {"label": [0, 1, 0, 1], "ad": ["x", "y", "x", None]}
    processor = TabularFeatureProcessor([field]).fit(rows)
    ids = processor.transform(rows)["input_ids"][:, 0]
    assert ids[0] == ids[2]
    assert ids.min() >= 1
    assert ids[3] == 1
    assert (ids[:3] >= 2).all()
    assert processor.vocab_size("ad") == 13
    many = {"label": [0] * 5000, "ad": [f"v{n}" for n in range(5000)]}
    counts = np.bincount(processor.transform(many)["input_ids"][:, 0], minlength=13)
    assert counts[:2].sum() == 0
    assert counts[2:].min() > 350
    # the hash is part of what a saved model means: these numbers may never change
    assert hash_strings(pa.array(["", "a", "12345678", "a longer text", "ü"])).tolist() == [
        hash_reference(text.encode()) for text in ("", "a", "12345678", "a longer text", "ü")
    ]
    assert int(hash_strings(pa.array(["a"]))[0]) == HASH_OF_A


def hash_reference(data):
    """The hash by Python's integers."""
    mask = 2**64 - 1
    k1, k2 = 0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F
    h = k2
    for start in range(0, len(data), 8):
        word = int.from_bytes(data[start : start + 8], "little")
        h ^= (word * k1) & mask
        h = (((h << 31) | (h >> 33)) & mask) * k2 & mask
    h ^= len(data)
    h = ((h ^ (h >> 30)) * 0xBF58476D1CE4E5B9) & mask
    h = ((h ^ (h >> 27)) * 0x94D049BB133111EB) & mask
    return h ^ (h >> 31)


HASH_OF_A = 1318352703216698275


def test_large_vocabularies_are_looked_up_by_hash():
    values = pa.array([f"value {n}" for n in range(5000)], pa.large_string())
    known = Vocabulary(values)
    asked = pa.array(["value 4999", "none", "value 0", "", "value 17"], pa.large_string())
    assert "_index" not in known.__dict__
    assert known.lookup(asked).tolist() == [5001, 1, 2, 1, 19]
    assert "_index" in known.__dict__  # five values against five thousand
    assert known.lookup(values).tolist() == list(range(2, 5002))
    index = _HashIndex(values)
    index._hashes = np.full(5000, 7, dtype=np.uint64)  # every string collides: look-ups may miss, never confuse
    known.__dict__["_index"] = index
    assert set(known.lookup(asked).tolist()) <= {1, 2, 19, 5001}
    assert known.lookup(pa.array(["none"], pa.large_string())).tolist() == [1]


def test_counts_survive_merges(monkeypatch):
    monkeypatch.setattr("lmctr.data.features.vocabulary._PENDING", 8)
    rng = np.random.default_rng(0)
    counts, plain = CountAccumulator(), Counter()
    for _ in range(40):
        drawn = [f"v{n}" for n in rng.integers(0, 50, 10)]
        plain.update(drawn)
        counts.add(pa.array(drawn, pa.large_string()), np.ones(10, dtype=np.int64))
        assert counts._waiting <= 2 * 50 + 20
    values, numbers = counts.result()
    assert list(zip(values.to_pylist(), numbers.tolist())) == sorted(plain.items(), key=lambda v: (-v[1], v[0]))


def test_max_size_keeps_the_most_frequent():
    rows = {"label": [0] * 6, "ad": ["b", "b", "a", "a", "c", "b"]}
    processor = TabularFeatureProcessor([{"name": "ad", "type": "categorical", "max_size": 2}]).fit(rows)
    assert processor.transform(rows)["input_ids"][:, 0].tolist() == [2, 2, 3, 3, 1, 2]
    assert processor.statistics["fields"]["ad"] == {"missing": 0, "distinct": 3, "kept": 2}


@pytest.mark.parametrize("given", ["text", "timestamp", "seconds"])
def test_parts_of_times(given):
    names = ["hour", "weekday", "weekend", "day", "month", "year"]
    texts = ["14102100", "14102523", "14102600"]  # Tuesday, Saturday, Sunday
    times = np.array(["2014-10-21T00", "2014-10-25T23", "2014-10-26T00"], dtype="datetime64[s]")
    column = {"text": texts, "timestamp": pa.array(times), "seconds": times.astype(np.int64)}[given]
    extra = {"time_format": "%y%m%d%H"} if given == "text" else {}
    fields = [{"name": n, "type": "categorical", "column": "when", "extract": n} | extra for n in names]
    processor = TabularFeatureProcessor(fields).fit({"label": [0, 1, 0], "when": column})
    expected = {
        "hour": "0 23 0",
        "weekday": "1 5 6",
        "weekend": "0 1 1",
        "day": "21 25 26",
        "month": "10 10 10",
        "year": "2014",
    }
    arrays = processor.transform({"label": [0, 1, 0], "when": column})
    for place, name in enumerate(names):
        words = processor.state.vocabularies[name].values.to_pylist()
        shown = [words[code - 2] for code in arrays["input_ids"][:, place]]
        assert shown == (expected[name].split() if name != "year" else ["2014"] * 3)


def test_times_of_a_sequence_are_ages_at_the_rows_time():
    fields = [{"name": "s", "type": "sequence", "time_column": "at", "max_length": 2}]
    rows = {"label": [0, 1], "s": [["a", "b", None, "c"], []], "at": [[10, 20, 25, 30], []], "now": [40, 50]}
    processor = TabularFeatureProcessor(fields, time="now").fit(rows)
    arrays = processor.transform(rows)
    assert arrays["sequence_times"].tolist() == [[[20.0, 10.0]], [[0.0, 0.0]]]
    assert arrays["times"].tolist() == [40, 50]
    batch = processor([{"s": ["a"], "at": [35], "now": 36}])
    assert list(batch) == ["sequence_ids", "sequence_times"]
    assert batch["sequence_times"][0, 0].tolist() == [1.0, 0.0]
    rows["at"][0][3] = 41
    with pytest.raises(
        ValueError, match=r"column 'at': 1 values are missing or later than the row's own time \(row 1"
    ):
        processor.transform(rows)
    rows["at"][0] = [1, 2]
    with pytest.raises(ValueError, match=r"another number of times than 's' has entries"):
        processor.transform(rows)


def test_quantiles_from_a_sample_are_close_and_batch_independent():
    rng = np.random.default_rng(0)
    values = rng.lognormal(size=60_000)
    field = {"name": "x", "type": "numeric", "transform": "quantile", "num_bins": 10}
    table = pa.table({"label": np.zeros(60_000, dtype=np.int8), "x": values})
    sampled = TabularFeatureProcessor([field], quantile_sample=4096).fit(table.to_batches(max_chunksize=999))
    whole = TabularFeatureProcessor([field], quantile_sample=4096).fit(table)
    np.testing.assert_array_equal(sampled.state.bounds["x"], whole.state.bounds["x"])
    ranks = np.searchsorted(np.sort(values), sampled.state.bounds["x"]) / 60_000
    np.testing.assert_allclose(ranks, np.arange(1, 10) / 10, atol=0.03)
    exact = TabularFeatureProcessor([field]).fit(table)
    counts = np.bincount(exact.transform(table)["input_ids"][:, 0] - 2)
    assert len(counts) == 10
    assert np.abs(counts - 6000).max() <= 1


def test_standardising_is_stable_for_large_offsets():
    values = 1e9 + np.arange(1000.0)
    field = {"name": "x", "type": "numeric", "transform": "standardize"}
    table = pa.table({"label": [0] * 1000, "x": values})
    processor = TabularFeatureProcessor([field]).fit(table.to_batches(max_chunksize=17))
    mean, deviation, *limits = processor.state.moments["x"]
    assert limits == [1e9, 1e9 + 999]
    assert mean == pytest.approx(values.mean(), abs=1e-6)
    assert deviation == pytest.approx(values.std(), rel=1e-9)
    for value in (3.0, 0.1):  # the mean of seven times 0.1 is rounded
        constant = TabularFeatureProcessor([field]).fit({"label": [0] * 7, "x": [value] * 7})
        assert constant.transform({"x": [value, value + 1]})["numeric_values"][:, 0].tolist() == [0.0, 0.0]
        constant.state.moments["x"] = constant.state.moments["x"][:2]
        assert constant.transform({"x": [value, value + 1]})["numeric_values"][:, 0].tolist() == [0.0, 1.0]
    computed = [0.1, np.nextafter(0.1, 1.0)]  # of the same numbers in another order
    constant = TabularFeatureProcessor([field]).fit({"label": [0, 0], "x": computed})
    assert constant.state.moments["x"] == (0.1, 1.0, *computed)


def test_what_lies_beyond_the_rows_fitted_on_is_read_as_their_edge(tmp_path):
    """In tables and in few rows, by what is saved; extended by newer rows, the edge is theirs. Files from before know none."""
    field = {"name": "x", "type": "numeric", "before": "log1p", "transform": "standardize"}
    rows = [{"x": value} for value in (-1e30, 0.5, 1.0, 7.0, 9.0, 1e6, None)]
    table = pa.Table.from_pylist(rows)
    processor = TabularFeatureProcessor([field]).fit({"label": [0, 1, 0, 1], "x": [1.0, 7.0, None, 3.0]})

    def both(processor):
        found = processor.transform(table)["numeric_values"][:, 0]
        np.testing.assert_allclose(processor(rows)["numeric_values"][:, 0], found, atol=1e-6)
        return found

    fitted = np.log1p([1.0, 7.0, 3.0])
    curved = np.append(np.log1p([1.0, 1.0, 1.0, 7.0, 7.0, 7.0]), fitted.mean())
    expected = (curved - fitted.mean()) / fitted.std()
    np.testing.assert_allclose(both(processor), expected, atol=1e-6)
    processor.save_pretrained(tmp_path)
    np.testing.assert_array_equal(both(TabularFeatureProcessor.from_pretrained(tmp_path)), both(processor))

    before = TabularFeatureProcessor.from_pretrained(tmp_path)
    before.state.moments["x"] = before.state.moments["x"][:2]
    assert both(before).max() == pytest.approx((np.log1p(1e6) - fitted.mean()) / fitted.std())
    before.extend({"label": [0, 1], "x": [0.0, 8.0]})
    assert len(before.state.moments["x"]) == 2

    processor.extend({"label": [0, 1], "x": [None, 8.0]})
    curved[3:6] = np.log1p([7.0, 8.0, 8.0])
    np.testing.assert_allclose(both(processor), (curved - fitted.mean()) / fitted.std(), atol=1e-6)


def test_standardising_refuses_numbers_that_have_no_deviation():
    field = {"name": "x", "type": "numeric", "transform": "standardize"}
    with pytest.raises(ValueError, match=r"column 'x': 1 values are too large .*row 2: -1.797.*1e\+140.*log1p"):
        TabularFeatureProcessor([field]).fit({"label": [0, 0, 1], "x": [1.0, -np.finfo(np.float64).max, 2.0]})


def test_overrides_of_fields():
    fields = [
        {"name": "I1", "type": "numeric"},
        {"name": "C1", "type": "categorical"},
        {"name": "C2", "type": "categorical"},
    ]
    changed = override_fields(
        fields,
        {
            "categorical": {"min_count": 3},
            "numeric": {"transform": "quantile"},
            "fields": {"C1": {"embedding_dim": 4}, "C3": {"type": "categorical", "column": "C1", "hash_buckets": 7}},
            "drop": ["C2"],
        },
    )
    assert changed == [
        {"name": "I1", "type": "numeric", "transform": "quantile"},
        {"name": "C1", "type": "categorical", "min_count": 3, "embedding_dim": 4},
        {"name": "C3", "type": "categorical", "column": "C1", "hash_buckets": 7},
    ]
    assert fields[1] == {"name": "C1", "type": "categorical"}
    assert [f["name"] for f in override_fields(fields, {"only": ["C2"]})] == ["C2"]
    for overrides, message in [
        ({"catgorical": {}}, "unknown key 'catgorical' in features; did you mean 'categorical'"),
        ({"drop": ["C4"]}, "unknown field 'C4' in features.drop"),
        ({"fields": {"CC1": {"min_count": 2}}}, "unknown field 'CC1'"),
        ({"numeric": 3}, "features.numeric: expected a mapping"),
        ({"drop": "C1"}, "features.drop: expected a list"),
    ]:
        with pytest.raises(ValueError, match=message):
            override_fields(fields, overrides)


def test_a_look_up_of_one_text_is_that_of_many():
    values = pa.array([f"{'x' * (n % 20)}{n}\u00fc" for n in range(3000)], pa.large_string())
    known = Vocabulary(values.slice(0, 2000), first_id=3)
    texts = values.to_pylist()
    assert [hash_string(text) for text in texts] == hash_strings(values).tolist()
    assert [known.id_of(text) for text in texts] == known.lookup(values).tolist()
    assert Vocabulary(pa.array([], pa.large_string())).id_of("a") == 1


def test_numbers_are_curved_before_anything_is_fitted():
    """log1p and log-odds come before moments and bins; missing cells stay missing, a fill value is curved like any other."""
    counts, rates = [0.0, 1.0, 9.0, None, 99.0], [0.5, 0.0, 0.9, None, 0.2]
    rows = {"count": counts, "rate": rates, "label": [0, 1, 0, 1, 0]}
    processor = TabularFeatureProcessor(
        [
            {"name": "a", "type": "numeric", "column": "count", "before": "log1p", "transform": "standardize"},
            {"name": "b", "type": "numeric", "column": "rate", "before": "logit", "transform": "standardize"},
            {"name": "c", "type": "numeric", "column": "count", "before": "log1p", "fill_value": 9.0},
            {
                "name": "d",
                "type": "numeric",
                "column": "rate",
                "before": "logit",
                "transform": "quantile",
                "num_bins": 2,
            },
        ]
    ).fit(rows)
    found = processor.transform(rows)
    logs = np.log1p(np.array([0.0, 1.0, 9.0, 99.0]))
    odds = np.array([np.log(p / (1 - p)) for p in (0.5, 1e-6, 0.9, 0.2)])
    for place, known in ((0, logs), (1, odds)):
        expected = np.insert((known - known.mean()) / known.std(), 3, 0.0)
        np.testing.assert_allclose(found["numeric_values"][:, place], expected, atol=1e-5)
    np.testing.assert_allclose(found["numeric_values"][:, 2], np.insert(logs, 3, np.log(10.0)), atol=1e-6)
    assert found["input_ids"][:, 0].tolist() == [3, 2, 3, 1, 3]
    with pytest.raises(ValueError, match="before='log'; accepted: 'log1p', 'logit'"):
        TabularFeatureProcessor([{"name": "a", "type": "numeric", "before": "log"}])


@pytest.mark.parametrize("before", [None, "log1p", "logit"])
@pytest.mark.parametrize("transform", ["raw", "log1p", "standardize", "quantile"])
@pytest.mark.parametrize("fill", [{}, {"fill_value": 0.25}, {"missing": "own_id"}])
def test_a_few_rows_as_dicts_have_the_numbers_of_their_table(before, transform, fill):
    """They are not read through columns."""
    if "missing" in fill and transform != "quantile":
        pytest.skip("numbers have ids by quantiles only")
    rng = np.random.default_rng(0)
    values = [None if row % 9 == 0 else value for row, value in enumerate(rng.uniform(0, 1, 60).tolist())]
    rows = [{"x": value, "label": row % 2} for row, value in enumerate(values)]
    bins = {"num_bins": 8} if transform == "quantile" else {}
    field = {"name": "x", "type": "numeric", "transform": transform, **bins, **fill} | (
        {"before": before} if before else {}
    )
    source = table_source(pa.Table.from_pylist(rows), fields=[field])
    processor = TabularFeatureProcessor(fields=[field], label="label").fit(source)
    key = "input_ids" if transform == "quantile" else "numeric_values"
    whole = np.asarray(processor(pa.Table.from_pylist(rows))[key])
    assert np.ptp(whole) > 0
    for size in (1, 7):
        few = np.concatenate([np.asarray(processor(rows[at : at + size])[key]) for at in range(0, 60, size)])
        np.testing.assert_array_equal(few, whole)
