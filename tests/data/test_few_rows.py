"""Rows as dicts read value by value, against the same rows read through columns."""

import datetime
import decimal
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lmctr.data import TabularFeatureProcessor
from lmctr.data.features import few
from lmctr.data.features.few import FewRows

FIELDS = [
    {"name": "text", "type": "categorical", "value_type": "text", "missing": "own_id"},
    {"name": "integer", "type": "categorical", "column": "number", "value_type": "integer"},
    {"name": "number", "type": "categorical", "value_type": "number"},
    {"name": "hashed", "type": "categorical", "column": "text", "hash_buckets": 7, "missing": "own_id"},
    {"name": "hour", "type": "categorical", "column": "ts", "extract": "hour"},
    {"name": "weekend", "type": "categorical", "column": "day", "extract": "weekend", "time_format": "%Y-%m-%d"},
    {"name": "pair", "type": "categorical", "cross": ["text", "integer"], "missing": "own_id"},
    {"name": "hashed_pair", "type": "categorical", "cross": ["hour", "integer"], "hash_buckets": 50},
    {"name": "raw", "type": "numeric", "column": "x"},
    {"name": "days", "type": "numeric", "column": "iso", "extract": "days", "fill_value": 0},
    {"name": "age", "type": "numeric", "column": "day", "extract": "days", "time_format": "%Y-%m-%d", "until": "ts"},
    {"name": "log", "type": "numeric", "column": "x", "transform": "log1p", "fill_value": 3.0},
    {"name": "scaled", "type": "numeric", "column": "x", "before": "log1p", "transform": "standardize"},
    {"name": "filled", "type": "numeric", "column": "y", "transform": "standardize", "fill_value": -1.0},
    {"name": "odds", "type": "numeric", "column": "y", "before": "logit"},
    {"name": "bins", "type": "numeric", "column": "z", "transform": "quantile", "num_bins": 4, "missing": "own_id"},
    {"name": "last", "type": "sequence", "column": "list", "max_length": 3, "share_with": "number"},
    {"name": "first", "type": "multi_value", "column": "list", "max_length": 2, "hash_buckets": 9},
    {"name": "words", "type": "multi_value", "max_length": 2, "separator": " "},
]
INTEGERS = st.one_of(
    st.integers(-3, 12), st.sampled_from([2**53 + 1, 2**63, 10**25, -(10**16), 1_400_000_000, 10**15])
)
FLOATS = st.one_of(
    st.sampled_from([0.0, -0.0, 1.0, 7.0, 0.5, 0.1, 1e15, 1e16, 1e17, 2.0**53, 1e300, 3.5e38, float("nan")]),
    st.floats(allow_infinity=False, width=32),
)
TEXTS = st.sampled_from(
    ["", " ", "a", " a ", "A", "1", "1.0", "01", " 7 ", "0.10", "1e0", "-0", "nan", "NaN", "True", "true", "1_0", "+7"]
    + ["2024-01-06", "2024-02-30", "a\x1fb", "ü", "x" * 70, "7\u00a0", "inf", "0x10", "\ud800"]
)
NUMPY = st.sampled_from(
    [np.int64(7), np.float64(7.0), np.float32(0.1), np.bool_(True), np.str_("a"), np.float64("nan")]
)
STRANGE = st.sampled_from(
    [datetime.date(2024, 1, 6), datetime.datetime(2024, 1, 6, 5), decimal.Decimal("7"), b"a", (1,), {"a": 1}, ["a"], float("inf")]
)  # fmt: skip
MIXED = st.one_of(st.none(), INTEGERS, FLOATS, TEXTS, st.booleans(), NUMPY, STRANGE)
COLUMNS = ("text", "number", "ts", "day", "x", "y", "z", "list", "words", "iso")


@st.composite
def columns_of(draw, size):
    """Values of one kind and None, or anything at all."""
    kind = draw(st.sampled_from([INTEGERS, FLOATS, TEXTS, st.booleans(), st.integers(0, 9), st.one_of(INTEGERS, FLOATS), MIXED]))  # fmt: skip
    entry = st.one_of(st.none(), kind)
    if draw(st.integers(0, 2)) == 0:
        entry = st.one_of(st.none(), st.lists(entry, max_size=5), st.lists(entry, max_size=5).map(tuple))
    return draw(st.lists(entry, min_size=size, max_size=size))


@st.composite
def tables(draw):
    size = draw(st.integers(1, 6))
    usual = {
        "text": st.one_of(st.none(), TEXTS, INTEGERS),
        "number": st.one_of(st.none(), INTEGERS),
        "ts": st.one_of(st.none(), st.integers(0, 2_000_000_000)),
        "day": st.sampled_from([None, "", "2024-01-06", "2024-01-08"]),
        "iso": st.sampled_from(
            [None, "", "2024-01-06", "2024-01-08T10:00:00", "2024-01-08T10:00:00+02:00", "1700000000"]
        ),
        "x": st.one_of(st.none(), FLOATS, st.integers(-5, 2**60)),
        "y": st.one_of(st.none(), st.floats(0, 1)),
        "z": st.one_of(st.none(), FLOATS),
        "list": st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=5)),
        "words": st.sampled_from([None, "", "a", "a b  c", "b 7 a"]),
    }
    columns = {name: draw(st.lists(own, min_size=size, max_size=size)) for name, own in usual.items()}
    for name in draw(st.lists(st.sampled_from(COLUMNS), max_size=2, unique=True)):
        columns[name] = draw(columns_of(size))
    rows = [dict(zip(columns, values)) for values in zip(*columns.values())]
    if draw(st.integers(0, 9)) == 0:
        rows[draw(st.integers(0, size - 1))].pop(draw(st.sampled_from(COLUMNS)))
    if draw(st.integers(0, 9)) == 0:
        rows[0]["other"] = object()
    return rows


@pytest.fixture(scope="module")
def processor():
    rng = np.random.default_rng(0)
    rows = [
        {
            "label": row % 2,
            "text": ["a", "1", "7", "True", "1.0", "ü", "10000000000000000"][row % 7],
            "number": int(rng.integers(0, 10)),
            "ts": int(rng.integers(0, 2_000_000_000)),
            "day": f"2024-01-{row % 28 + 1:02d}",
            "iso": f"2024-01-{row % 28 + 1:02d}T10:00:00",
            "x": float(rng.normal()),
            "y": float(rng.uniform()),
            "z": float(rng.normal()),
            "list": rng.integers(0, 10, 3).tolist(),
            "words": ["a b", "b", "a 7"][row % 3],
        }
        for row in range(200)
    ]
    return TabularFeatureProcessor(FIELDS).fit(rows)


def outcome(call, processor):
    """What a call of the processor gives and leaves, or why it refuses."""
    try:
        arrays = call()
    except ValueError as error:
        return str(error)
    arrays, masks = arrays if isinstance(arrays, tuple) else (arrays, {})
    values = {key: np.asarray(own) for key, own in (arrays | masks).items()}
    examples = {name: set(found) for name, found in processor.unknown_examples.items()}
    return {key: (own.dtype, own.shape, own.tobytes()) for key, own in values.items()}, processor.oov_counts, examples


def through_columns(call, processor):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FewRows, "most", 0)
        return outcome(call, processor)


def check(call, processor):
    """That it is as through columns, whether values are new, few or many, or kept from others."""
    expected = through_columns(call, processor)
    assert outcome(call, processor) == expected
    assert outcome(call, processor) == expected
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(few, "_MANY", 0)
        kept = processor._few_rows
        processor._few_rows = FewRows(processor.fields, processor.state)
        processor._parts.clear()
        assert outcome(call, processor) == expected
        processor._few_rows = kept
        processor._parts.clear()


@settings(max_examples=150, deadline=None)
@given(rows=tables())
def test_rows_as_dicts_are_those_of_their_table(processor, rows):
    check(lambda: processor(rows), processor)


@settings(max_examples=60, deadline=None)
@given(rows=tables(), shared=st.sets(st.sampled_from(COLUMNS)))
def test_candidates_with_shared_columns_are_those_of_their_table(processor, rows, shared):
    user = {name: value for name, value in rows[0].items() if name in shared}
    candidates = [{name: value for name, value in row.items() if name not in shared} for row in rows]
    check(lambda: processor.of_candidates(user, candidates), processor)


def plain(size, first=0):
    names = {
        "text": "a",
        "ts": 0,
        "day": None,
        "y": 0.5,
        "z": 2,
        "iso": "2024-01-06",
        "list": [1, None, 7],
        "words": "a b",
    }
    return [names | {"number": first + place, "x": place / 7} for place in range(size)]


@pytest.mark.parametrize("size", [1, 150, FewRows.most])
def test_plain_rows_are_read_value_by_value(processor, size):
    assert processor._few_rows(plain(size)) is not None
    assert outcome(lambda: processor(plain(size)), processor) == through_columns(
        lambda: processor(plain(size)), processor
    )
    assert processor._few_rows(plain(FewRows.most + size)) is None


def test_values_that_are_one_key_of_a_dict_keep_their_own_ids():
    texts = ["1", "true", "0", "false", "1e+16", "10000000000000000"]
    fields = [{"name": "c", "type": "categorical", "value_type": "text"}]
    processor = TabularFeatureProcessor(fields, label=None).fit({"c": texts})
    columns = [
        ([1], ["1"]),
        ([True], ["true"]),
        ([1.0], ["1"]),
        ([True, 1.0], ["true", "1"]),
        ([1, True], ["1", "true"]),
        ([False, 0.0], ["false", "0"]),
        ([0, False, "0"], ["0", "false", "0"]),
        ([10**16], ["10000000000000000"]),
        ([1e16], ["1e+16"]),
    ]
    for values, expected in (*columns, *reversed(columns)):
        ids = processor([{"c": value} for value in values], return_tensors="np")["input_ids"][:, 0]
        assert ids.tolist() == processor.lookup("c", expected).tolist()


@pytest.mark.parametrize("large", [10**15, -(2**53), np.int64(10**16), 2**53 + 1])
def test_large_numbers_among_floats_are_read_as_in_a_table(processor, large):
    for other in ({"list": [large, 0.5]}, {"list": [large, 0]}, {"number": large}):
        rows = plain(3)
        rows[0] |= other
        rows[1] |= {"list": [0.5]} if "list" in other else {"number": 0.5}
        check(lambda rows=rows: processor(rows), processor)


def test_few_values_are_kept_and_no_long_ones():
    fields = [{"name": "c", "type": "categorical"}, {"name": "s", "type": "sequence", "share_with": "c"}]
    processor = TabularFeatureProcessor(fields, label=None).fit({"c": ["a", "b"], "s": [["a"], ["b"]]})
    reader = processor._few_rows._words["c"]
    kept = reader._kept[0][1]
    reader._most = 600
    processor([{"c": "x" * 65, "s": []}, {"c": "x" * 64, "s": []}])
    assert set(kept) == {"x" * 64}
    for first in range(0, 2000, 90):  # one by one
        processor([{"c": f"v{first + place}", "s": []} for place in range(90)])
        assert 90 <= len(kept) <= 600
    for first in range(0, 6000, 1000):  # as columns
        processor([{"c": f"w{first + place}", "s": []} for place in range(1000)])
        assert 500 <= len(kept) <= 600
    assert processor.of_candidates({"c": "a"}, [{"s": ["b"]}])[0]["input_ids"].tolist() == [[2]]
    assert "a" in kept  # readers of candidates keep no values of their own


def test_threads_may_share_what_is_kept(processor):
    reader = processor._few_rows
    tables = [plain(40, first=20 * number) for number in range(8)]
    expected = [processor(rows, return_tensors="np")["input_ids"].tolist() for rows in tables]
    wrong = []

    def ask(number):
        for turn in range(40):
            place = (number + turn) % len(tables)
            if reader(tables[place])["input_ids"].tolist() != expected[place]:
                wrong.append(place)

    most = {name: words._most for name, words in reader._words.items()}
    try:
        for words in reader._words.values():
            words._most = 30  # emptied all the time
        threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for name, words in reader._words.items():
            words._most = most[name]
    assert not wrong


def test_what_is_no_number_is_refused_as_in_a_table(processor):
    row = plain(1)[0]
    for good, bad, problem in (
        (1.0, float("inf"), "are infinite"),
        ("1", "inf", "are infinite"),
        ("1", "7x", "are no numbers"),
    ):
        rows = [row | {"z": good}, row | {"z": bad}]
        with pytest.raises(ValueError, match=rf"^column 'z': 1 values {problem} \(row 2: "):
            processor(rows)
        with pytest.raises(ValueError, match=rf"^candidates: column 'z': 1 values {problem} \(row 2: "):
            processor.of_candidates({}, rows)


def test_texts_among_times_are_refused_among_many_too(processor):
    rows = [row | {"ts": place if place % 2 else str(place)} for place, row in enumerate(plain(150))]
    with pytest.raises(ValueError, match="column 'ts': the values have no common type"):
        processor(rows)
