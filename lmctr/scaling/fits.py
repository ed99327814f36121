"""Scaling laws from points (x, metric): power law, power law with a constant, BNSL; their choice, bands and held-out error.

Section 4.2 of arXiv 2411.13322. Decided: a metric that grows, such as R/R* or AUC, is
fitted as 1 - metric (`complement=True`), which falls; residuals are those of the logarithm by default; the number of breaks is chosen
by AICc or leave-one-out among the laws with at most `sizes - 2` parameters, sizes being the distinct values of x (repeated x, such
as seeds, sharpen a point but do not make the curve identifiable). More parameters need an explicit flag and give a warning.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import least_squares

from lmctr.utils.tables import read_csv

from .bands import widened_band, widened_residuals
from .bnsl import bnsl, fit_bnsl, num_parameters
from .points import check_changes, check_numbers, equal_lists, fitted_part

__all__ = [
    "Extrapolation",
    "OverfitWarning",
    "ScalingFit",
    "extrapolation_error",
    "fit_scaling_law",
    "power_law",
    "read_points",
]

LAWS = ("auto", "power", "power_constant", "bnsl")
LEAST_SIZES = 4
_ROUNDING = 1e-20  # mean squared residuals below this are rounding: no law is better than another there


class OverfitWarning(UserWarning):
    """A law has more parameters than the points can tell apart."""


def power_law(x: ArrayLike, coefficient: float, exponent: float) -> np.ndarray:
    """coefficient * x^exponent.

    Example: FAT's law, gain of AUC in percentage points by parameters (its Section 5.5).

    >>> power_law([52e6, 0.54e9, 1.5e9], 5.81e-5, 0.433).round(3).tolist()
    [0.127, 0.351, 0.546]
    """
    return coefficient * np.asarray(x, dtype=np.float64) ** exponent


@dataclass(frozen=True)
class ScalingFit:
    """A fitted law.

    Args:
        law: "power" (b x^-c0), "power_constant" (a + b x^-c0) or "bnsl" (Eq. 6).
        parameters: {"a", "b", "c0", "c", "d", "f"} of Eq. 6; of a falling quantity, 1 - metric with `complement`.
        complement: whether 1 - metric was fitted. absolute: kind of residuals.
        x, y: the points, y as given. residuals: log residuals, or absolute ones.
        r2: 1 - RSS / TSS of y itself. aicc: corrected Akaike criterion, NaN where there are too few points for it; lower is better.
        loo: mean squared leave-one-out residual, None unless asked for.
        candidates: (law, breaks, parameters, aicc, loo) of all laws that were compared.
    """

    law: str
    parameters: dict[str, Any]
    complement: bool
    absolute: bool
    x: np.ndarray
    y: np.ndarray
    residuals: np.ndarray
    r2: float
    aicc: float
    loo: float | None = None
    candidates: tuple[dict[str, Any], ...] = ()

    @property
    def breaks(self) -> int:
        """t."""
        return len(self.parameters["d"])

    @property
    def num_parameters(self) -> int:
        """2 of a power law, 3 + 3 t of the others."""
        return 2 if self.law == "power" else num_parameters(self.breaks)

    def predict(self, x: ArrayLike) -> np.ndarray:
        """The metric at x, any shape. ValueError: x not positive."""
        x = np.asarray(x, dtype=np.float64)
        check_numbers("x", x.reshape(-1))
        values = bnsl(x, **self.parameters)
        return 1.0 - values if self.complement else values

    def bootstrap(self, num_samples: int = 200, seed: int = 0) -> list[ScalingFit]:
        """The law refitted to points whose residuals are drawn again, with replacement and widened by sqrt(P / (P - parameters)).

        Each refit starts at this fit and searches locally. The law itself is not chosen again, so the bands leave its choice out.

        Raises:
            ValueError: fewer than 2 samples, or no more points than parameters (their residuals say nothing about the noise).
        """
        spread = widened_residuals(self.residuals, self.num_parameters, num_samples)
        rng = np.random.default_rng(seed)
        curve = bnsl(self.x, **self.parameters)
        fits = []
        while len(fits) < num_samples:
            drawn = rng.choice(spread, len(spread))
            target = curve + drawn if self.absolute else curve * np.exp(drawn)
            if (target <= 0).any():  # only absolute residuals can leave the range of the law
                target = np.maximum(target, curve * 1e-3)
            fits.append(_fit(self.x, target, self.law, self.breaks, self, restarts=0, hops=0, seed=0))
        return fits

    def band(
        self, x: ArrayLike, level: float = 0.9, num_samples: int = 200, seed: int = 0
    ) -> tuple[np.ndarray, np.ndarray]:
        """Lower and upper ends of the pointwise bootstrap band of the curve at x. Arguments: see `bootstrap`; 0 < level < 1.

        The percentiles are widened, see `widened_band`. Where the law was chosen among several the band is still too narrow, because that choice
        is not drawn again.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be between 0 and 1, got {level}")
        fits = self.bootstrap(num_samples, seed)
        to, back = (np.asarray, np.asarray) if self.absolute else (np.log, np.exp)
        x = np.asarray(x, dtype=np.float64)
        curves = to(np.stack([bnsl(x, **fit.parameters) for fit in fits]))
        center = to(bnsl(x, **self.parameters))
        low, high = back(widened_band(curves, center, len(self.x) - self.num_parameters, level))
        return (1.0 - high, 1.0 - low) if self.complement else (low, high)

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it; `from_dict` reads it."""
        arrays = {name: getattr(self, name).tolist() for name in ("x", "y", "residuals")}
        rows = [row | {"aicc": None if np.isnan(row["aicc"]) else row["aicc"]} for row in self.candidates]
        return vars(self) | arrays | {"aicc": None if np.isnan(self.aicc) else self.aicc, "candidates": rows}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> ScalingFit:
        """What `to_dict` wrote."""
        arrays = {name: np.asarray(values[name], dtype=np.float64) for name in ("x", "y", "residuals")}
        rows = tuple(row | {"aicc": _nan(row["aicc"])} for row in values["candidates"])
        return cls(**(values | arrays | {"aicc": _nan(values["aicc"]), "candidates": rows}))


def fit_scaling_law(
    x: ArrayLike,
    y: ArrayLike,
    law: str = "auto",
    breaks: int | None = None,
    complement: bool = False,
    absolute: bool = False,
    criterion: str = "aicc",
    max_breaks: int = 6,
    allow_overfit: bool = False,
    restarts: int = 4,
    hops: int = 12,
    seed: int = 0,
) -> ScalingFit:
    """Fit a scaling law.

    Args:
        x: (P,) positive: FLOPs, parameters, samples. y: (P,) the metric.
        law: "power", "power_constant", "bnsl", or "auto": the best of all by `criterion`.
        breaks: t of "bnsl"; None chooses it by `criterion` among those that the points allow.
        complement: fit 1 - y, for metrics below 1 that grow with x.
        absolute: residuals of y instead of its logarithm.
        criterion: "aicc", or "loo": leave one size out, and take the simplest law within one standard error of the best.
        max_breaks: the most that is tried.
        allow_overfit: accept `breaks` with more than `sizes - 2` parameters, with an [`OverfitWarning`]. The paper's t = 6 on 10 points
            (21 parameters) is such a case: the curve goes through the points and says nothing about others.
        restarts, hops, seed: of the search.

    Raises:
        ValueError: no restarts or hops, x or y that are not numbers, x not positive, y (or 1 - y) not positive, y that never changes or grows where the law falls, fewer than
            4 sizes, or fewer than the law needs.

    Example:
        >>> fit = fit_scaling_law([1e6, 2e6, 4e6, 8e6, 16e6], [0.80, 0.83, 0.85, 0.865, 0.875], complement=True)
        >>> fit.law, fit.predict(32e6)
    """
    if law not in LAWS:
        raise ValueError(f"law must be one of {', '.join(LAWS)}, got {law!r}")
    if criterion not in ("aicc", "loo"):
        raise ValueError(f"criterion must be 'aicc' or 'loo', got {criterion!r}")
    if breaks is not None and law != "bnsl":
        raise ValueError(f"breaks is of law='bnsl' only, got law={law!r}")
    if breaks is not None and (isinstance(breaks, bool) or not isinstance(breaks, int) or breaks < 0):
        raise ValueError(f"breaks must be an integer of at least 0, got {breaks!r}")
    for name, count in (("restarts", restarts), ("hops", hops)):
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
    x, y, target = _check_points(x, y, complement)
    sizes = len(np.unique(x))
    tried = allowed_laws(law, breaks, sizes, max_breaks, allow_overfit)
    if any(name != "power" for name, _ in tried) and np.polyfit(np.log(x), np.log(target), 1)[0] >= 0:
        if law == "auto" and not complement:
            raise ValueError(
                "y grows with x: pass complement=True or --complement (a metric below 1 that grows), or law='power' for an unbounded gain"
            )
        # a metric that gets worse with size must not be talked into a law that goes on doing so
        only = (
            "False only where a lower y is the better one (a loss): else y gets worse with x, and no law of it helps"
        )
        what, accepted = ("1 - y", only) if complement else ("y", "True, or law='power'")
        raise ValueError(f"law={law!r} falls with x, but {what} grows; pass complement={accepted}")
    fits: list[ScalingFit] = []
    left_out: list[np.ndarray] = []
    settings = {"restarts": restarts, "hops": hops, "seed": seed}
    shape = ScalingFit("power", {}, complement, absolute, x, y, x, 0.0, 0.0)
    for name, count in tried:
        # a law of one break fewer is a start of the next: more breaks never fit worse
        before = fits[-1] if fits and fits[-1].law != "power" else None
        fit = _fit(x, target, name, count, before or shape, **settings)
        if criterion == "loo" and len(tried) > 1:
            left_out.append(_leave_one_out(fit, target, settings))
            fit = dataclasses.replace(fit, loo=float(left_out[-1].mean()))
        fits.append(fit)
    rows = tuple(
        {"law": fit.law, "breaks": fit.breaks, "parameters": fit.num_parameters, "aicc": fit.aicc, "loo": fit.loo}
        for fit in fits
    )
    best = fits[_simplest(left_out)] if left_out else min(fits, key=lambda fit: fit.aicc)
    return dataclasses.replace(best, y=y, candidates=rows)


@dataclass(frozen=True)
class Extrapolation:
    """A law fitted without the largest sizes, at those sizes.

    Args:
        fit: of the smaller sizes. x, y: (H,) held-out points. predicted: (H,).
        mean_error, max_error: mean and largest |predicted - y|. mean_relative_error: mean |predicted - y| / |y|.
        constant_error: mean error of the largest seen size's metric, taken as the prediction: what the law has to beat.
    """

    fit: ScalingFit
    x: np.ndarray
    y: np.ndarray
    predicted: np.ndarray
    mean_error: float
    max_error: float
    mean_relative_error: float
    constant_error: float

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON can hold it."""
        arrays = {name: getattr(self, name).tolist() for name in ("x", "y", "predicted")}
        return vars(self) | arrays | {"fit": self.fit.to_dict()}


def extrapolation_error(x: ArrayLike, y: ArrayLike, num_held_out: int = 2, **options: Any) -> Extrapolation:
    """Fit on the smaller sizes, predict the `num_held_out` largest distinct ones (with all their points).

    Args:
        x, y: (P,). num_held_out: sizes held out, at least 1. options: of `fit_scaling_law`; the law is chosen without the held-out sizes.

    Raises:
        ValueError: as `fit_scaling_law`, on what is left.
    """
    complement = bool(options.get("complement", False))
    x, y, _ = _check_points(x, y, complement)
    sizes = np.unique(x)
    if len(sizes) <= LEAST_SIZES:
        raise ValueError(f"no size can be held out of {len(sizes)}: a law needs {LEAST_SIZES} others")
    if isinstance(num_held_out, bool) or not 1 <= num_held_out <= len(sizes) - LEAST_SIZES:
        raise ValueError(
            f"num_held_out: {num_held_out} sizes of {len(sizes)} cannot be held out; accepted: 1 to {len(sizes) - LEAST_SIZES}, as a law needs "
            f"{LEAST_SIZES} of them"
        )
    held = x >= sizes[-num_held_out]
    fit = fit_scaling_law(x[~held], y[~held], **options)
    predicted = fit.predict(x[held])
    error = np.abs(predicted - y[held])
    last = y[~held][x[~held] == x[~held].max()].mean()
    return Extrapolation(
        fit,
        x[held],
        y[held],
        predicted,
        float(error.mean()),
        float(error.max()),
        float((error / np.abs(y[held])).mean()),
        float(np.abs(last - y[held]).mean()),
    )


def read_points(path: str | Path, x: str, y: str) -> tuple[np.ndarray, np.ndarray]:
    """Two columns of a CSV file as (P,) float64.

    Args:
        path: a CSV file with a header. x, y: names of its columns.

    Raises:
        ValueError: a column is missing, a value is not a finite number or an x not above 0 (with its line), no rows. FileNotFoundError: no
            such file.
    """
    rows = read_csv(path, numbers=[y], positive=[x])
    return np.array([row[x] for row in rows]), np.array([row[y] for row in rows])


def _fit(x: np.ndarray, target: np.ndarray, law: str, breaks: int, near: ScalingFit, **search: int) -> ScalingFit:
    """One law on checked points; `near` has the kinds of metric and residuals, and the start where it has parameters."""
    if law == "power":
        parameters, residuals = _fit_power(x, target, near.absolute)
    else:
        parameters, residuals = fit_bnsl(x, target, breaks, near.absolute, start=near.parameters or None, **search)
    if not (np.isfinite(parameters["b"]) and parameters["b"] > 0):
        raise ValueError(
            f"x spans a factor of {x.max() / x.min():.6g} only, too little for a law of it: its exponent comes out as {-parameters['c0']:.3g}; "
            "take sizes that differ by more"
        )
    predicted = bnsl(x, **parameters)
    total = float(np.square(target - target.mean()).sum())
    r2 = 1.0 - float(np.square(target - predicted).sum()) / total if total else float("nan")
    count = 2 if law == "power" else num_parameters(breaks)
    scale = np.square(np.exp(np.log(target).mean())) if near.absolute else 1.0
    aicc = _aicc(np.square(residuals).sum() / scale, len(x), count)
    y = 1.0 - target if near.complement else target
    return ScalingFit(law, parameters, near.complement, near.absolute, x, y, residuals, r2, aicc)


def _fit_power(x: np.ndarray, y: np.ndarray, absolute: bool) -> tuple[dict[str, Any], np.ndarray]:
    """b x^-c0: a line in logarithms; for absolute residuals improved from there."""
    slope, intercept = np.polyfit(np.log(x), np.log(y), 1)
    if absolute:
        unit, centre = np.exp(np.log(y).mean()), np.log(x).mean()
        found = least_squares(
            lambda p: y / unit - np.exp(p[0] + p[1] * (np.log(x) - centre)), [0.0, slope], method="lm"
        )
        slope = found.x[1]
        intercept = found.x[0] + np.log(unit) - slope * centre
    with np.errstate(over="ignore"):  # of sizes that hardly differ; the caller refuses them
        factor = float(np.exp(intercept))
    parameters = {"a": 0.0, "b": factor, "c0": float(-slope), "c": [], "d": [], "f": []}
    log_predicted = intercept + slope * np.log(x)
    return parameters, y - np.exp(log_predicted) if absolute else np.log(y) - log_predicted


def _aicc(rss: float, points: int, parameters: int) -> float:
    """P log(RSS / P) + 2 q + 2 q (q + 1) / (P - q - 1), q curve parameters; NaN where P - q - 1 is not positive.

    The variance of the residuals, which a textbook counts too, is not among the q: with it nothing could be compared on five sizes."""
    if points - parameters - 1 <= 0:
        return float("nan")
    penalty = 2 * parameters + 2 * parameters * (parameters + 1) / (points - parameters - 1)
    return float(points * np.log(max(rss / points, _ROUNDING)) + penalty)


def _leave_one_out(fit: ScalingFit, target: np.ndarray, settings: dict[str, int]) -> np.ndarray:
    """Mean squared residual of each size under the law fitted without it. The refits start at the fit, and once at random."""
    settings = settings | {"restarts": min(settings["restarts"], 1), "hops": min(settings["hops"], 3)}
    errors = []
    for size in np.unique(fit.x):
        out = fit.x == size
        again = _fit(fit.x[~out], target[~out], fit.law, fit.breaks, fit, **settings)
        predicted = bnsl(fit.x[out], **again.parameters)
        residuals = target[out] - predicted if fit.absolute else np.log(target[out]) - np.log(predicted)
        errors.append(np.square(residuals).mean())
    return np.array(errors)


def _nan(value: float | None) -> float:
    """JSON has no NaN: it is kept as null."""
    return float("nan") if value is None else value


def _simplest(errors: list[np.ndarray]) -> int:
    """The first law whose errors are no more than one standard error (of the paired differences) above the best law's.

    Leave-one-out is the noisier criterion, whose plain minimum more often takes a break that is not there.
    """
    best = min(errors, key=np.mean)
    for place, error in enumerate(errors):
        gap = error - best
        if gap.mean() <= gap.std(ddof=1) / np.sqrt(len(gap)):
            return place
    raise AssertionError("the best law is within its own error")


def allowed_laws(
    law: str, breaks: int | None, sizes: int, max_breaks: int, allow_overfit: bool
) -> Sequence[tuple[str, int]]:
    """Laws to try on points of so many sizes, with their breaks; ValueError or a warning where these are too few."""
    if law == "power":
        return [("power", 0)]
    most, wanted = (sizes - 2 - 3) // 3, breaks or 0
    if law != "auto" and wanted > most:
        needs = f"{num_parameters(wanted)} parameters need {num_parameters(wanted) + 2} distinct values of x, there are {sizes}"
        if not (allow_overfit and breaks is not None):
            raise ValueError(f"law={law!r} with {wanted} breaks: {needs}; take more sizes, or fewer breaks")
        warnings.warn(
            f"{wanted} breaks: {needs}; the curve can pass through every point and predict nothing",
            OverfitWarning,
            stacklevel=3,
        )
    if law == "power_constant" or breaks is not None:
        return [(law, wanted)]
    laws = [("power_constant" if law == "auto" and not t else "bnsl", t) for t in range(min(most, max_breaks) + 1)]
    return [("power", 0), *laws] if law == "auto" else laws


def _check_points(x: ArrayLike, y: ArrayLike, complement: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """x and y (P,) sorted by x, and what is fitted."""
    x, y = equal_lists(x=x, y=y)
    check_numbers("x", x)
    target = fitted_part(y, complement)
    if (sizes := len(np.unique(x))) < LEAST_SIZES:
        raise ValueError(f"x has {sizes} distinct values: a power law needs at least {LEAST_SIZES}")
    check_changes("y", y)
    order = np.argsort(x, kind="stable")
    return x[order], y[order], target[order]
