"""`lmctr scaling fit POINTS.csv`: a scaling law through points from anywhere, with bands and its error on held-out sizes."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.studies.scaling.tables import check_file, compact, markdown_table, output_folder, text_table
from lmctr.utils.files import write_json, write_text

if TYPE_CHECKING:
    import numpy as np

    from lmctr.scaling.fits import Extrapolation, ScalingFit

LAWS = ("auto", "power", "power_constant", "bnsl")
_CURVE_POINTS = 120


@dataclasses.dataclass(frozen=True)
class FitOptions:
    """How points are fitted; the names are those of `lmctr.scaling.fits.fit_scaling_law`.

    Args:
        held_out: largest sizes that are also predicted from the others; 0: none. level, resamples: of the bootstrap band; 0 resamples: no band.
    """

    law: str = "auto"
    breaks: int | None = None
    complement: bool = False
    absolute: bool = False
    criterion: str = "aicc"
    max_breaks: int = 6
    allow_overfit: bool = False
    restarts: int = 4
    hops: int = 12
    seed: int = 0
    held_out: int = 0
    level: float = 0.9
    resamples: int = 200

    def of_the_law(self) -> dict[str, Any]:
        """Arguments of `fit_scaling_law`."""
        own = ("held_out", "level", "resamples")
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in own}


@dataclasses.dataclass(frozen=True)
class FitAnalysis:
    """A law with what is said about it.

    Args:
        curve: (M,) x of the drawn curve. band: its ends (M,) each, None where `note` says why. notes: warnings in words.
    """

    x_name: str
    y_name: str
    options: FitOptions
    fit: ScalingFit
    extrapolation: Extrapolation | None
    curve: np.ndarray
    band: tuple[np.ndarray, np.ndarray] | None
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it. `lmctr scaling design` reads "fit"."""
        out = self.extrapolation
        return {
            "x": self.x_name,
            "y": self.y_name,
            "options": dataclasses.asdict(self.options),
            "formula": formula(self.fit),
            "fit": self.fit.to_dict(),
            "band": self._band_dict(),
            "held_out": None
            if out is None
            else {
                "fit": out.fit.to_dict(),
                "x": out.x.tolist(),
                "y": out.y.tolist(),
                "predicted": out.predicted.tolist(),
                "mean_error": out.mean_error,
                "max_error": out.max_error,
                "mean_relative_error": out.mean_relative_error,
                "constant_error": out.constant_error,
            },
            "notes": list(self.notes),
        }

    def _band_dict(self) -> dict[str, Any] | None:
        if self.band is None:
            return None
        low, high = (end.tolist() for end in self.band)
        return {"level": self.options.level, "x": self.curve.tolist(), "low": low, "high": high}

    def lines(self) -> list[str]:
        """What is printed."""
        fit = self.fit
        chosen = f" (chosen by {self.options.criterion})" if len(fit.candidates) > 1 else ""
        lines = [
            f"{len(fit.x)} points, {len(set(fit.x.tolist()))} sizes: {self.y_name} by {self.x_name}",
            f"law: {law_name(fit)}{chosen}, R^2 {fit.r2:.5f}",
            f"  {formula(fit)}",
        ]
        if len(fit.candidates) > 1:
            lines += ["", text_table(candidate_table(fit))]
        if self.extrapolation is not None:
            out = self.extrapolation
            lines += ["", self._held_out_line(), text_table(held_out_table(out))]
        return [*lines, *(["", *self.notes] if self.notes else [])]

    def markdown(self) -> str:
        """The same as a part of a Markdown document."""
        fit = self.fit
        chosen = f", chosen by {self.options.criterion}" if len(fit.candidates) > 1 else ""
        parts = [
            f"{len(fit.x)} points of {len(set(fit.x.tolist()))} sizes. Law: {law_name(fit)}{chosen}; R² {fit.r2:.5f}.",
            f"    {formula(fit)}",
        ]
        if len(fit.candidates) > 1:
            parts.append(markdown_table(candidate_table(fit)))
        if self.extrapolation is not None:
            parts += [self._held_out_line(), markdown_table(held_out_table(self.extrapolation))]
        return "\n\n".join([*parts, *self.notes])

    def _held_out_line(self) -> str:
        out = self.extrapolation
        return (
            f"held out: the {self.options.held_out} largest sizes, predicted by {law_name(out.fit)} of the others: mean error {out.mean_error:.3g}, "
            f"largest {out.max_error:.3g}; taking the largest seen size's mean instead: {out.constant_error:.3g}"
        )


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling fit`."""
    parser = actions.add_parser(
        "fit",
        help="fit a scaling law to points",
        description="Fit a power law, a power law with a constant or a broken neural scaling law (BNSL) to two columns of a CSV file. Repeated x "
        "are fine (seeds). Printed: the law, how its rivals did, and the error on held-out sizes.",
        allow_abbrev=False,
    )
    parser.add_argument("points", metavar="POINTS.csv", help="CSV file with a header")
    parser.add_argument("--x", required=True, metavar="COLUMN", help="size: FLOPs, parameters, samples")
    parser.add_argument("--y", required=True, metavar="COLUMN", help="metric")
    parser.add_argument(
        "--model", default="auto", choices=LAWS, help="the law (default: auto, the best by --criterion)"
    )
    parser.add_argument("--breaks", type=int, metavar="T", help="breaks of bnsl (default: chosen)")
    parser.add_argument(
        "--complement", action="store_true", help="fit 1 - metric: for metrics below 1 that grow, such as AUC and R/R*"
    )
    parser.add_argument("--absolute", action="store_true", help="residuals of the metric (default: of its logarithm)")
    parser.add_argument("--criterion", default="aicc", choices=("aicc", "loo"), help="default: aicc")
    parser.add_argument(
        "--max-breaks", type=int, default=6, metavar="T", help="most breaks that are tried (default: 6)"
    )
    parser.add_argument(
        "--allow-overfit",
        action="store_true",
        help="accept --breaks with more parameters than the sizes can tell apart",
    )
    parser.add_argument("--held-out", type=int, default=0, metavar="N", help="also predict the N largest sizes")
    parser.add_argument("--level", type=float, default=0.9, help="of the bootstrap band (default: 0.9)")
    parser.add_argument("--resamples", type=int, default=200, metavar="N", help="of the bootstrap; 0: no band")
    parser.add_argument("--predict", type=float, nargs="+", default=[], metavar="X", help="also the metric at these x")
    parser.add_argument("--restarts", type=int, default=4, help="starts of the search (default: 4)")
    parser.add_argument("--hops", type=int, default=12, help="hops of each start (default: 12)")
    parser.add_argument("--seed", type=int, default=0, help="of search and bootstrap (default: 0)")
    parser.add_argument("--no-plots", action="store_true", help="write no picture")
    parser.add_argument("--output", metavar="FOLDER", help="write fit.json, fit.md and fit.png there")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    from lmctr.scaling.fits import read_points

    options = FitOptions(
        args.model,
        args.breaks,
        args.complement,
        args.absolute,
        args.criterion,
        args.max_breaks,
        args.allow_overfit,
        args.restarts,
        args.hops,
        args.seed,
        args.held_out,
        args.level,
        args.resamples,
    )
    check_options(options)
    folder = output_folder(args.output)
    if folder is not None and not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    x, y = read_points(check_file(args.points), args.x, args.y)
    analysis = analyse(x, y, options, args.x, args.y)
    for note in analysis.notes:
        print(f"warning: {note}", file=sys.stderr)
    print("\n".join(analysis.lines()))
    predictions = predict(analysis, args.predict) if args.predict else []
    if predictions:
        print(text_table([["", args.y, "band"], *_prediction_rows(predictions, args.x)]))
    if folder is not None:
        values = analysis.to_dict() | {"predictions": predictions, "command": args.command}
        write_json(folder / "fit.json", values)
        parts = [f"# {args.y} by {args.x}", analysis.markdown()]
        if predictions:
            parts.append(markdown_table([[args.x, args.y, "band"], *_prediction_rows(predictions, args.x)]))
        if not args.no_plots:
            draw(analysis, folder / "fit.png")
            parts.append("![law](fit.png)")
        write_text(folder / "fit.md", "\n\n".join([*parts, f"```\n{args.command}\n```"]) + "\n")
        print(f"\nwritten to {folder}: fit.json, fit.md{'' if args.no_plots else ', fit.png'}")
    return 0


def check_options(options: FitOptions) -> None:
    """ValueError that names the option."""
    if options.held_out < 0:
        raise ValueError(f"--held-out must be at least 0, got {options.held_out}")
    if options.resamples != 0 and options.resamples < 2:
        raise ValueError(f"--resamples must be 0 (no band) or at least 2, got {options.resamples}")
    if not 0 < options.level < 1:
        raise ValueError(f"--level must be between 0 and 1, got {options.level:g}")
    if options.breaks is not None and options.law != "bnsl":
        raise ValueError(f"--breaks belongs to --model bnsl, got --model {options.law}")
    for name in ("restarts", "hops", "max_breaks"):
        if getattr(options, name) < (0 if name == "max_breaks" else 1):
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(options, name)}, which is too small")


def analyse(
    x: np.ndarray, y: np.ndarray, options: FitOptions, x_name: str = "x", y_name: str = "metric"
) -> FitAnalysis:
    """Fit a law, its band, and the same without the largest sizes.

    Args:
        x, y: (P,). options: how. x_name, y_name: what they are.

    Raises:
        ValueError: as `lmctr.scaling.fits.fit_scaling_law` does: too few sizes, x that are not positive, ...
    """
    import numpy as np

    from lmctr.scaling.fits import OverfitWarning, extrapolation_error, fit_scaling_law

    out, band, notes = None, None, []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", OverfitWarning)
        fit = fit_scaling_law(x, y, **options.of_the_law())
        if options.held_out:
            try:
                out = extrapolation_error(x, y, options.held_out, **options.of_the_law())
            except ValueError as error:
                raise ValueError(f"without the {options.held_out} largest sizes: {error}") from error
    notes += dict.fromkeys(str(entry.message) for entry in caught if issubclass(entry.category, OverfitWarning))
    curve = np.geomspace(fit.x.min() / 1.05, fit.x.max() * 1.05, _CURVE_POINTS)
    if options.resamples and len(fit.x) > fit.num_parameters:
        band = fit.band(curve, options.level, options.resamples, options.seed)
    elif options.resamples:
        notes.append(f"no bootstrap band: {len(fit.x)} points and {fit.num_parameters} parameters leave no residuals")
    return FitAnalysis(x_name, y_name, options, fit, out, curve, band, tuple(notes))


def predict(analysis: FitAnalysis, x: list[float]) -> list[dict[str, Any]]:
    """The law at x, with the band of a refitted law."""
    values = analysis.fit.predict(x)
    if analysis.band is None:
        return [{"x": float(at), "y": float(value), "low": None, "high": None} for at, value in zip(x, values)]
    options = analysis.options
    low, high = analysis.fit.band(x, options.level, options.resamples, options.seed)
    return [dict(zip(("x", "y", "low", "high"), map(float, row))) for row in zip(x, values, low, high)]


def _prediction_rows(predictions: list[dict[str, Any]], x_name: str) -> list[list[str]]:
    return [
        [
            f"{x_name} {row['x']:g}",
            f"{row['y']:.5g}",
            "-" if row["low"] is None else f"{row['low']:.5g} to {row['high']:.5g}",
        ]
        for row in predictions
    ]


def draw(analysis: FitAnalysis, path: Path, title: str | None = None) -> None:
    """The picture of a fit."""
    from lmctr.analysis.plots_scaling import plot_law

    fit, out = analysis.fit, analysis.extrapolation
    plot_law(
        fit.x,
        fit.y,
        analysis.curve,
        fit.predict(analysis.curve),
        path,
        band=analysis.band,
        held_out=None if out is None else (analysis.curve, out.fit.predict(analysis.curve)),
        complement=fit.complement,
        x_name=analysis.x_name,
        y_name=analysis.y_name,
        title=title,
    )


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
        aicc = None if row["aicc"] is None or math.isnan(row["aicc"]) else row["aicc"]
        cells = [row["law"], str(row["breaks"]), str(row["parameters"]), compact(aicc)]
        rows.append(cells + ([compact(row["loo"], 4)] if with_loo else []))
    return rows


def held_out_table(out: Extrapolation) -> list[list[str]]:
    """Measured and predicted values of the held-out points."""
    rows = [["x", "measured", "predicted", "error"]]
    for x, y, predicted in zip(out.x, out.y, out.predicted):
        rows.append([f"{x:.6g}", f"{y:.5f}", f"{predicted:.5f}", f"{predicted - y:+.5f}"])
    return rows
