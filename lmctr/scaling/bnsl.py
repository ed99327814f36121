"""Broken neural scaling laws: the curve, and the search for its parameters.

BNSL is Eq. 6 of arXiv 2411.13322, from Caballero et al. (ICLR 2023):

    y = a + b x^{-c0} prod_{i=1..t} (1 + (x / d_i)^{1 / f_i})^{-c_i f_i}

t breaks at d_i with sharpness f_i; the slope in log axes is -c0 before the first and -(c0 + ... + c_i) after break i. t = 0 is the power
law with a constant.

Decided: x enters as its logarithm; a, b, f_i and the slopes c0 + ... + c_i are positive through softplus, so y falls with x while a single c_i
may have either sign (a curve may flatten or steepen at a break); d_i are ascending. The search is basin hopping from several starts, whose
local step is Levenberg-Marquardt on the residuals (trust region where there are more parameters than points).

P: points, t: breaks, Q: raw parameters, 3 + 3 t.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import OptimizeResult, basinhopping, least_squares

_HUGE = 1e6  # stands for a residual that is not finite: a step there is refused
_SMALL_SLOPE = 1e-3
_FARTHEST = 600.0  # of |log d|: a very smooth break still bends the curve from there, and d is still a number


def num_parameters(breaks: int) -> int:
    """3 + 3 t."""
    return 3 + 3 * breaks


def bnsl(
    x: np.ndarray, a: float, b: float, c0: float, c: np.ndarray = (), d: np.ndarray = (), f: np.ndarray = ()
) -> np.ndarray:
    """Eq. 6, computed in logarithms so that no power overflows on the way.

    Args:
        x: positive, any shape. a, b, c0: numbers. c, d, f: (t,) each; d and f positive.
    """
    log_x = np.log(np.asarray(x, dtype=np.float64))
    c, f = np.asarray(c, dtype=np.float64), np.asarray(f, dtype=np.float64)
    log_d = np.log(np.asarray(d, dtype=np.float64))
    bends = (c * f * np.logaddexp(0.0, (log_x[..., None] - log_d) / f)).sum(axis=-1)
    return a + b * np.exp(-c0 * log_x - bends)


def fit_bnsl(
    x: np.ndarray,
    y: np.ndarray,
    breaks: int,
    absolute: bool = False,
    restarts: int = 4,
    hops: int = 12,
    seed: int = 0,
    start: dict | None = None,
) -> tuple[dict, np.ndarray]:
    """Least squares over the parameters of Eq. 6; the caller has checked the points.

    Args:
        x, y: (P,) positive; y falls with x. breaks: t.
        absolute: residuals y - f(x) in units of y's geometric mean; default log y - log f(x).
        restarts: starts of basin hopping; 0 only improves `start`. hops: of each. seed: of starts and hops.
        start: parameters to begin with, with t or fewer breaks; they are the first start.

    Returns:
        The parameters {"a", "b", "c0", "c", "d", "f"} and the residuals (P,), log or absolute (in the units of y).
    """
    problem = _Problem(x, y, breaks, absolute)
    rng = np.random.default_rng(seed)
    starts = [] if start is None else [problem.raw(start)]
    candidates = [problem.local(None, raw) for raw in starts]
    starts += [problem.random_start(rng) for _ in range(restarts)]
    for raw in starts if restarts else ():
        found = basinhopping(
            problem.cost,
            raw,
            niter=hops,
            stepsize=1.0,
            # a hop uphill by the average squared residual of a good fit is taken now and then
            T=1e-4 * len(x),
            minimizer_kwargs={"method": problem.local},
            rng=rng,
        )
        candidates.append(found.lowest_optimization_result)
    best = min(candidates, key=lambda result: result.fun)
    return problem.parameters(best.x), problem.residuals(best.x) * (problem.unit if absolute else 1.0)


class _Problem:
    """One least-squares problem in raw parameters: x centred in logarithms, y in units of its geometric mean."""

    def __init__(self, x: np.ndarray, y: np.ndarray, breaks: int, absolute: bool):
        self.breaks, self.absolute = breaks, absolute
        log_x = np.log(x)
        self.centre, self.unit = float(log_x.mean()), float(np.exp(np.log(y).mean()))
        self.log_x, self.y = log_x - self.centre, y / self.unit
        self.low, self.span = float(self.log_x.min()), float(np.ptp(self.log_x)) or 1.0
        self.slope = max(float(-np.polyfit(self.log_x, np.log(self.y), 1)[0]), _SMALL_SLOPE)

    def unpack(self, raw: np.ndarray) -> tuple[np.ndarray, ...]:
        """a (...), b (...), slopes (..., t + 1), log d (..., t), f (..., t) from raw parameters (..., Q)."""
        t = self.breaks
        positive = np.logaddexp(0.0, raw)  # softplus
        slopes = positive[..., 2 : 3 + t]
        # ascending: the first anywhere, each next one a positive step further
        steps = np.concatenate((raw[..., 3 + t : 4 + t] * self.span, positive[..., 4 + t : 3 + 2 * t] * self.span), -1)
        log_d = np.clip(np.cumsum(steps[..., :t], -1), -_FARTHEST - self.centre, _FARTHEST - self.centre)
        return positive[..., 0], positive[..., 1], slopes, log_d, positive[..., 3 + 2 * t :]

    def curve(self, raw: np.ndarray) -> np.ndarray:
        """(..., P) in units of y's geometric mean."""
        a, b, slopes, log_d, f = self.unpack(raw)
        f = np.maximum(f, 1e-4)
        bends = np.logaddexp(0.0, (self.log_x[:, None] - log_d[..., None, :]) / f[..., None, :])
        bends = (np.diff(slopes)[..., None, :] * f[..., None, :] * bends).sum(-1)
        exponent = np.clip(-slopes[..., :1] * self.log_x - bends, -300, 300)
        return a[..., None] + b[..., None] * np.exp(exponent)

    def residuals(self, raw: np.ndarray) -> np.ndarray:
        curve = self.curve(raw)
        with np.errstate(divide="ignore"):
            values = self.y - curve if self.absolute else np.log(self.y) - np.log(curve)
        return np.nan_to_num(values, nan=_HUGE, posinf=_HUGE, neginf=-_HUGE)

    def cost(self, raw: np.ndarray) -> float:
        return float(np.square(self.residuals(raw)).sum())

    def jacobian(self, raw: np.ndarray) -> np.ndarray:
        """Central differences of all parameters in one call."""
        steps = np.eye(len(raw)) * 1e-6
        return ((self.residuals(raw + steps) - self.residuals(raw - steps)) / 2e-6).T

    def local(self, fun: object, raw: np.ndarray, args: tuple = (), **options) -> OptimizeResult:
        """The local search; its first argument and the last ones are those that `scipy.optimize.basinhopping` hands over."""
        method = "lm" if len(raw) <= len(self.y) else "trf"
        raw = np.clip(raw, -30, 30)
        found = least_squares(self.residuals, raw, self.jacobian, method=method, max_nfev=60, xtol=1e-10, ftol=1e-12)
        return OptimizeResult(x=found.x, fun=2 * found.cost, success=True, nfev=found.nfev)

    def random_start(self, rng: np.random.Generator) -> np.ndarray:
        t = self.breaks
        slopes = self.slope * np.exp(rng.normal(0, 1, t + 1))
        log_d = np.sort(rng.uniform(self.low, self.low + self.span, t))
        f = np.exp(rng.normal(np.log(0.1 * self.span), 0.7, t))
        a = float(self.y.min()) * rng.uniform(0.05, 0.95)
        return self._pack(a, 1.0, slopes, log_d, f)

    def raw(self, parameters: dict) -> np.ndarray:
        """Raw parameters of a curve; where it has fewer breaks, some that change nothing are added."""
        c, d, f = (list(np.atleast_1d(parameters[key])) for key in ("c", "d", "f"))
        while len(d) < self.breaks:  # in the widest gap of the breaks there are, and of the ends of the data
            edges = np.array([self.low, *(np.log(d) - self.centre), self.low + self.span])
            place = int(np.argmax(np.diff(edges)))
            middle = (edges[place] + edges[place + 1]) / 2
            c.insert(place, 0.0)
            d.insert(place, np.exp(middle + self.centre))
            f.insert(place, 0.1 * self.span)
        c0, log_d = parameters["c0"], np.log(np.asarray(d)) - self.centre
        b = parameters["b"] / self.unit * np.exp(-c0 * self.centre)
        return self._pack(parameters["a"] / self.unit, b, np.cumsum([c0, *c]), log_d, np.asarray(f))

    def _pack(self, a: float, b: float, slopes: np.ndarray, log_d: np.ndarray, f: np.ndarray) -> np.ndarray:
        gaps = np.diff(log_d) / self.span
        first = log_d[:1] / self.span
        return np.concatenate(
            (_inverse_softplus([a, b, *slopes]), first, _inverse_softplus(gaps), _inverse_softplus(f))
        )

    def parameters(self, raw: np.ndarray) -> dict:
        """The parameters of Eq. 6 in the units of x and y."""
        a, b, slopes, log_d, f = self.unpack(raw)
        with np.errstate(over="ignore"):  # of sizes that hardly differ; the caller refuses them
            factor = float(np.exp(slopes[0] * self.centre))
        return {
            "a": float(a) * self.unit,
            "b": float(b) * self.unit * factor,
            "c0": float(slopes[0]),
            "c": np.diff(slopes).tolist(),
            "d": np.exp(log_d + self.centre).tolist(),
            "f": np.maximum(f, 1e-4).tolist(),
        }


def _inverse_softplus(values: np.ndarray) -> np.ndarray:
    values = np.maximum(np.asarray(values, dtype=np.float64), 1e-12)
    return values + np.log(-np.expm1(-values))
