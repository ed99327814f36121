"""Machine cost between measured sizes."""

import numpy as np
import pytest

from lmctr.scaling.cost_curve import CostCurve


def test_a_power_law_is_interpolated_exactly():
    flops = np.array([1e6, 3e6, 2e7])
    curve = CostCurve(flops[[2, 0, 1]], (5e-3 * flops**0.7)[[2, 0, 1]])
    for x in (1e6, 1.7e6, 3e6, 1e7, 2e7):
        assert curve(x) == pytest.approx(5e-3 * x**0.7)
    assert repr(curve) == "CostCurve(3 sizes from 1e+06 to 2e+07 FLOPs, 0 measured, extrapolate=False)"
    assert (curve.low, curve.high) == (pytest.approx(1e6), pytest.approx(2e7))


def test_between_two_points_by_hand():
    curve = CostCurve([1e6, 1e8], [2.0, 50.0])
    assert curve(1e7) == pytest.approx(10.0)  # the geometric middle of both
    # equal FLOPs share the geometric mean of their costs, a measured size keeps its own
    curve = CostCurve([1e6, 1e6, 1e8], [2.0, 8.0, 50.0], measured={(9, 1): 3.0})
    assert curve(1e6) == pytest.approx(4.0)
    assert curve(1e6, (9, 1)) == 3.0
    assert curve(1e12, (9, 1)) == 3.0
    assert curve.covers(1e12, (9, 1))


def test_nothing_is_extrapolated_unless_asked_for():
    with pytest.raises(ValueError, match=r"flops 2e\+08 lie outside the measured range 1e\+06 to 1e\+08"):
        CostCurve([1e6, 1e8], [2.0, 50.0])(2e8)
    curve = CostCurve([1e6, 1e7, 1e8], [1.0, 10.0, 1000.0], extrapolate=True)
    assert curve(1e9) == pytest.approx(1e5)  # with the slope of the last two
    assert curve(1e5) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("flops", "cost", "match"),
    [
        ([1e6, 0.0], [1, 2], "flops must be positive and finite, got 0.0 at point 1"),
        ([1e6, 2e6], [1, float("nan")], "cost must be positive and finite, got nan at point 1"),
        ([1e6, 1e6], [1, 2], "at least 2 different FLOPs"),
        ([1e6], [1, 2], "lists of equal length"),
    ],
)
def test_bad_points(flops, cost, match):
    with pytest.raises(ValueError, match=match):
        CostCurve(flops, cost)
