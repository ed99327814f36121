"""The paper's grid and arithmetic; the choice, the front and the allocation against brute force."""

import itertools
import math
import random

import numpy as np
import pytest

from lmctr.scaling.allocation import allocate
from lmctr.scaling.design import Design, DesignGrid, choose_design, mlp_flops, pareto_front
from lmctr.scaling.revenue import compare_metrics, fit_revenue

BASE = (3328, 1024, 256, 256, 256, 1)


def test_flops_of_the_paper():
    assert f"{mlp_flops(BASE) / 1e6:.2f}" == "7.60"
    assert f"{mlp_flops([5128, 1024, 512, 512, 512, 1]) / 1e6:.2f}" == "12.60"
    assert f"{mlp_flops([10128, 1024, 512, 512, 512, 1]) / 1e6:.1f}" == "22.8"  # the text says 22.9M
    with pytest.raises(ValueError, match="sizes must be"):
        mlp_flops([10])
    for sizes in ([3.5, 1], "312-16"):
        with pytest.raises(ValueError, match="whole numbers from 1"):
            mlp_flops(sizes)


def test_the_grid_of_appendix_b1():
    grid = DesignGrid().configurations()
    free = DesignGrid(ratio_on_input=False).configurations()
    assert (len(grid), len(free)) == (1553, 9191)
    assert len(DesignGrid(ratio_on_input=False, max_embedding_dim=None).configurations()) == 9241
    assert len(DesignGrid(max_embedding_dim=None).configurations()) == 1553
    assert len(set(grid)) == 1553
    assert set(grid) <= set(free)
    assert BASE in grid
    assert (16128, 1024, 512, 512, 512, 1) in grid
    for size in grid:
        assert (size[0] - 128) % 3200 == 0
        assert size[1] <= 1024
        assert size[-1] == 1
        assert mlp_flops(size) <= 143e6
        assert all(w % 128 == 0 for w in size[1:-1])
        assert all(a >= b >= a / 20 for a, b in itertools.pairwise(size[:-1]))


def test_a_small_grid_against_brute_force():
    grid = DesignGrid(
        num_sparse_features=3, num_dense=1, embedding_step=2, width_step=2, num_hidden_layers=2, max_first_width=8,
        ratio=3, max_flops=300,
    )  # fmt: skip
    expected = {
        (e * 3 + 1, a, b, 1)
        for e, a, b in itertools.product(range(2, 200, 2), range(2, 9, 2), range(2, 9, 2))
        if b <= a <= e * 3 + 1 and 3 * a >= e * 3 + 1 and 3 * b >= a and mlp_flops((e * 3 + 1, a, b, 1)) <= 300
    }
    assert set(grid) == expected
    assert len(grid.configurations()) == len(expected) > 5


def test_roi_constraint_against_a_loop():
    grid = DesignGrid().configurations()

    def gain(size):
        return 100 - 3e3 * mlp_flops(size) ** -0.4

    def cost(size):  # not monotone in the FLOPs
        return mlp_flops(size) / 1e7 + len(set(size)) + 0.001 * size[2]

    for roi in (0.01, 0.2):
        result = choose_design(grid, gain, cost, roi, base=BASE)
        best = None
        for size in grid:
            g, c = gain(size) - gain(BASE), cost(size) - cost(BASE)
            feasible = g >= 0 if c <= 0 else g / c >= roi
            if feasible and (best is None or (g, -c) > best[:2]):
                best = (g, -c, size)
        assert result.best.sizes == best[2]
        assert (result.best.gain, result.best.cost) == (pytest.approx(best[0]), pytest.approx(-best[1]))
        assert result.best.flops == mlp_flops(best[2])
        assert result.base.sizes == BASE
    assert result.num_candidates == 1553 > result.num_feasible > 0
    absolute = choose_design(grid, gain, cost, 0.5, relative=False)
    assert absolute.best.gain == pytest.approx(gain(absolute.best.sizes))
    assert absolute.best.roi >= 0.5


def test_the_pareto_front_against_brute_force():
    rng = random.Random(0)
    designs = [Design(str(i), rng.randint(0, 15), rng.randint(0, 15)) for i in range(80)]
    front = pareto_front(designs)
    values = {(x.cost, x.gain) for x in designs}
    expected = {
        (c, g) for c, g in values if not any((c2 <= c and g2 > g) or (c2 < c and g2 >= g) for c2, g2 in values)
    }
    assert [(x.cost, x.gain) for x in front] == sorted(expected)


def test_bad_designs():
    one = [(4, 2, 1)]
    with pytest.raises(ValueError, match="there are no candidates"):
        choose_design([], len, len, 1, base=BASE)
    with pytest.raises(ValueError, match="base is missing"):
        choose_design(one, len, len, 1)
    with pytest.raises(ValueError, match=r"gain of \[4, 2, 1\] must be finite, got nan"):
        choose_design(one, lambda size: math.nan, len, 1, relative=False)
    with pytest.raises(ValueError, match=r"cost of .* not negative, got -1.0"):
        choose_design(one, len, lambda size: -1, 1, relative=False)
    with pytest.raises(ValueError, match="no candidate of 1 reaches ROI 5: the highest ROI of a gain is 1"):
        choose_design(one, len, len, 5, relative=False)
    with pytest.raises(ValueError, match="none has a gain"):
        choose_design(one, lambda size: -1, len, 5, relative=False)
    with pytest.raises(ValueError, match="ratio must be at least 1"):
        DesignGrid(ratio=0)


@pytest.mark.parametrize("seed", range(12))
def test_allocation_against_brute_force(seed):
    rng = random.Random(seed)
    whole = seed % 2  # whole numbers tie often, real numbers never
    scenarios = {
        name: [
            Design(
                f"{name}{i}",
                rng.randint(0, 12) if whole else rng.uniform(0, 12),
                rng.randint(0, 8) if whole else rng.uniform(0, 8),
            )
            for i in range(rng.randint(3, 7))
        ]
        + [Design("nothing", 0.0, 0.0)]
        for name in "abcd"[: rng.randint(1, 4)]
    }
    budget = rng.uniform(0, 20)
    result = allocate(scenarios, budget)
    best = max(
        math.fsum(x.gain for x in combination)
        for combination in itertools.product(*scenarios.values())
        if sum(x.cost for x in combination) <= budget and all(x.gain >= x.cost for x in combination)
    )
    assert result.gain == pytest.approx(best, abs=1e-9)
    assert result.cost == pytest.approx(sum(x.cost for x in result.chosen.values()))
    assert result.cost <= budget + 1e-9
    assert result.gain == pytest.approx(sum(x.gain for x in result.chosen.values()))
    assert list(result.chosen) == list(scenarios)
    assert all(design in scenarios[name] and design.gain >= design.cost for name, design in result.chosen.items())


def test_allocation_meets_a_budget_exactly_and_takes_two_whole_grids():
    cheap = {name: [Design("x", 1.0, 0.1)] for name in "abc"}
    assert allocate(cheap, 0.3).cost == pytest.approx(0.3)  # 0.1 + 0.1 + 0.1 > 0.3 in floating point
    grid = DesignGrid().configurations()
    designs = [Design(s, 60 - 4e3 * mlp_flops(s) ** -0.4, mlp_flops(s) / 1e7 + s[2] / 1e3) for s in grid]
    other = [Design(x.sizes, 0.7 * x.gain, 1.1 * x.cost) for x in designs]
    result = allocate({"matching": designs, "pre-ranking": other}, 8.0)
    assert 7.9 < result.cost <= 8
    assert result.num_candidates[0] == 2 * 1553


def test_bad_allocations():
    good = [Design("x", 2.0, 1.0)]
    with pytest.raises(ValueError, match="budget 1 is too small: the cheapest admissible designs cost 2"):
        allocate({"a": good, "b": good}, 1)
    with pytest.raises(ValueError, match=r"scenario 'b' has no candidate with ROI of at least 1: the highest is 0.5"):
        allocate({"a": good, "b": [Design("y", 1.0, 2.0)]}, 9)
    with pytest.raises(ValueError, match="it has no candidates"):
        allocate({"a": []}, 9)
    with pytest.raises(ValueError, match="scenarios: there are none"):
        allocate({}, 9)
    with pytest.raises(ValueError, match="budget must be finite"):
        allocate({"a": good}, math.inf)
    with pytest.raises(ValueError, match="scenario 'a', x: gain and cost must be finite"):
        allocate({"a": [Design("x", math.nan, 1.0)]}, 9)


def test_metric_to_revenue():
    rng = np.random.default_rng(0)
    metric = rng.uniform(0.8, 0.9, 40)
    revenue = 30 * metric - 20 + rng.normal(0, 0.2, 40)
    fit = fit_revenue(metric, revenue)
    slope, intercept = np.polyfit(metric, revenue, 1)
    deviation = np.abs(np.polyval((slope, intercept), metric) - revenue)
    assert (fit.slope, fit.intercept) == (pytest.approx(slope), pytest.approx(intercept))
    assert fit.r2 == pytest.approx(np.corrcoef(metric, revenue)[0, 1] ** 2)
    assert (fit.mean_deviation, fit.max_deviation) == (pytest.approx(deviation.mean()), pytest.approx(deviation.max()))
    assert fit.gain(0.9, 0.85) == pytest.approx(fit.predict(0.9) - fit.predict(0.85))
    fits = compare_metrics(
        {"opa": rng.random(40), "revenue_ratio": metric, "ndcg": metric + rng.normal(0, 0.03, 40)}, revenue
    )
    assert list(fits) == ["revenue_ratio", "ndcg", "opa"]
    assert fits["revenue_ratio"] == fit


def test_bad_pairs():
    with pytest.raises(ValueError, match="at least 3 pairs, got 2"):
        fit_revenue([1, 2], [1, 2])
    with pytest.raises(ValueError, match="metric must be finite, got nan"):
        fit_revenue([1, np.nan, 2], [1, 2, 3])
    with pytest.raises(ValueError, match=r"recall: metric has the same value, 1.0, in all 3 pairs"):
        compare_metrics({"recall": [1, 1, 1]}, [1, 2, 3])
    with pytest.raises(ValueError, match="equal length"):
        fit_revenue([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="none to compare"):
        compare_metrics({}, [1, 2])


def test_the_highest_return_of_a_gain_that_saves_is_infinite():
    """It was negative: a gain over a saving."""
    gain, cost = {"a": 1.0, "b": 2.0, "c": 3.0}, {"a": 2.0, "b": 1.0, "c": 9.0}
    found = choose_design(["a", "c"], gain.__getitem__, cost.__getitem__, 0.1, base="a")
    assert found.highest_roi == pytest.approx(2 / 7)
    assert choose_design(list("abc"), gain.__getitem__, cost.__getitem__, 0.1, base="a").highest_roi == float("inf")
