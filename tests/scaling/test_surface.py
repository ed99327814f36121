"""Laws of two sizes: planted ones are found again, and the form, the best pair and the bands are what they should be."""

import numpy as np
import pytest
from scipy import stats

from lmctr.scaling.surface import SURFACES, best_at_flops, best_split, fit_surface

U, V = (grid.ravel() for grid in np.meshgrid([100, 200, 400, 800, 1600], [1, 2, 4, 8, 16]))
PLANTED = {
    "additive": lambda u, v: 0.9 * u**-0.5 + 0.1 * v**-0.8,
    "additive_constant": lambda u, v: 0.15 + 0.9 * u**-0.5 + 0.1 * v**-0.8,
    "multiplicative": lambda u, v: 0.6 * u**-0.2 * v**-0.1,
    "multiplicative_constant": lambda u, v: 0.1 + 0.9 * u**-0.4 * v**-0.3,
}


def noisy(form, spread=0.002, seed=0):
    return PLANTED[form](U, V) * np.exp(np.random.default_rng(seed).normal(0, spread, len(U)))


@pytest.mark.parametrize("form", PLANTED)
def test_a_planted_law_is_chosen_and_found(form):
    fit = fit_surface(U, V, noisy(form))
    assert fit.form.removesuffix("_constant") == form.removesuffix("_constant")
    named = fit_surface(U, V, noisy(form), form=form)
    exponents = {"additive": (0.5, 0.8), "multiplicative": (0.2, 0.1), "multiplicative_constant": (0.4, 0.3)}
    expected = exponents.get(form, (0.5, 0.8))
    assert (named.parameters["alpha"], named.parameters["beta"]) == pytest.approx(expected, rel=0.15)
    np.testing.assert_allclose(named.predict(3200, 32), PLANTED[form](3200.0, 32.0), rtol=0.02)
    assert named.r2 > 0.99


def test_leave_one_out_is_that():
    """Against fits without each pair in turn, by hand."""
    y = noisy("additive", 0.01)
    v = np.concatenate([V, V[:3]])
    u, y = np.concatenate([U, U[:3]]), np.concatenate([y, y[:3] * 1.01])  # three pairs measured twice leave together
    fit = fit_surface(u, v, y, form="additive")
    assert len(fit.loo_each) == 25
    errors, chosen = [], [0, 6, 12, 18, 24]
    for pair in np.unique(np.stack([u, v], 1), axis=0)[chosen]:
        out = (u == pair[0]) & (v == pair[1])
        other = fit_surface(u[~out], v[~out], y[~out], form="additive")
        errors.append(np.square(np.log(y[out]) - np.log(other.predict(u[out], v[out]))).mean())
    np.testing.assert_allclose(fit.loo_each[chosen], errors, rtol=0.05, atol=1e-9)
    assert fit.loo == pytest.approx(fit.loo_each.mean())


def test_the_best_pair_at_equal_products():
    """Of B u^-a + C v^-b with u v = P: a B u^-a = b C v^-b."""
    fit = fit_surface(U, V, PLANTED["additive"](U, V), form="additive")
    found = best_split(fit, 1600.0)
    assert found.is_inner
    assert found.u * found.v == pytest.approx(1600)
    assert 0.5 * 0.9 * found.u**-0.5 == pytest.approx(0.8 * 0.1 * found.v**-0.8, rel=0.02)
    flat = best_split(fit_surface(U, V, PLANTED["multiplicative"](U, V)), 1600.0)
    assert not flat.is_inner
    assert flat.u == pytest.approx(1600)  # the steeper size takes all
    with pytest.raises(ValueError, match="no measured pair of sizes comes near"):
        best_split(fit, 1e9)


def test_the_band_holds_the_truth_and_narrows_with_the_noise():
    widths = []
    for spread in (0.002, 0.02):
        fit = fit_surface(U, V, 1 - noisy("additive", spread), form="additive", complement=True)
        low, high = fit.band([400.0, 1600.0], [4.0, 16.0], num_samples=40)
        truth = 1 - PLANTED["additive"](np.array([400.0, 1600.0]), np.array([4.0, 16.0]))
        assert (low < truth + 1e-3).all()
        assert (truth - 1e-3 < high).all()
        widths.append(float((high - low).mean()))
    assert widths[1] > 3 * widths[0]


@pytest.mark.parametrize(("complement", "absolute"), [(False, False), (True, False), (False, True)])
def test_bands_are_percentiles_widened_by_students_quantile(complement, absolute):
    few = slice(0, 7)
    falling = noisy("multiplicative", 0.02)[few]
    y = 1 - falling if complement else falling
    fit = fit_surface(U[few], V[few], y, form="multiplicative", complement=complement, absolute=absolute)
    at = np.array([400.0, 1600.0]), np.array([4.0, 16.0])
    low, high = fit.band(*at, level=0.8, num_samples=30, seed=1)
    refits = fit.bootstrap(30, seed=1)
    falls = (lambda values: 1 - values) if complement else (lambda values: values)
    to, back = (lambda v: v, lambda v: v) if absolute else (np.log, np.exp)
    ratio = stats.t.ppf(0.9, 4) / stats.norm.ppf(0.9)  # seven points, three parameters
    drawn, center = to(falls(np.stack([law.predict(*at) for law in refits]))), to(falls(fit.predict(*at)))
    ends = sorted((0.1, 0.9), reverse=complement)
    expected = [falls(back(center + (np.quantile(drawn, end, axis=0) - center) * ratio)) for end in ends]
    np.testing.assert_allclose([low, high], expected, rtol=1e-9)
    np.testing.assert_array_equal(fit.band(*at, level=0.8, refits=refits), [low, high])


def test_absolute_residuals_fit_the_metric_itself():
    y = PLANTED["multiplicative"](U, V) + np.random.default_rng(1).normal(0, 1e-4, len(U))
    fit = fit_surface(U, V, y, form="multiplicative", absolute=True)
    np.testing.assert_allclose(fit.residuals, y - fit.predict(U, V), atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"form": "linear"}, "form must be auto or one of"),
        ({"v": np.full(25, 3.0)}, "v is 3 at every point"),
        ({"y": np.ones(24)}, "equal length"),
        ({"u": -U}, "u must be positive"),
        ({"y": np.full(25, 1.5), "complement": True}, "1 - y must be positive"),
        ({"y": np.full(25, 0.5)}, "y is 0.5 at all 25 points"),
    ],
)
def test_wrong_points(change, words):
    given = {"u": U, "v": V, "y": noisy("additive"), **change}
    with pytest.raises(ValueError, match=words):
        fit_surface(**given)


def test_too_few_pairs_for_a_form():
    few = slice(0, 6)
    with pytest.raises(ValueError, match="additive_constant needs 7 different pairs of sizes, there are 6"):
        fit_surface([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2], noisy("additive")[few], form="additive_constant")
    fit = fit_surface([1, 1, 2, 2, 3, 3], [1, 2, 1, 2, 1, 2], [0.9, 0.8, 0.7, 0.65, 0.6, 0.55])
    assert {row["form"] for row in fit.candidates} < set(SURFACES)


def test_the_best_pair_at_equal_flops_is_read_off_the_counted_ones():
    """Where a second layer costs ten times as much as the first, one layer of more length is better, although at equal products it is not."""
    u, v = (axis.ravel() for axis in np.meshgrid([100.0, 200.0, 400.0, 800.0], [1.0, 2.0, 4.0]))
    fit = fit_surface(u, v, 0.5 * u**-0.3 + 0.5 * v**-0.6 * 0.2, form="additive")
    equal = best_at_flops(fit, u * v, 400.0)
    options = {layers: 400.0 / layers for layers in (1.0, 2.0, 4.0)}
    best = min(options, key=lambda layers: fit.predict(options[layers], layers))
    assert (equal.v, equal.u, equal.is_inner) == (best, pytest.approx(options[best]), True)
    assert best > 1
    dear = best_at_flops(fit, u * (1 + 10 * (v - 1)), 1000.0)
    assert (dear.u, dear.v, dear.is_inner) == (pytest.approx(800.0), 1.0, False)
    between = best_at_flops(fit, u**2 * 1e3 ** (v - 1), 300.0**2)
    assert (between.u, between.v) == (pytest.approx(300.0), 1.0)
    for flops, budget, message in ((u * v, 50.0, "budget: 50 FLOPs are fewer"), (1 / u, 1.0, "rise with it")):
        with pytest.raises(ValueError, match=message):
            best_at_flops(fit, flops, budget)
