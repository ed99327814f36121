"""The generated table: its law, its best AUC, its planted pairs."""

import numpy as np
import pyarrow as pa
import pytest

from lmctr.data import synthetic_table
from lmctr.data.synthetic.generator import sigmoid
from lmctr.data.synthetic.tables import TRUE_PROBABILITY, SyntheticTable, _block, _Model, _reachable
from lmctr.evaluation.metrics import auc

SMALL = {"num_rows": 40_000, "num_categorical": 6, "num_numeric": 3, "vocab_size": 400, "num_pairs": 3}


def read(source, part=None, columns=None):
    blocks = list(source.rows(columns, part))
    return pa.Table.from_batches([block.table for block in blocks]), np.concatenate([block.split for block in blocks])


def all_columns(source):
    kinds = {field["name"]: "any" for field in source.fields}
    return kinds | {"label": "number", TRUE_PROBABILITY: "number"}


def test_shape_and_parts():
    source = synthetic_table(num_rows=1000)
    assert [field["type"] for field in source.fields].count("categorical") == 26
    assert len(source.fields) == 39
    table, split = read(source)
    assert table.num_rows == 1000
    assert np.bincount(split).tolist() == [800, 100, 100]
    assert TRUE_PROBABILITY not in table.column_names  # no model sees it by accident
    assert sum(source.info.extra["vocab_sizes"]) <= 100_000
    assert read(source, "test")[0].equals(table.slice(900))


def test_a_table_is_its_seed_and_does_not_depend_on_size():
    table, _ = read(synthetic_table(**SMALL))
    assert read(synthetic_table(**SMALL))[0].equals(table)
    assert not read(synthetic_table(**SMALL, seed=1))[0].equals(table)
    longer, _ = read(synthetic_table(**(SMALL | {"num_rows": 90_000})))
    assert longer.slice(0, 40_000).equals(table)
    assert synthetic_table(**SMALL).fingerprint != synthetic_table(**SMALL, seed=1).fingerprint


def test_labels_follow_the_true_probabilities():
    source = synthetic_table(**SMALL, positive_rate=0.2)
    table, _ = read(source, columns=all_columns(source))
    p, y = table[TRUE_PROBABILITY].to_numpy(), table["label"].to_numpy()
    assert abs(p.mean() - 0.2) < 0.01
    for low, high in [(0, 0.1), (0.1, 0.3), (0.3, 0.6), (0.6, 1)]:
        chosen = (p >= low) & (p < high)
        error = (p[chosen] * (1 - p[chosen])).sum() ** 0.5 / chosen.sum()
        assert abs(y[chosen].mean() - p[chosen].mean()) < 4 * error


def test_best_auc_is_that_of_the_true_probabilities_on_the_test_labels():
    source = synthetic_table(**SMALL)
    table, _ = read(source, "test", all_columns(source))
    p, y = table[TRUE_PROBABILITY].to_numpy(), table["label"].to_numpy()
    assert source.info.best_auc == pytest.approx(auc(y, p), abs=1e-12)
    extra = source.info.extra
    assert abs(extra["expected_auc"] - source.info.best_auc) < 0.02
    assert extra["additive_auc"] < source.info.best_auc - 0.05  # the planted pairs carry signal


def test_expected_auc_is_the_mean_over_labels():
    rng = np.random.default_rng(0)
    model = _Model.draw(
        rng, [5, 7], [(0, 1)], SyntheticTable(num_numeric=1, zipf_exponent=1.0, latent_dim=2, missing_share=0.1)
    )
    model.scale(rng, (0.5, 1.0, 0.5), 0.3)
    _, expected, _ = _reachable(model, 0, 0, 400)
    p = sigmoid(_block(model, 0, 0)[3].sum(axis=0) + model.bias)[:400]
    drawn = [auc((rng.random(400) < p).astype(int), p) for _ in range(400)]
    assert np.mean(drawn) == pytest.approx(expected, abs=0.005)
    pairs = np.subtract.outer(p, p)
    weight = np.outer(p, 1 - p)
    np.fill_diagonal(weight, 0)
    assert expected == pytest.approx((weight * ((pairs > 0) + 0.5 * (pairs == 0))).sum() / weight.sum(), abs=1e-9)


def test_effects_have_the_strengths_asked_for():
    source = synthetic_table(**SMALL, main_strength=0.0, pair_strength=2.0, numeric_strength=0.0)
    table, _ = read(source, columns=all_columns(source))
    p = table[TRUE_PROBABILITY].to_numpy()
    assert np.log(p / (1 - p)).std() == pytest.approx(2.0, rel=0.05)
    extra = source.info.extra
    assert extra["additive_auc"] == pytest.approx(0.5, abs=0.03)
    # given the values of the planted pairs, the probability is known; given those of one field less, it is not
    named = sorted({name for pair in extra["pairs"] for name in pair})
    keys = np.stack([table[name].to_numpy() for name in named], axis=1)
    assert spread_within(keys, p) < 1e-9
    assert spread_within(keys[:, 1:], p) > 0.01


def spread_within(keys, values):
    _, group = np.unique(keys, axis=0, return_inverse=True)
    mean = np.bincount(group.ravel(), values) / np.bincount(group.ravel())
    return np.abs(values - mean[group.ravel()]).max()


def test_popular_values_follow_a_zipf_like_law():
    source = synthetic_table(
        num_rows=60_000, num_categorical=1, num_numeric=0, vocab_sizes=[1000], num_pairs=0, zipf_exponent=1.0
    )
    counts = np.bincount(read(source)[0]["C1"].to_numpy(), minlength=1000)
    assert counts[0] / 60_000 == pytest.approx(
        np.log(2) / np.log(1001), rel=0.05
    )  # mass of [1, 2) under 1 / x on [1, 1001)
    assert counts[99] < counts[9] < counts[0]


def test_missing_numbers():
    table, _ = read(synthetic_table(**SMALL, missing_share=0.3))
    for name in ("I1", "I2", "I3"):
        assert table[name].null_count / 40_000 == pytest.approx(0.3, abs=0.02)
    assert float(np.nanmin(table["I1"].to_numpy())) >= 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_rows": 0}, "num_rows=0"),
        ({"positive_rate": 1.0}, "positive_rate=1.0; accepted: between 0 and 1"),
        ({"vocab_size": 10}, "vocab_size=10; accepted: 104 or more"),
        ({"vocab_sizes": [3]}, "26 sizes of 2 or more"),
        ({"num_categorical": 3, "num_pairs": 9}, "num_pairs=9; accepted: at most 3"),
        ({"pairs": [["C1", "C99"]]}, "pairs="),
        ({"fractions": (0.5, 0.2, 0.2)}, "fractions="),
        ({"num_categorical": 0, "num_numeric": 0}, "one field at least"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(ValueError, match=message):
        synthetic_table(**options)


def test_a_column_that_is_not_there():
    with pytest.raises(ValueError, match="no column 'C9'"):
        read(synthetic_table(**SMALL), columns={"C9": "any"})


@pytest.mark.parametrize("agreement", [0.0, -0.6])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_rate_of_conversions_is_the_one_asked_for(seed, agreement):
    settings = {"main_strength": 0.3, "pair_strength": 0.3, "positive_rate": 0.999}
    given = {"conversion_rate": 0.2, "conversion_agreement": agreement, "seed": seed}
    table, _ = read(synthetic_table(**SMALL, **settings, **given))
    assert table["conversion"].to_numpy().mean() == pytest.approx(0.2, abs=0.012)


def test_conversions_agree_with_clicks_as_far_as_asked():
    """The click's own true logit ranks the conversions of clicked rows: rightly, not at all, and wrongly."""
    ranked = {}
    for agreement in (1.0, 0.6, 0.0, -0.6):
        given = {"conversion_rate": 0.3, "conversion_agreement": agreement, "positive_rate": 0.5}
        source = synthetic_table(**SMALL, **given)
        table, _ = read(source, columns=all_columns(source) | {"conversion": "number"})
        clicked = table["label"].to_numpy() == 1
        p, y = table[TRUE_PROBABILITY].to_numpy()[clicked], table["conversion"].to_numpy()[clicked]
        ranked[agreement] = auc(y, p)
        assert source.info.best_auc == synthetic_table(**SMALL, positive_rate=0.5).info.best_auc
    assert ranked[1.0] > 0.75
    assert 0.65 < ranked[0.6] < ranked[1.0] - 0.02
    assert 0.4 < ranked[0.0] < 0.6
    assert ranked[-0.6] < 0.35


def test_values_that_come_later_convert_by_effects_of_their_own():
    """Three days on, when nearly every value is new, the click's true logit still says nothing of conversions."""
    given = {"conversion_rate": 0.3, "positive_rate": 0.5, "drift": 0.9, "day": 3, "num_pairs": 0}
    source = synthetic_table(**{**SMALL, **given, "num_rows": 20_000})
    table, _ = read(source, columns=all_columns(source) | {"conversion": "number"})
    clicked = table["label"].to_numpy() == 1
    p, y = table[TRUE_PROBABILITY].to_numpy()[clicked], table["conversion"].to_numpy()[clicked]
    assert auc(y, p) == pytest.approx(0.5, abs=0.04)


def test_wrong_agreement():
    with pytest.raises(ValueError, match=r"conversion_agreement=1\.5; accepted: -1 to 1"):
        synthetic_table(**SMALL, conversion_rate=0.2, conversion_agreement=1.5)
