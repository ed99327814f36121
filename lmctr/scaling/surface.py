"""Laws of two sizes, such as length and layers: additive and multiplicative, chosen by their error on sizes that were left out.

With the quantity q that falls (1 - metric with `complement`) and sizes u, v:

    additive:        q = A + B u^-alpha + C v^-beta      each size has a part of its own: at equal u v there is a best pair
    multiplicative:  q = A + B u^-alpha v^-beta          one size can stand in for the other: at equal u v the better one takes all

each also without the constant A. A, B and C are not negative, and neither are the exponents.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares, nnls

from .bands import widened_band, widened_residuals
from .points import check_changes, check_numbers, fitted_part

__all__ = ["SURFACES", "Split", "SurfaceFit", "best_at_flops", "best_split", "fit_surface", "split_ends"]

SURFACES = {"multiplicative": 3, "additive": 4, "multiplicative_constant": 4, "additive_constant": 5}
"""Forms, and the parameters of each."""
_STARTS = (0.1, 0.4, 1.2)
_STEEPEST = 8.0  # of the exponents; beyond, a term is a step at the smallest size


@dataclass(frozen=True)
class SurfaceFit:
    """A fitted law of two sizes.

    Args:
        form: a key of `SURFACES`. parameters: {"a", "b", "alpha", "c", "beta"}, of sizes divided by `units`; c is 0 in multiplicative forms.
        units: geometric means of u and v. complement: whether 1 - metric was fitted. absolute: kind of residuals.
        u, v, y: (P,) the points, y as given. residuals: (P,) of the logarithm, or absolute ones. r2: of y.
        loo: mean squared residual of each pair of sizes under the law fitted without it; loo_each: (pairs,) of them.
        candidates: (form, parameters, loo, rms residual) of all forms that the points allow, the best first.
    """

    form: str
    parameters: dict[str, float]
    units: tuple[float, float]
    complement: bool
    absolute: bool
    u: np.ndarray
    v: np.ndarray
    y: np.ndarray
    residuals: np.ndarray
    r2: float
    loo: float
    loo_each: np.ndarray
    candidates: tuple[dict[str, Any], ...] = ()

    @property
    def num_parameters(self) -> int:
        return SURFACES[self.form]

    def predict(self, u: ArrayLike, v: ArrayLike) -> np.ndarray:
        """The metric at pairs of sizes, any shape. ValueError: sizes that are not positive."""
        u, v = (np.asarray(values, dtype=np.float64) for values in (u, v))
        for name, values in (("u", u), ("v", v)):
            check_numbers(name, values.reshape(-1))
        values = _curve(self.form, self.parameters, u / self.units[0], v / self.units[1])
        return 1.0 - values if self.complement else values

    def bootstrap(self, num_samples: int = 200, seed: int = 0) -> list[SurfaceFit]:
        """The law, in the same form, refitted to points whose residuals are drawn again, widened by sqrt(P / (P - parameters)).

        Raises:
            ValueError: fewer than 2 samples, or no more points than parameters.
        """
        spread = widened_residuals(self.residuals, self.num_parameters, num_samples)
        rng, fits = np.random.default_rng(seed), []
        scaled = self.u / self.units[0], self.v / self.units[1]
        curve = _curve(self.form, self.parameters, *scaled)
        for _ in range(num_samples):
            drawn = rng.choice(spread, len(spread))
            target = np.maximum(curve + drawn, curve * 1e-3) if self.absolute else curve * np.exp(drawn)
            parameters, _ = _fit(self.form, *scaled, target, self.absolute, self.parameters)
            fits.append(replace(self, parameters=parameters))
        return fits

    @property
    def free(self) -> int:
        """Points less parameters."""
        return len(self.u) - self.num_parameters

    def band(
        self,
        u: ArrayLike,
        v: ArrayLike,
        level: float = 0.9,
        num_samples: int = 200,
        seed: int = 0,
        refits: Sequence[SurfaceFit] | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the pointwise bootstrap band at pairs of sizes.

        The percentiles are widened, see `widened_band`; the form is not chosen again, and bands are still somewhat narrow: on 60 draws of 11
        points with 0.5 % noise bands of 90 % held the truth at four pairs in 0.85 to 0.87 (additive with a constant, given) and 0.82 to 0.87 (additive,
        given) of the draws, and where the form was chosen in 0.77 (twice the largest sizes) to 0.85.

        Args:
            u, v: sizes, of one shape. level: between 0 and 1. num_samples, seed: of `bootstrap`. refits: its laws, where there are some.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        fits = self.bootstrap(num_samples, seed) if refits is None else refits
        to, back = (np.asarray, np.asarray) if self.absolute else (np.log, np.exp)

        def curve(fit: SurfaceFit) -> np.ndarray:
            values = fit.predict(u, v)
            return to(1.0 - values if self.complement else values)

        low, high = back(widened_band(np.stack([curve(fit) for fit in fits]), curve(self), self.free, level))
        return (1.0 - high, 1.0 - low) if self.complement else (low, high)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        arrays = {name: getattr(self, name).tolist() for name in ("u", "v", "y", "residuals", "loo_each")}
        return vars(self) | arrays


def fit_surface(
    u: ArrayLike, v: ArrayLike, y: ArrayLike, form: str = "auto", complement: bool = False, absolute: bool = False
) -> SurfaceFit:
    """Fit a law of two sizes.

    Args:
        u, v: (P,) positive, of each point. y: (P,) the metric.
        form: a key of `SURFACES`; "auto" takes the one of least leave-one-out error among those that the points allow (two pairs of sizes
            more than parameters).
        complement: fit 1 - y, for metrics below 1 that grow. absolute: residuals of y in place of its logarithm.

    Raises:
        ValueError: values that are no positive numbers, lengths that differ, one value only of a size or of y, too few pairs for the form.
    """
    if form != "auto" and form not in SURFACES:
        raise ValueError(f"form must be auto or one of {', '.join(SURFACES)}, got {form!r}")
    u, v, y = (np.asarray(values, dtype=np.float64) for values in (u, v, y))
    if not u.ndim == v.ndim == y.ndim == 1 or not len(u) == len(v) == len(y):
        raise ValueError(f"u, v and y must be lists of equal length, got shapes {u.shape}, {v.shape} and {y.shape}")
    for name, values in (("u", u), ("v", v)):
        check_numbers(name, values)
    target = fitted_part(y, complement)
    check_changes("y", y)
    for name, values in (("u", u), ("v", v)):
        if len(np.unique(values)) < 2:
            raise ValueError(
                f"{name} is {values[0]:g} at every point: a law of two sizes needs two values of each at least"
            )
    if abs(size_correlation(u, v)) > 1 - 1e-9:
        raise ValueError(
            "u and v follow from each other at all points, v = k u^p: which of them helps cannot be told; measure pairs where one changes alone"
        )
    pairs = np.unique(np.stack([u, v], 1), axis=0)
    forms = [name for name in SURFACES if form in ("auto", name) and len(pairs) >= SURFACES[name] + 2]
    if not forms:
        needed = min(SURFACES[name] for name in SURFACES if form in ("auto", name)) + 2
        raise ValueError(f"{form} needs {needed} different pairs of sizes, there are {len(pairs)}; take more sizes")
    fits = sorted(
        (_fitted(name, u, v, y, target, pairs, complement, absolute) for name in forms),
        key=lambda fit: (float(f"{fit.loo:.6g}"), fit.num_parameters),  # a constant of 0 is none
    )
    rows = tuple(
        {
            "form": fit.form,
            "parameters": fit.num_parameters,
            "loo": fit.loo,
            "residual": float(np.sqrt(np.square(fit.residuals).mean())),
        }
        for fit in fits
    )
    return replace(fits[0], candidates=rows)


@dataclass(frozen=True)
class Split:
    """The pair of sizes of a law's best metric at one product of both.

    Args:
        u, v: the pair. y: the metric there. is_inner: whether it lies between the ends of what was looked at; else one size should take all.
    """

    u: float
    v: float
    y: float
    is_inner: bool


def best_split(fit: SurfaceFit, product: float) -> Split:
    """The best pair u, v with u v = product and both sizes among the measured ones.

    Raises:
        ValueError: a product that is not positive, or so that no such pair is within the measured sizes.
    """
    check_numbers("product", np.array([product]))
    low, high = split_ends(fit, product)
    if low > high:
        least, most = fit.u.min() * fit.v.min(), fit.u.max() * fit.v.max()
        raise ValueError(
            f"no measured pair of sizes comes near the product {product:g}; accepted: {least:g} to {most:g}, what the measured sizes span"
        )
    u = np.geomspace(low, high, 2001)
    values = fit.predict(u, product / u)
    place = int(np.argmax(values) if fit.complement else np.argmin(values))
    return Split(float(u[place]), float(product / u[place]), float(values[place]), 0 < place < len(u) - 1)


def size_correlation(u: np.ndarray, v: np.ndarray) -> float:
    """Of log u and log v: near 1 or -1 the points hardly tell one size's exponent from the other's."""
    return float(np.corrcoef(np.log(u), np.log(v))[0, 1])


def split_ends(fit: SurfaceFit, product: float) -> tuple[float, float]:
    """The smallest and the largest u for which u and product / u stay among the measured sizes."""
    return max(fit.u.min(), product / fit.v.max()), min(fit.u.max(), product / fit.v.min())


def best_at_flops(fit: SurfaceFit, flops: ArrayLike, budget: float) -> Split:
    """The best pair of sizes that costs at most a number of FLOPs: of each measured v the largest u that it pays for, read off the counted
    FLOPs of that v by lines between logarithms.

    Args:
        flops: (P,) counted FLOPs of the points.

    Returns:
        The pair; `is_inner` says that the budget limits u, not what was measured.

    Raises:
        ValueError: FLOPs that differ among points of one pair or do not rise with u, a budget below all.
    """
    flops = np.asarray(flops, dtype=np.float64)
    check_numbers("flops", flops)
    check_numbers("budget", np.array([budget]))
    found: list[Split] = []
    for v in np.unique(fit.v):
        of_v = np.unique(np.stack([fit.u, flops], 1)[fit.v == v], axis=0)
        u, cost = of_v.T
        if (np.diff(u) <= 0).any() or (np.diff(cost) <= 0).any():
            raise ValueError(
                f"flops: at second size {v:g} they must be one number for each first size and rise with it, got {cost.tolist()} for {u.tolist()}"
            )
        if budget < cost[0]:
            continue
        paid = float(np.exp(np.interp(np.log(budget), np.log(cost), np.log(u))))
        found.append(Split(paid, float(v), float(fit.predict(paid, v)), bool(budget < cost[-1])))
    if not found:
        raise ValueError(f"budget: {budget:g} FLOPs are fewer than any measured pair takes, {flops.min():g}")
    return (max if fit.complement else min)(found, key=lambda one: one.y)


def _curve(form: str, p: dict[str, float], u: np.ndarray, v: np.ndarray) -> np.ndarray:
    if form.startswith("additive"):
        return p["a"] + p["b"] * u ** -p["alpha"] + p["c"] * v ** -p["beta"]
    return p["a"] + p["b"] * u ** -p["alpha"] * v ** -p["beta"]


def _fit(
    form: str, u: np.ndarray, v: np.ndarray, target: np.ndarray, absolute: bool, near: dict[str, float] | None = None
) -> tuple[dict[str, float], np.ndarray]:
    """Parameters and residuals of one form on sizes about 1; `near` is the only start where it is given."""
    is_additive, has_constant = form.startswith("additive"), form.endswith("constant")
    scale = np.exp(np.log(target).mean())

    def parameters(x: np.ndarray) -> dict[str, float]:
        return dict(zip(("b", "c", "a", "alpha", "beta"), (*(x[:3] * scale), x[3], x[4])))

    def residuals(x: np.ndarray) -> np.ndarray:
        curve = _curve(form, parameters(x), u, v)
        return (target - curve) / scale if absolute else np.log(target) - np.log(np.maximum(curve, 1e-12 * scale))

    def slopes(x: np.ndarray) -> np.ndarray:
        b, c, a, alpha, beta = x
        by_u, by_v = u**-alpha, v**-beta
        if is_additive:
            curve, each = a + b * by_u + c * by_v, (by_u, by_v, 1.0, -b * by_u * log_u, -c * by_v * log_v)
        else:
            both = by_u * by_v
            curve, each = a + b * both, (both, 0.0, 1.0, -b * both * log_u, -b * both * log_v)
        below = -1.0 if absolute else -1.0 / np.maximum(curve, 1e-12)
        return np.stack([np.broadcast_to(slope * below, u.shape) for slope in each], axis=1)

    log_u, log_v = np.log(u), np.log(v)
    free = np.array([True, is_additive, has_constant, True, True])

    def solve(start: np.ndarray) -> Any:
        upper = np.array([np.inf, np.inf, np.inf, _STEEPEST, _STEEPEST])[free]
        full = start.copy()

        def of_free(x: np.ndarray) -> np.ndarray:
            full[free] = x
            return residuals(full)

        def slopes_of_free(x: np.ndarray) -> np.ndarray:
            full[free] = x
            return slopes(full)[:, free]

        inside = np.clip(start[free], 1e-9, upper - 1e-9)
        near_enough = {"ftol": 1e-12, "xtol": 1e-12, "gtol": 1e-12}
        found = least_squares(of_free, inside, slopes_of_free, bounds=(0.0, upper), x_scale="jac", **near_enough)
        full[free] = found.x
        return found.cost, full.copy()

    if near is not None:
        starts = [np.array([near["b"] / scale, near["c"] / scale, near["a"] / scale, near["alpha"], near["beta"]])]
    else:
        starts = []
        for alpha in _STARTS:
            for beta in _STARTS:
                terms = [u**-alpha, v**-beta] if is_additive else [u**-alpha * v**-beta, np.zeros_like(u)]
                columns = np.stack([*terms, np.full_like(u, float(has_constant))], 1) * scale
                weights, _ = nnls(columns / target[:, None], np.ones_like(target))
                starts.append(np.array([*weights, alpha, beta]))
    _, best = min((solve(start) for start in starts), key=lambda pair: pair[0])
    found = parameters(best)
    curve = _curve(form, found, u, v)
    return found, target - curve if absolute else np.log(target) - np.log(curve)


def _fitted(
    form: str,
    u: np.ndarray,
    v: np.ndarray,
    y: np.ndarray,
    target: np.ndarray,
    pairs: np.ndarray,
    complement: bool,
    absolute: bool,
) -> SurfaceFit:
    """One form on checked points, with its leave-one-out errors."""
    units = float(np.exp(np.log(u).mean())), float(np.exp(np.log(v).mean()))
    scaled = u / units[0], v / units[1]
    parameters, residuals = _fit(form, *scaled, target, absolute)
    errors = []
    for pair in pairs:
        out = (u == pair[0]) & (v == pair[1])
        again, _ = _fit(form, scaled[0][~out], scaled[1][~out], target[~out], absolute, parameters)
        predicted = _curve(form, again, scaled[0][out], scaled[1][out])
        gap = target[out] - predicted if absolute else np.log(target[out]) - np.log(predicted)
        errors.append(np.square(gap).mean())
    predicted = _curve(form, parameters, *scaled)
    total = np.square(target - target.mean()).sum()
    r2 = 1.0 - float(np.square(target - predicted).sum() / total) if total else float("nan")
    each = np.array(errors)
    return SurfaceFit(form, parameters, units, complement, absolute, u, v, y, residuals, r2, float(each.mean()), each)
