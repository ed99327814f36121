"""The generated cascade: stages, rank index, eCPM, what is reachable, and what the components are."""

import numpy as np
import pytest

from lmctr.data import ImpressionStore, ImpressionView
from lmctr.data.synthetic.cascade import SCENARIOS, SyntheticCascade, _World, synthetic_cascade

SMALL = {
    "num_impressions": 300,
    "num_users": 200,
    "num_ads": 120,
    "num_matched": 60,
    "num_preranked": 30,
    "num_ranked": 10,
    "num_components": 12,
}


def gathered(**options):
    blocks = list(synthetic_cascade(**SMALL | options).blocks())
    return {
        name: np.concatenate([getattr(block, name) for block in blocks])
        for name in ("counts", "ranks", "ecpm", "stages", "oracle", "split", "groups")
    }


def test_v_counts_from_the_best_place_and_stages_follow_it():
    found = gathered(ads_per_impression=[6, 16])
    assert found["counts"].min() == 6
    assert found["counts"].max() == 16
    start = 0
    for count in found["counts"]:
        own = slice(start, start + count)
        ranks, stages, ecpm = (found[name][own] for name in ("ranks", "stages", "ecpm"))
        order = np.argsort(-ranks)
        assert ranks[order].tolist() == list(range(16, 16 - count, -1))
        assert (np.diff(stages[order]) <= 0).all()  # later stages stand higher
        assert ((ecpm > 0) == (stages >= 2)).all()  # no eCPM before ranking
        ranked = order[stages[order] == 2]
        assert (np.diff(ecpm[ranked]) <= 0).all()  # ranking orders by eCPM
        top = round(count * 0.25)
        assert (stages == 3).sum() == top
        assert (stages == 2).sum() == min(round(count * 0.375), count - top)
        start += count


def test_without_noise_the_oracle_gives_the_order_and_the_log_of_the_ecpm():
    quiet = dict.fromkeys(("matching", "pre-ranking", "ranking", "mix-ranking"), 0.0)
    found = gathered(noise=quiet, value=3.0)
    paid = found["ecpm"] > 0
    np.testing.assert_allclose(np.log(found["ecpm"][paid] / 3.0), found["oracle"][paid], atol=1e-4)
    ranks, oracle = found["ranks"].reshape(-1, 16), found["oracle"].reshape(-1, 16)
    assert (np.argsort(-ranks) == np.argsort(-oracle)).all()


def test_noise_lowers_what_is_reachable():
    def share(**noise):
        found = gathered(noise=noise)
        ranks, oracle = found["ranks"].reshape(-1, 16), found["oracle"].reshape(-1, 16)
        return np.mean([np.corrcoef(a, b)[0, 1] for a, b in zip(ranks, oracle)])

    assert share(matching=0.1) > share(**{"pre-ranking": 3.0, "ranking": 3.0}) + 0.1


def test_seeds_and_parts():
    first, again, other = gathered(), gathered(), gathered(seed=1)
    for name in first:
        np.testing.assert_array_equal(first[name], again[name])
    assert not np.array_equal(first["oracle"], other["oracle"])
    assert np.bincount(first["split"]).tolist() == [240, 30, 30]
    assert synthetic_cascade(**SMALL).fingerprint == synthetic_cascade(**SMALL).fingerprint
    assert synthetic_cascade(**SMALL).fingerprint != synthetic_cascade(**SMALL, seed=1).fingerprint


def test_fewer_impressions_are_the_first_of_more():
    few, many = gathered(num_impressions=50), gathered()
    np.testing.assert_array_equal(few["oracle"], many["oracle"][: 50 * 16])


def test_scenarios_differ_in_world_value_and_traffic():
    assert set(SCENARIOS) == {"feed", "search"}
    feed, search = gathered(), gathered(scenario="search")
    assert search["ecpm"][search["ecpm"] > 0].mean() > 2 * feed["ecpm"][feed["ecpm"] > 0].mean()
    infos = [synthetic_cascade(**SMALL, scenario=name).info for name in SCENARIOS]
    assert infos[0].name != infos[1].name
    assert infos[0].extra["requests_per_second"] == 10 * infos[1].extra["requests_per_second"]
    assert infos[0].extra["decay"] == 1.0
    assert infos[1].extra["decay"] == 2.0


def test_the_value_has_the_stated_spread_and_main_effect():
    settings = synthetic_cascade(**SMALL | {"num_components": 64}).info.extra
    settings = {key: value for key, value in settings.items() if key != "requests_per_second"}
    for share in (0.0, 0.25, 1.0):
        world = _World(SyntheticCascade(**settings | {"main_share": share, "num_users": 2000, "num_ads": 1000}))
        mixed = world.user @ world.ad.T
        assert np.var(mixed) == pytest.approx((1 - share) * 1.5**2, rel=0.02, abs=1e-6)
        assert np.var(world.main) == pytest.approx(share * 1.5**2, rel=1e-6, abs=1e-9)


def test_weights_fall_as_a_power():
    settings = dict(synthetic_cascade(**SMALL | {"num_components": 32, "decay": 1.5}).info.extra)
    settings.pop("requests_per_second")
    spreads = _World(SyntheticCascade(**settings)).user.std(0)
    np.testing.assert_allclose(spreads / spreads[0], np.arange(1, 33) ** -0.75, rtol=1e-3)


def test_fields_reach_a_store_and_a_sequence_reads_the_ads():
    store = ImpressionStore.build(synthetic_cascade(**SMALL))
    values = store.processor.model_config_values()
    assert len(values["user_field_names"]) == 10
    assert len(values["ad_field_names"]) == 10
    assert values["user_sequence_tables"] == [6]  # the ad's id, after the six fields of the user
    assert store.oracle is not None
    assert ImpressionView(store).batch([0])["user_sequence_ids"].shape == (1, 1, 8)
    assert ImpressionStore.build(synthetic_cascade(**SMALL, history_length=0)).user_sequence_ids is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"scenario": "video"}, "scenario: got 'video', accepted: feed, search"),
        ({"num_ranked": 30}, "every stage passes fewer ads on"),
        ({"ads_per_impression": 100}, "stage_shares ask for 37 of 100 ads from pre-ranking, which has 30"),
        ({"ads_per_impression": [5, 3]}, "the smallest first"),
        ({"ads_per_impression": 2.5}, "ads_per_impression: got 2.5"),
        ({"stage_shares": [0.5, 0.5, 0.5]}, "stage_shares: got .* sum to 1"),
        ({"fractions": [0.5, 0.5]}, "fractions"),
        ({"noise": {"prerank": 1.0}}, "pre-ranking"),
        ({"noise": {"ranking": -1.0}}, r"noise.ranking: got -1.0"),
        ({"main_share": 1.5}, "main_share"),
        ({"spread": 0}, "spread"),
        ({"num_components": 0}, "num_components: got 0"),
        ({"decay": -1}, "decay"),
    ],
)
def test_bad_settings_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        synthetic_cascade(**SMALL | options)
