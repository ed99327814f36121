"""Fits of scaling laws recover known curves from noisy points."""

import json
import math
import time

import numpy as np
import pytest
from scipy import stats

from lmctr.scaling.bnsl import bnsl
from lmctr.scaling.fits import (
    OverfitWarning,
    ScalingFit,
    _simplest,
    extrapolation_error,
    fit_scaling_law,
    power_law,
    read_points,
)

ONE = {"a": 0.02, "b": 4.0, "c0": 0.25, "c": [0.5], "d": [1e7], "f": [0.2]}
TWO = {"a": 0.01, "b": 0.6, "c0": 0.05, "c": [0.55, -0.5], "d": [3e6, 1e8], "f": [0.1, 0.1]}


def noisy(parameters, x, noise, seed=0):
    return bnsl(x, **parameters) * np.exp(np.random.default_rng(seed).normal(0, noise, len(x)))


def test_the_curve_against_equation_6():
    x = 3.7e6
    value = TWO["a"] + TWO["b"] * x ** -TWO["c0"]
    bends = 1.0
    for c, d, f in zip(TWO["c"], TWO["d"], TWO["f"]):
        bends *= (1 + (x / d) ** (1 / f)) ** (-c * f)
    value = TWO["a"] + TWO["b"] * x ** -TWO["c0"] * bends
    assert bnsl(x, **TWO) == pytest.approx(value, rel=1e-12)
    assert np.isfinite(bnsl(np.array([1e-300, 1e300]), 0, 1, 1, [1], [1e3], [1e-3])).all()


def test_fat_power_law():
    assert power_law([52e6, 0.54e9, 1.5e9], 5.81e-5, 0.433).round(3).tolist() == [0.127, 0.351, 0.546]
    x = np.array([52e6, 0.1e9, 0.54e9, 1.5e9])
    fit = fit_scaling_law(x, power_law(x, 5.81e-5, 0.433), law="power")
    assert (fit.parameters["b"], -fit.parameters["c0"]) == (pytest.approx(5.81e-5), pytest.approx(0.433))
    assert fit.r2 == pytest.approx(1)


@pytest.mark.parametrize("absolute", [False, True])
def test_power_law_with_a_constant(absolute):
    x = np.geomspace(1e5, 1e9, 14)
    truth = {"a": 0.03, "b": 20.0, "c0": 0.4, "c": [], "d": [], "f": []}
    fit = fit_scaling_law(x, noisy(truth, x, 0.005), law="power_constant", absolute=absolute)
    assert fit.parameters["a"] == pytest.approx(0.03, rel=0.1)
    assert fit.parameters["c0"] == pytest.approx(0.4, rel=0.05)


def test_one_break_is_found_and_chosen():
    x = np.geomspace(1e5, 1e9, 16)
    fit = fit_scaling_law(x, 1 - noisy(ONE, x, 0.005), complement=True, max_breaks=2)
    assert (fit.law, fit.breaks) == ("bnsl", 1)
    assert fit.parameters["c0"] == pytest.approx(0.25, rel=0.1)
    assert fit.parameters["c"][0] == pytest.approx(0.5, rel=0.15)
    assert math.log(fit.parameters["d"][0]) == pytest.approx(math.log(1e7), abs=0.3)
    np.testing.assert_allclose(1 - fit.predict(x), bnsl(x, **ONE), rtol=0.02)
    assert fit.r2 > 0.999
    assert [(row["law"], row["breaks"]) for row in fit.candidates][:3] == [
        ("power", 0),
        ("power_constant", 0),
        ("bnsl", 1),
    ]


def test_two_breaks_are_found_and_chosen():
    x = np.geomspace(1e5, 1e10, 30)
    fit = fit_scaling_law(x, noisy(TWO, x, 0.005), law="bnsl", max_breaks=3)
    assert fit.breaks == 2
    np.testing.assert_allclose(np.log(fit.parameters["d"]), np.log(TWO["d"]), atol=0.3)
    slopes, expected = np.cumsum([fit.parameters["c0"], *fit.parameters["c"]]), [0.05, 0.6, 0.1]
    np.testing.assert_allclose(slopes, expected, atol=0.06)
    np.testing.assert_allclose(fit.predict(x), bnsl(x, **TWO), rtol=0.02)


def test_a_pure_power_law_is_not_broken():
    x = np.geomspace(1e5, 1e9, 12)
    for seed in range(3):
        fit = fit_scaling_law(x, noisy({**ONE, "a": 0.0, "c": [0.0]}, x, 0.01, seed), restarts=2, hops=3)
        assert fit.law == "power"
        assert all(row["loo"] is None for row in fit.candidates)


def test_a_break_that_leaves_the_numbers_stays_one():
    """Too smooth a break drifts away until d is no float: the curve of the parameters must be the fitted one."""
    x = np.geomspace(1e3, 1e9, 9)
    y = (0.1 + 0.06 * x**-0.12) * np.exp(np.random.default_rng(2).normal(0, 0.02, 9))
    fit = fit_scaling_law(x, y, law="bnsl", breaks=1, absolute=True)
    assert np.isfinite(fit.parameters["d"]).all()
    np.testing.assert_allclose(y - fit.predict(x), fit.residuals, atol=1e-9)


def test_leave_one_out_takes_the_simplest_law_within_one_standard_error():
    good, slightly_worse = np.array([1.0, 2, 3, 4]), np.array([1.1, 1.8, 3.4, 3.9])
    assert _simplest([good + 5, slightly_worse, good]) == 1
    assert _simplest([good + [4, 5, 5, 6], good]) == 1


def test_leave_one_out_finds_the_break():
    x = np.geomspace(1e5, 1e9, 14)
    fit = fit_scaling_law(x, noisy(ONE, x, 0.003), criterion="loo", max_breaks=1, restarts=2, hops=4)
    assert (fit.law, fit.breaks) == ("bnsl", 1)
    assert fit.loo < 0.001


def test_ten_points_within_a_minute():
    x = np.geomspace(1e6, 1.43e8, 10)
    y = 1 - noisy(ONE, x, 0.002)
    start = time.process_time()
    fit_scaling_law(x, y, complement=True)
    with pytest.warns(OverfitWarning, match="9 parameters need 11 distinct values of x, there are 10"):
        fit = fit_scaling_law(x, y, law="bnsl", breaks=2, complement=True, allow_overfit=True)
    assert time.process_time() - start < 60
    assert fit.breaks == 2
    assert fit.r2 > 0.99


def test_six_breaks_on_ten_points_only_by_flag():
    x = np.geomspace(1e6, 1.43e8, 10)
    y = 1 - noisy(ONE, x, 0.002)
    with pytest.raises(ValueError, match="21 parameters need 23 distinct values of x, there are 10"):
        fit_scaling_law(x, y, law="bnsl", breaks=6, complement=True)
    with pytest.warns(OverfitWarning):
        fit = fit_scaling_law(x, y, law="bnsl", breaks=6, complement=True, allow_overfit=True, restarts=1, hops=1)
    assert math.isnan(fit.aicc)
    with pytest.raises(ValueError, match="more points than parameters"):
        fit.band(x)


def test_repeated_sizes_do_not_allow_more_breaks():
    x = np.repeat(np.geomspace(1e6, 1e8, 7), 5)
    with pytest.raises(ValueError, match="6 parameters need 8 distinct values of x, there are 7"):
        fit_scaling_law(x, noisy(ONE, x, 0.01), law="bnsl", breaks=1)


@pytest.mark.parametrize(("complement", "absolute"), [(False, False), (True, False), (False, True)])
def test_bands_are_percentiles_widened_by_students_quantile(complement, absolute):
    x = np.geomspace(1e6, 1e9, 7)
    falling = 5 * x**-0.2 * np.exp(np.random.default_rng(3).normal(0, 0.02, 7))
    y = 1 - falling if complement else falling
    fit = fit_scaling_law(x, y, law="power", complement=complement, absolute=absolute)
    at = np.array([1e7, 1e10])
    low, high = fit.band(at, level=0.8, num_samples=50, seed=1)
    drawn = np.stack([law.predict(at) for law in fit.bootstrap(50, seed=1)])
    curve, falls = fit.predict(at), (lambda values: 1 - values) if complement else (lambda values: values)
    to, back = (lambda v: v, lambda v: v) if absolute else (np.log, np.exp)
    ratio = stats.t.ppf(0.9, 5) / stats.norm.ppf(0.9)
    assert ratio > 1.1
    ends = sorted((0.1, 0.9), reverse=complement)
    center = to(falls(curve))
    expected = [falls(back(center + (np.quantile(to(falls(drawn)), end, axis=0) - center) * ratio)) for end in ends]
    np.testing.assert_allclose([low, high], expected, rtol=1e-9)
    assert (low < curve).all()
    assert (curve < high).all()


def test_bands_cover_the_truth():
    x, at = np.geomspace(1e5, 1e9, 14), np.array([2e5, 1e7, 5e8])
    truth = {"a": 0.03, "b": 20.0, "c0": 0.4, "c": [], "d": [], "f": []}
    inside = []
    for seed in range(8):
        fit = fit_scaling_law(x, noisy(truth, x, 0.02, seed), law="power_constant", restarts=1, hops=1)
        low, high = fit.band(at, level=0.9, num_samples=60, seed=seed)
        assert (low < high).all()
        inside.append((low <= bnsl(at, **truth)) & (bnsl(at, **truth) <= high))
    assert 0.7 <= np.mean(inside) <= 1
    wide = fit.band(at, level=0.99, num_samples=60, seed=7)
    assert (wide[0] <= low).all()
    assert (wide[1] >= high).all()


def test_held_out_sizes():
    x = np.geomspace(1e5, 1e9, 14)
    truth = {"a": 0.03, "b": 20.0, "c0": 0.4, "c": [], "d": [], "f": []}
    y = 1 - noisy(truth, x, 0.003)
    result = extrapolation_error(x, y, num_held_out=3, law="power_constant", complement=True)
    np.testing.assert_array_equal(result.x, x[-3:])
    assert result.fit.x.max() < x[-3]
    assert result.mean_error < 0.3 * result.constant_error
    assert result.mean_error == pytest.approx(np.abs(result.predicted - y[-3:]).mean())
    with pytest.raises(
        ValueError,
        match="num_held_out: 11 sizes of 14 cannot be held out; accepted: 1 to 10, as a law needs 4 of them",
    ):
        extrapolation_error(x, y, num_held_out=11)
    with pytest.raises(ValueError, match="no size can be held out of 4: a law needs 4 others"):
        extrapolation_error(x[:4], y[:4], num_held_out=1)


def test_round_trip_and_csv(tmp_path):
    path = tmp_path / "points.csv"
    x = np.geomspace(1e5, 1e8, 6)
    lines = [f"{a},{b}" for a, b in zip(x, 1e3 * x**-0.5)]
    path.write_text("flops,loss\n" + "\n".join(lines))
    fit = fit_scaling_law(*read_points(path, "flops", "loss"))
    again = ScalingFit.from_dict(json.loads(json.dumps(fit.to_dict())))
    np.testing.assert_array_equal(again.predict(x), fit.predict(x))
    assert fit.parameters["c0"] == pytest.approx(0.5)
    with pytest.raises(ValueError, match="no column 'auc'; its columns: flops, loss"):
        read_points(path, "flops", "auc")
    path.write_text("flops,loss\n1,2\n3,x\n")
    with pytest.raises(ValueError, match="line 3: loss is no number: 'x'"):
        read_points(path, "flops", "loss")


@pytest.mark.parametrize(
    ("x", "y", "options", "match"),
    [
        ([1, 2, 0, 4], [4, 3, 2, 1], {}, "x must be positive and finite, got 0.0 at point 2"),
        ([1, 2, -3, 4], [4, 3, 2, 1], {}, "x must be positive"),
        ([1, 2, 3, 4], [4, 3, np.nan, 1], {}, "y must be positive and finite, got nan at point 2"),
        ([1, 2, 3, 4], [0.9, 0.95, 1.0, 0.8], {"complement": True}, "1 - y must be positive"),
        (["a", 2, 3, 4], [4, 3, 2, 1], {}, "x and y must be lists of numbers of equal length: could not"),
        ([1, 2, 3], [3, 2, 1], {}, "3 distinct values: a power law needs at least 4"),
        ([1, 2, 3, 4], [4, 3, 2, 1], {"law": "power_constant"}, "3 parameters need 5 distinct"),
        ([1, 2, 3, 4, 5], [0.1, 0.2, 0.3, 0.4, 0.5], {}, "y grows with x: pass complement=True"),
        ([1, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0.1], {"complement": True}, "1 - y grows; pass complement=False"),
        ([1, 2, 3, 4, 5], [0.5, 0.4, 0.3, 0.2, 0.1], {"complement": True}, "only where a lower y is the better one"),
        ([1, 2, 3, 4, 5], [0.7] * 5, {"complement": True}, "y is 0.7 at all 5 points: there is nothing"),
        ([1, 2, 3, 4, 5], [0.3, 0.1 + 0.2, 0.3, 0.3, 0.3], {"law": "power"}, "y is 0.3 at all 5 points"),
        ([1, 2, 3, 4], [[4, 3, 2, 1]], {}, "lists of equal length"),
        ([1, 2, 3, 4], [4, 3, 2, 1], {"law": "log"}, "law must be one of auto, power"),
        ([1, 2, 3, 4], [4, 3, 2, 1], {"criterion": "bic"}, "criterion must be"),
        ([1, 2, 3, 4], [4, 3, 2, 1], {"breaks": 1}, "breaks is of law='bnsl' only"),
        ([1, 2, 3, 4], [4, 3, 2, 1], {"law": "bnsl", "breaks": -1}, "breaks must be an integer"),
    ],
)
def test_bad_input(x, y, options, match):
    with pytest.raises(ValueError, match=match):
        fit_scaling_law(x, y, **options)


@pytest.mark.parametrize("name", ["restarts", "hops"])
def test_a_search_without_starts_is_refused(name):
    x = np.geomspace(1e6, 1e9, 7)
    with pytest.raises(ValueError, match=f"{name} must be at least 1, got 0"):
        fit_scaling_law(x, 5 * x**-0.2, law="power_constant", **{name: 0})
