"""Shares of unknown values: kept where a processor was fitted and measured, and held against what comes later."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import lmctr
from lmctr.data import TabularStore
from lmctr.data.features.unknown import check_unknown
from lmctr.data.tables.load import table_source
from lmctr.runs.answers import predict_rows

FIELDS = [
    {"name": "ad", "type": "categorical"},
    {"name": "sex", "type": "categorical"},
    {"name": "price", "type": "numeric"},
    {"name": "seen", "type": "sequence", "max_length": 4, "share_with": "ad"},
]


def rows_of(count, seed, shift=0, sexes=("f", "m")):
    rng = np.random.default_rng(seed)
    return {
        "label": (rng.random(count) < 0.4).astype(int),
        "ad": [f"a{number}" for number in shift + rng.integers(0, 200, count)],
        "sex": rng.choice(sexes, count).tolist(),
        "price": rng.random(count),
        "seen": [[f"a{number}" for number in shift + rng.integers(0, 200, 3)] for _ in range(count)],
    }


@pytest.fixture(scope="module")
def store():
    return TabularStore.build(table_source(rows_of(3000, 0), fields=FIELDS, split="random"))


def plain_share(store, part):
    """Share of the values of `ad` in a part that stand in no training row, by a loop."""
    columns, codes = rows_of(3000, 0), store.split
    known = {ad for ad, code in zip(columns["ad"], codes) if code == 0}
    known |= {ad for ads, code in zip(columns["seen"], codes) if code == 0 for ad in ads}
    own = [ad for ad, code in zip(columns["ad"], codes) if code == ("train", "validation", "test").index(part)]
    return sum(ad not in known for ad in own) / len(own), len(own)


def test_shares_are_kept_by_part_also_where_parts_mix(store):
    assert len(set(store.split[:50].tolist())) > 1
    for part in ("train", "validation", "test"):
        share, size = plain_share(store, part)
        counts = store.statistics[part]["values"]["ad"]
        assert counts == {"values": size, "missing": 0, "unknown": round(share * size)}
    kept = store.processor.statistics["unknown"]
    assert kept["validation"]["ad"] == plain_share(store, "validation")[0]
    assert kept["train"] == {"ad": 0.0, "sex": 0.0, "seen": 0.0}
    assert "test" not in kept


def test_they_travel_with_the_processor(store, tmp_path):
    store.processor.save_pretrained(tmp_path)
    loaded = lmctr.TabularFeatureProcessor.from_pretrained(tmp_path)
    assert (
        loaded.usual_unknown("ad")
        == store.processor.usual_unknown("ad")
        == store.processor.statistics["unknown"]["validation"]["ad"]
    )
    assert loaded.fingerprint == store.processor.fingerprint


def judged(processor, rows, **options):
    processor({name: values for name, values in rows.items() if name != "label"})
    return check_unknown(processor, processor.oov_counts, processor.unknown_examples, "x.csv", **options)


def test_like_rows_are_no_matter(store):
    assert judged(store.processor, rows_of(1000, 1)) == []


def test_far_more_than_in_validation_is_a_warning(store):
    (ad, seen) = judged(store.processor, rows_of(1000, 1, shift=100))
    assert ad.startswith("x.csv: field 'ad': ")
    assert "in validation" in ad
    assert "'a2" in ad
    assert "field 'seen'" in seen
    prose = {"ad": [f"{row} told at length, " * 50 for row in range(1000)]}
    (_, ad) = judged(store.processor, rows_of(1000, 1, shift=100) | prose, allowed=True)
    assert "told at length" in ad
    assert len(ad) < 400  # three examples, of which the beginning is shown


def test_next_to_nothing_known_is_an_error(store):
    rows = rows_of(1000, 1, shift=1000)
    with pytest.raises(
        ValueError, match=r"x.csv: field 'ad': 100.0% of the values are unknown \('a1.*'seen'.*allow-unknown"
    ):
        judged(store.processor, rows)
    assert len(judged(store.processor, rows, allowed=True)) == 2
    with pytest.raises(ValueError, match=r"field 'sex': 100.0%.*'(F|M)', '(F|M)'"):  # two values are all there are
        judged(store.processor, rows_of(1000, 1, sexes=("F", "M")))


@pytest.mark.parametrize(("usual", "refused"), [(0.85, True), (0.93, False)])
def test_a_field_of_which_validation_knew_next_to_nothing_is_no_error(usual, refused):
    """Users who come once: what told nothing in validation is not missed."""
    processor = SimpleNamespace(
        usual_unknown=lambda name: usual, unknown_limit=lambda name: None, num_known=lambda name: 50
    )
    counts = {"user": {"values": 1000, "missing": 0, "unknown": 995}}
    examples = {"user": [str(number) for number in range(10)]}
    if refused:
        with pytest.raises(
            ValueError, match=r"99.5% of the values are unknown .* 85.0% in validation; the limit is 95.0%"
        ):
            check_unknown(processor, counts, examples, "x.csv")
    else:
        assert check_unknown(processor, counts, examples, "x.csv") == []


def test_many_rows_of_one_new_value_and_a_few_rows_are_no_error(store):
    rows = rows_of(1000, 1) | {"ad": ["new"] * 1000}
    (warning,) = judged(store.processor, rows)
    assert "field 'ad': 100.0%" in warning
    assert judged(store.processor, rows_of(20, 1, shift=1000)) == []


def test_a_field_may_set_its_limit():
    fields = [FIELDS[0] | {"max_unknown": 1.0}]
    processor = lmctr.TabularFeatureProcessor(fields, label=None).fit(rows_of(500, 0))
    assert len(judged(processor, {"ad": rows_of(500, 0, shift=1000)["ad"]})) == 1
    plain = lmctr.TabularFeatureProcessor(FIELDS[:1], label=None).fit(rows_of(500, 0))
    assert processor.fingerprint == plain.fingerprint  # no array depends on it
    with pytest.raises(ValueError, match="max_unknown=2; accepted: a share"):
        lmctr.TabularFeatureProcessor([FIELDS[0] | {"max_unknown": 2}])


def test_examples_and_counts_of_a_few_rows_are_those_of_a_table(store):
    rows = rows_of(20, 3, shift=150)
    columns = {name: values for name, values in rows.items() if name != "label"}
    processor = store.processor
    processor(columns)
    counts, examples = processor.oov_counts, processor.unknown_examples
    processor([dict(zip(columns, values)) for values in zip(*columns.values())])
    assert processor.oov_counts == counts
    assert {name: set(found) for name, found in processor.unknown_examples.items()} == {
        name: set(found) for name, found in examples.items()
    }


def test_predictions_in_python(store, caplog):
    torch.manual_seed(0)
    processor = store.processor
    config = lmctr.DeepFMConfig(**processor.model_config_values(), embedding_dim=4, hidden_units=[8])
    model = lmctr.DeepFMForCTR(config)
    columns = {name: values for name, values in rows_of(500, 1, shift=100).items() if name != "label"}
    assert predict_rows(model, processor, columns).shape == (500,)
    assert "field 'ad'" in caplog.text
    with pytest.raises(ValueError, match="field 'ad': 100"):
        predict_rows(model, processor, rows_of(500, 1, shift=1000))
