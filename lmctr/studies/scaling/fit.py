"""`lmctr scaling fit POINTS.csv`: a scaling law through points from anywhere, with bands and its error on held-out sizes."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.plots_scaling import plot_law
from lmctr.scaling.fits import (
    Extrapolation,
    OverfitWarning,
    ScalingFit,
    extrapolation_error,
    fit_scaling_law,
    read_points,
)
from lmctr.studies.scaling.fit_two import run_two
from lmctr.studies.scaling.options import FitOptions, LawOptions
from lmctr.studies.scaling.tables import compact, save_results, with_folder
from lmctr.utils.progress import step
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import markdown_table, text_table

_CURVE_POINTS = 120
_LEAST_R2 = 0.5


@dataclass(frozen=True)
class FitAnalysis:
    """A law with what is said about it.

    Args:
        curve: (M,) x of the drawn curve. band: its ends (M,) each, None where `note` says why. notes: warnings in words.
    """

    x_name: str
    y_name: str
    options: LawOptions
    fit: ScalingFit
    extrapolation: Extrapolation | None
    curve: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it. `lmctr scaling design` reads "fit"."""
        out, band = self.extrapolation, None
        if self.band is not None:
            low, high = (end.tolist() for end in self.band)
            band = {"level": self.options.level, "x": self.curve.tolist(), "low": low, "high": high}
        return {
            "x": self.x_name,
            "y": self.y_name,
            "options": self.options.settings(),
            "formula": formula(self.fit),
            "fit": self.fit.to_dict(),
            "band": band,
            "held_out": None if out is None else out.to_dict(),
            "notes": list(self.notes),
        }

    def lines(self) -> list[str]:
        """What is printed; the notes are told as warnings."""
        points, sizes, law, chosen = self._head()
        lines = [
            f"{points}, {sizes}: {self.y_name} by {self.x_name}",
            f"law: {law}{f' ({chosen})' if chosen else ''}, R^2 {self.fit.r2:.5f}",
            f"  {formula(self.fit)}",
        ]
        for words, table in self._tables():
            lines += ["", *words, text_table(table)]
        return lines

    def markdown(self) -> str:
        """The same as a part of a Markdown document."""
        points, sizes, law, chosen = self._head()
        head = f"{points} of {sizes}. Law: {law}{f', {chosen}' if chosen else ''}; R² {self.fit.r2:.5f}."
        parts = [head, f"    {formula(self.fit)}"]
        for words, table in self._tables():
            parts += [*words, markdown_table(table)]
        return "\n\n".join([*parts, *self.notes])

    def predict(self, x: Sequence[float]) -> list[dict[str, Any]]:
        """The law at x, with the band of a refitted law: rows of x, y, low and high, the latter None without a band."""
        rows = [{"x": float(at), "y": float(y), "low": None, "high": None} for at, y in zip(x, self.fit.predict(x))]
        if self.band is not None:
            ends = self.fit.band(x, self.options.level, self.options.resamples, self.options.seed)
            for row, low, high in zip(rows, *ends):
                row |= {"low": float(low), "high": float(high)}
        return rows

    def draw(self, path: Path, title: str | None = None) -> None:
        """The picture of the fit."""
        out = self.extrapolation
        plot_law(
            self.fit.x,
            self.fit.y,
            self.curve,
            self.fit.predict(self.curve),
            path,
            band=self.band,
            level=self.options.level,
            held_out=None if out is None else (self.curve, out.fit.predict(self.curve)),
            held_from=float("inf") if out is None else out.x.min(),
            complement=self.fit.complement,
            x_name=self.x_name,
            y_name=self.y_name,
            title=title,
        )

    def _head(self) -> tuple[str, str, str, str]:
        """Points and law in words."""
        fit = self.fit
        chosen = f"chosen by {self.options.criterion}" if len(fit.candidates) > 1 else ""
        return f"{len(fit.x)} points", f"{len(set(fit.x.tolist()))} sizes", law_name(fit), chosen

    def _tables(self) -> list[tuple[list[str], list[list[str]]]]:
        """Tables, each with the lines above it: the laws that were compared, and the held-out sizes."""
        out, tables = self.extrapolation, []
        if len(self.fit.candidates) > 1:
            tables.append(([], candidate_table(self.fit)))
        if out is not None:
            words = (
                f"held out: {_largest(self.options.held_out)}, predicted by {law_name(out.fit)} of the others: mean error "
                f"{out.mean_error:.3g}, largest {out.max_error:.3g}; taking the largest seen size's mean instead: {out.constant_error:.3g}"
            )
            tables.append(([words], held_out_table(out)))
        return tables


def run(options: FitOptions) -> None:
    if options.x2 is not None:
        return run_two(options)
    folder, found = with_folder(options, fit_points)
    for note in found.notes:
        print(f"warning: {note}", file=sys.stderr)
    print("\n".join(found.lines()))
    predictions = found.predict(options.predict) if options.predict else []
    rows = []
    for row in predictions:
        band = "-" if row["low"] is None else f"{row['low']:.5g} to {row['high']:.5g}"
        rows.append([f"{options.x} {row['x']:g}", f"{row['y']:.5g}", band, _beyond(row["x"], found.fit.x)])
    if rows:
        print(text_table([["", options.y, "band", ""], *rows]))
    if folder is not None:
        parts = [f"# {options.y} by {options.x}", found.markdown()]
        if rows:
            parts.append(markdown_table([[options.x, options.y, "band", ""], *rows]))
        values = found.to_dict() | {"predictions": predictions}
        save_results(folder, "fit", values, parts, options, found.draw, picture="fit.png", alt="law")


def fit_points(options: FitOptions) -> FitAnalysis:
    """Fit a law to two columns of a CSV file.

    Raises:
        ValueError: a column is missing or holds no numbers, and what `analyse` raises. FileNotFoundError: no such file.
    """
    x, y = read_points(options.points, options.x, options.y)
    with errors_of(f"{options.points}, x {options.x}, y {options.y}"):
        return analyse(x, y, options, options.x, options.y)


@step("fitting the law")
def analyse(
    x: np.ndarray, y: np.ndarray, options: LawOptions, x_name: str = "x", y_name: str = "metric"
) -> FitAnalysis:
    """Fit a law, its band, and the same without the largest sizes.

    Args:
        x, y: (P,). options: how. x_name, y_name: what they are.

    Raises:
        ValueError: as `lmctr.scaling.fits.fit_scaling_law` does: too few sizes, x that are not positive, ...
    """
    out, band, notes = None, None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverfitWarning)
        fit = fit_scaling_law(x, y, **options.of_the_law())
        if options.held_out:
            with errors_of(f"without {_largest(options.held_out)}"):
                out = extrapolation_error(x, y, options.held_out, **options.of_the_law())
    notes += dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, OverfitWarning))
    if fit.r2 < _LEAST_R2:
        notes.append(
            f"R^2 is {fit.r2:.2g}: the law explains little of how the points differ; points of several metrics, data sets or families need a law "
            "each, from a file each"
        )
    curve = np.geomspace(fit.x.min() / 1.05, fit.x.max() * 1.05, _CURVE_POINTS)
    if options.resamples and len(fit.x) > fit.num_parameters:
        band = fit.band(curve, options.level, options.resamples, options.seed)
    elif options.resamples:
        notes.append(f"no bootstrap band: {len(fit.x)} points and {fit.num_parameters} parameters leave no residuals")
    return FitAnalysis(x_name, y_name, options, fit, out, curve, band, tuple(notes))


def _largest(count: int) -> str:
    return "the largest size" if count == 1 else f"the {count} largest sizes"


def _beyond(x: float, measured: np.ndarray) -> str:
    """How far x lies outside the points, in words. The band knows of the points' noise only: not that the law itself may end."""
    low, high = measured.min(), measured.max()
    if low <= x <= high:
        return ""
    factor = x / high if x > high else low / x
    end = "largest" if x > high else "smallest"
    far = (
        f", further than all points span ({high / low:.3g}): the band does not hold there"
        if factor > high / low
        else ""
    )
    return f"{factor:.3g} times beyond the {end} point{far}"


def law_name(fit: ScalingFit) -> str:
    """A law in words."""
    names = {"power": "power law", "power_constant": "power law with a constant"}
    return names.get(fit.law) or f"BNSL with {fit.breaks} break{'' if fit.breaks == 1 else 's'}"


def formula(fit: ScalingFit) -> str:
    """The law with its numbers, as text."""
    p = fit.parameters
    left = "1 - y" if fit.complement else "y"
    constant = "" if fit.law == "power" else f"{p['a']:.5g} + "
    breaks = "".join(f" (1 + (x/{d:.4g})^(1/{f:.4g}))^(-({c:.4g}) {f:.4g})" for c, d, f in zip(p["c"], p["d"], p["f"]))
    return f"{left} = {constant}{p['b']:.5g} x^({-p['c0']:.5g}){breaks}"


def candidate_table(fit: ScalingFit) -> list[list[str]]:
    """The laws that were compared."""
    with_loo = any(row["loo"] is not None for row in fit.candidates)
    rows = [["law", "breaks", "parameters", "AICc", *(["leave-one-out"] if with_loo else [])]]
    for row in fit.candidates:
        cells = [row["law"], str(row["breaks"]), str(row["parameters"]), compact(row["aicc"])]
        rows.append(cells + ([compact(row["loo"], 4)] if with_loo else []))
    return rows


def held_out_table(out: Extrapolation) -> list[list[str]]:
    """Measured and predicted values of the held-out points."""
    rows = [["x", "measured", "predicted", "error"]]
    for x, y, predicted in zip(out.x, out.y, out.predicted):
        rows.append([f"{x:.6g}", f"{y:.5f}", f"{predicted:.5f}", f"{predicted - y:+.5f}"])
    return rows
