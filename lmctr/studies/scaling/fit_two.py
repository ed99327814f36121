"""`lmctr scaling fit POINTS.csv --x COLUMN --x2 COLUMN`: a law of two sizes, such as length and layers, and their best pair at equal cost."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.plots_scaling import plot_surface
from lmctr.scaling.bands import widened_band
from lmctr.scaling.surface import SurfaceFit, best_at_flops, best_split, fit_surface, size_correlation, split_ends
from lmctr.studies.scaling.options import FitOptions
from lmctr.studies.scaling.tables import compact, save_results, with_folder
from lmctr.utils.suggest import errors_of
from lmctr.utils.tables import Table, markdown_table, read_csv, text_table

_CURVE_POINTS = 60
_TOGETHER = 0.9
_PARAMETERS = ("a", "b", "alpha", "c", "beta")


@dataclass(frozen=True)
class SurfaceAnalysis:
    """A law of two sizes with what is said about it.

    Args:
        refits: of the bootstrap, empty where `notes` says why. held_out: rows of the largest products, predicted without them.
        splits, budgets, predictions: rows for each product, number of FLOPs and pair that was asked for. notes: what the points cannot tell, in words.
    """

    options: FitOptions
    fit: SurfaceFit
    refits: tuple[SurfaceFit, ...]
    held_out: tuple[dict[str, float], ...]
    splits: tuple[dict[str, Any], ...]
    budgets: tuple[dict[str, Any], ...]
    predictions: tuple[dict[str, Any], ...]
    notes: tuple[str, ...]

    def lines(self) -> list[str]:
        """What is printed; the notes are told as warnings."""
        head, parts = self._head(), [text_table(table) for table in self._tables()]
        return [*head, *(line for part in parts for line in ("", part))]

    def markdown(self) -> list[str]:
        """The same as parts of a Markdown document."""
        return [*self._head(), *(markdown_table(table) for table in self._tables()), *self.notes]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        rows = {name: list(getattr(self, name)) for name in ("held_out", "splits", "budgets", "predictions", "notes")}
        names = {"x": self.options.x, "x2": self.options.x2, "y": self.options.y}
        return {**names, "formula": self._formula(), "fit": self.fit.to_dict(), "bands": self._bands(), **rows}

    def draw(self, path: Path) -> None:
        """The picture: the metric by the first size, a curve for each value of the second."""
        fit, curves = self.fit, {}
        for v in np.unique(fit.v):
            own = fit.v == v
            x = np.geomspace(fit.u.min(), fit.u.max(), _CURVE_POINTS)
            curves[f"{self.options.x2} {v:g}"] = (fit.u[own], fit.y[own], x, fit.predict(x, np.full_like(x, v)))
        plot_surface(curves, path, x_name=self.options.x, y_name=self.options.y)

    def _head(self) -> list[str]:
        fit, options = self.fit, self.options
        pairs = len(fit.loo_each)
        chosen = " (chosen by leave-one-out error)" if len(fit.candidates) > 1 else ""
        points = f"{len(fit.u)} points, {pairs} pairs of sizes: {options.y} by {options.x} and {options.x2}"
        return [points, f"law: {_words(fit.form)}{chosen}, R^2 {fit.r2:.5f}", f"  {self._formula()}"]

    def _formula(self) -> str:
        p, fit, options = self.fit.parameters, self.fit, self.options
        left = f"1 - {options.y}" if fit.complement else options.y
        u, v = (f"({name}/{unit:.4g})" for name, unit in zip((options.x, options.x2), fit.units))
        constant = f"{p['a']:.4g} + " if fit.form.endswith("constant") else ""
        if fit.form.startswith("additive"):
            return f"{left} = {constant}{p['b']:.4g} {u}^-{p['alpha']:.3g} + {p['c']:.4g} {v}^-{p['beta']:.3g}"
        return f"{left} = {constant}{p['b']:.4g} {u}^-{p['alpha']:.3g} {v}^-{p['beta']:.3g}"

    def _bands(self) -> dict[str, list[float] | None]:
        """Of the parameters; none of them can be below 0."""
        if not self.refits:
            return dict.fromkeys(_PARAMETERS)
        drawn = np.array([[fit.parameters[name] for name in _PARAMETERS] for fit in self.refits])
        center = np.array([self.fit.parameters[name] for name in _PARAMETERS])
        ends = np.maximum(widened_band(drawn, center, self.fit.free, self.options.level), 0.0)
        return dict(zip(_PARAMETERS, ends.T.tolist()))

    def _tables(self) -> list[Table]:
        options = self.options
        rows = [["law", "parameters", "error, leave one out", "error of all"]]
        for row in self.fit.candidates:
            errors = compact(row["loo"] ** 0.5, 3), compact(row["residual"], 3)
            rows.append([_words(row["form"]), str(row["parameters"]), *errors])
        tables = [rows]
        if self.refits:
            used = [name for name in _PARAMETERS if any(fit.parameters[name] for fit in self.refits)]
            bands = self._bands()
            cells = [[name, compact(self.fit.parameters[name], 4), _ends(bands[name])] for name in used]
            tables.append([["parameter", "", f"{options.level:.0%} band"], *cells])
        names = [options.x, options.x2, options.y]
        best = [f"best {name}" for name in names[:2]]
        if self.held_out:
            cells = [
                [f"{r['x']:g}", f"{r['x2']:g}", f"{r['y']:.5f}", f"{r['predicted']:.5f}", f"{r['error']:+.5f}"]
                for r in self.held_out
            ]
            tables.append([[*names, "held out: predicted", "error"], *cells])
        if self.predictions:
            cells = [[f"{r['x']:g}", f"{r['x2']:g}", f"{r['y']:.5f}", _ends(r["band"])] for r in self.predictions]
            tables.append([[*names, "band"], *cells])
        if self.splits:
            cells = [
                [f"{r['product']:g}", f"{r['x']:.4g}", f"{r['x2']:.4g}", f"{r['y']:.5f}", _ends(r["band"]), r["says"]]
                for r in self.splits
            ]
            tables.append([[f"{options.x} x {options.x2}", *best, options.y, f"band of {options.x}", ""], *cells])
        if self.budgets:
            head = ["FLOPs", *best, options.y, f"laws with this {options.x2}", ""]
            cells = [
                [f"{r['flops']:g}", f"{r['x']:.4g}", f"{r['x2']:g}", f"{r['y']:.5f}", _share(r["share"]), r["says"]]
                for r in self.budgets
            ]
            tables.append([head, *cells])
        return tables


def run_two(options: FitOptions) -> None:
    folder, found = with_folder(options, fit_two)
    for note in found.notes:
        print(f"warning: {note}", file=sys.stderr)
    print("\n".join(found.lines()))
    if folder is not None:
        parts = [f"# {options.y} by {options.x} and {options.x2}", *found.markdown()]
        save_results(folder, "fit", found.to_dict(), parts, options, found.draw, picture="fit.png", alt="law")


def fit_two(options: FitOptions) -> SurfaceAnalysis:
    """Fit a law of two sizes to three columns of a CSV file.

    Raises:
        ValueError: a column is missing or holds no numbers; too few pairs of sizes. FileNotFoundError: no such file.
    """
    flops = [] if options.flops is None else [options.flops]
    if options.x == options.x2:
        raise ValueError(f"--x and --x2 are both {options.x}; give two columns")
    rows = read_csv(options.points, numbers=[options.y], positive=[options.x, options.x2, *flops])
    u, v, y = (np.array([row[name] for row in rows]) for name in (options.x, options.x2, options.y))
    settings = {"form": options.form, "complement": options.complement, "absolute": options.absolute}
    with errors_of(f"{options.points}, u {options.x}, v {options.x2}, y {options.y}"):
        fit, notes = fit_surface(u, v, y, **settings), []
    refits: tuple[SurfaceFit, ...] = ()
    if options.resamples and len(u) > fit.num_parameters:
        refits = tuple(fit.bootstrap(options.resamples, options.seed))
    elif options.resamples:
        notes.append(f"no bootstrap band: {len(u)} points and {fit.num_parameters} parameters leave no residuals")
    notes += _untold(fit, v * u)
    out = _held_out(u, v, y, options, settings)
    law = fit, refits, options
    splits = tuple(_split(*law, product) for product in options.product)
    budgets = tuple(_budget(*law, [row[flops[0]] for row in rows], budget) for budget in options.budget)
    predictions = tuple(_prediction(*law, *pair) for pair in zip(options.predict[::2], options.predict[1::2]))
    return SurfaceAnalysis(options, fit, refits, out, splits, budgets, predictions, tuple(notes))


def _held_out(
    u: np.ndarray, v: np.ndarray, y: np.ndarray, options: FitOptions, settings: dict[str, Any]
) -> tuple[dict[str, float], ...]:
    """The pairs of the N largest products, predicted by the law of the others, whose form is chosen without them."""
    if not options.held_out:
        return ()
    products = np.unique(u * v)
    if options.held_out >= len(products):
        raise ValueError(
            f"--held-out must be below {len(products)}, the different products of the sizes, got {options.held_out}"
        )
    held = u * v >= products[-options.held_out]
    with errors_of(f"without the {options.held_out} largest products"):
        law = fit_surface(u[~held], v[~held], y[~held], **settings)
    predicted = law.predict(u[held], v[held])
    return tuple(
        {"x": float(a), "x2": float(b), "y": float(c), "predicted": float(d), "error": float(d - c)}
        for a, b, c, d in zip(u[held], v[held], y[held], predicted)
    )


def _split(fit: SurfaceFit, refits: tuple[SurfaceFit, ...], options: FitOptions, product: float) -> dict[str, Any]:
    """The best pair at a product, and the band of its first size."""
    best, band = best_split(fit, product), None
    if refits:
        drawn = np.log([best_split(law, product).u for law in refits])
        ends = np.exp(widened_band(drawn, np.log(best.u), fit.free, options.level))
        band = np.clip(ends, *split_ends(fit, product)).tolist()  # no pair beyond the measured sizes is looked at
    says = "" if best.is_inner else "an end of what was measured"
    return {"product": product, "x": best.u, "x2": best.v, "y": best.y, "band": band, "says": says}


def _budget(
    fit: SurfaceFit, refits: tuple[SurfaceFit, ...], options: FitOptions, flops: list[float], budget: float
) -> dict[str, Any]:
    """The best pair of so many FLOPs, and the share of the bootstrap's laws that choose its second size."""
    best = best_at_flops(fit, flops, budget)
    same = [best_at_flops(law, flops, budget).v == best.v for law in refits]
    says = "" if best.is_inner else f"no larger {options.x} was measured with it"
    share = float(np.mean(same)) if same else None
    return {"flops": budget, "x": best.u, "x2": best.v, "y": best.y, "share": share, "says": says}


def _prediction(
    fit: SurfaceFit, refits: tuple[SurfaceFit, ...], options: FitOptions, u: float, v: float
) -> dict[str, Any]:
    band = [float(end) for end in fit.band(u, v, options.level, refits=refits)] if refits else None
    return {"x": u, "x2": v, "y": float(fit.predict(u, v)), "band": band}


def _untold(fit: SurfaceFit, products: np.ndarray) -> list[str]:
    """What so many points leave open."""
    notes, rows = [], fit.candidates
    if abs(together := size_correlation(fit.u, fit.v)) > _TOGETHER:
        notes.append(
            f"the two sizes go together (correlation of their logarithms {together:.2f}): which of them helps can hardly be told"
        )
    if len(rows) > 1 and rows[1]["loo"] < rows[0]["loo"] * 2:
        names = [_words(row["form"]) for row in rows if row["loo"] < rows[0]["loo"] * 2]
        notes.append(
            f"the points hardly tell {' and '.join(names)} apart: their leave-one-out errors are within a factor of 2"
        )
    if len(fit.u) == len(fit.loo_each):
        notes.append(
            "no pair of sizes was measured twice: what differs by seed cannot be told from the law's own error"
        )
    if len(np.unique(products)) < 4:
        notes.append(
            f"{len(np.unique(products))} products of the sizes: they say which pair is best at equal products, and little of how the metric "
            "goes on beyond the largest"
        )
    return notes


def _words(form: str) -> str:
    return form.replace("_constant", " with a constant")


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _ends(band: list[float] | None) -> str:
    return "-" if band is None else f"{band[0]:.5g} to {band[1]:.5g}"
