"""`lmctr scaling design`: the best size of a retrieval MLP under a return on its machine cost."""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmctr.analysis.plots_scaling import plot_designs
from lmctr.scaling.cost_curve import CostCurve
from lmctr.scaling.design import Design, DesignResult, choose_design, mlp_flops
from lmctr.scaling.fits import ScalingFit
from lmctr.studies.scaling.options import DesignOptions, check_sizes_x
from lmctr.studies.scaling.tables import compact, flops_text, parse_sizes, save_results, sizes_text, with_folder
from lmctr.utils.files import check_file, read_json
from lmctr.utils.suggest import LISTED, errors_of, first_of
from lmctr.utils.tables import markdown_table, read_cells, read_csv, text_table, write_csv

_NAMED = 12  # designs at most that are named in the picture


@dataclass
class DesignChoice:
    """A search with what is said about it. notes: what it leaves out or extrapolates, and how firm the choice is, in words."""

    result: DesignResult
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """The choice in words."""
        result, best = self.result, self.result.best
        relative = "" if result.base is None else f" above {sizes_text(result.base.sizes)}"
        flops = "" if best.flops is None else f", {flops_text(best.flops)} FLOPs"
        unreached = []
        if not result.is_reached:
            highest, kept = "no design gains", "the size in use stays"
            if result.highest_roi is not None:
                highest = f"the highest ROI of a gain is {compact(result.highest_roi)}"
            if best.sizes != result.base.sizes:
                kept = "the chosen one gains nothing, and costs less than the size in use"
            unreached = [f"ROI {result.minimal_roi:g} is not reached by any design: {highest}; {kept}"]
        return [
            f"{result.num_candidates:,} designs, {result.num_feasible:,} with ROI of at least {result.minimal_roi:g}",
            f"chosen: {sizes_text(best.sizes)}{flops}: gain {best.gain:.5g}, cost {best.cost:.5g}{relative}, ROI {self._roi(best)}",
            *unreached,
            *self.notes,
        ]

    def front_table(self, rows: int) -> list[list[str]]:
        """The Pareto front; where it is longer than `rows`, evenly spaced designs of it, the chosen one among them."""
        front, best = list(self.result.front), self.result.best
        if len(front) > rows:
            step = (len(front) - 1) / max(rows - 1, 1)
            kept = {round(place * step) for place in range(rows)}
            front = [design for place, design in enumerate(front) if place in kept or design == best]
        table = [["design", "FLOPs", "gain", "cost", "ROI", ""]]
        for design in front:
            flops = "-" if design.flops is None else flops_text(design.flops)
            numbers = [flops, f"{design.gain:.5g}", f"{design.cost:.5g}", self._roi(design)]
            table.append([sizes_text(design.sizes), *numbers, "chosen" if design == best else ""])
        return table

    def _roi(self, design: Design) -> str:
        """ROI; relative to a base, a design that costs no more has none."""
        if self.result.base is None or design.cost > 0:
            return compact(design.roi)
        if design.gain < 0:
            return "-"
        if design.cost < 0:
            return "saves"
        return "as the base" if design.gain == 0 else "free"

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        result = self.result
        return {
            "best": _plain(result.best),
            "base": None if result.base is None else _plain(result.base),
            "minimal_roi": result.minimal_roi,
            "is_reached": result.is_reached,
            "highest_roi": result.highest_roi if result.highest_roi != float("inf") else None,
            "num_candidates": result.num_candidates,
            "num_feasible": result.num_feasible,
            "front": [_plain(design) for design in result.front],
            "notes": self.notes,
        }

    def rows(self) -> list[dict[str, Any]]:
        """All designs, as rows of a CSV file."""
        front, best = set(self.result.front), self.result.best
        return [
            _cells(design) | {"on_front": int(design in front), "chosen": int(design == best)}
            for design in self.result.candidates
        ]

    def draw(self, path: Path, title: str | None = None, unit: str = "") -> None:
        """The picture of the search. unit: of gain and cost, at its axes."""
        result = self.result
        relative = "" if result.base is None else f" relative to {sizes_text(result.base.sizes)}"
        within = f" ({unit})" if unit else ""
        every, front = (
            ([design.cost for design in designs], [design.gain for design in designs])
            for designs in (result.candidates, result.front)
        )
        named = next((few for few in (result.candidates, result.front) if len(few) <= _NAMED), ())
        plot_designs(
            *every,
            path,
            front=front,
            best=(result.best.cost, result.best.gain),
            best_name=sizes_text(result.best.sizes),
            labels={sizes_text(design.sizes): (design.cost, design.gain) for design in named},
            minimal_roi=result.minimal_roi,
            cost_name=f"machine cost{relative}{within}",
            gain_name=f"gain{within}",
            title=title,
        )


def _cells(design: Design) -> dict[str, Any]:
    return {"design": sizes_text(design.sizes), "flops": design.flops, "gain": design.gain, "cost": design.cost}


def _plain(design: Design) -> dict[str, Any]:
    return _cells(design) | {"roi": design.roi if abs(design.roi) != float("inf") else None}


def run(options: DesignOptions) -> int:
    """Search, print, and write where `options.output` asks for it; with `options.count` only count the grid.

    Returns:
        The exit code: 3 where no design gains with the return that was asked for.
    """
    if options.count:
        print(f"{len(options.grid().configurations()):,} sizes")
        return 0
    folder, found = with_folder(options, choose_size)
    table = found.front_table(options.rows)
    print("\n".join([*found.lines(), "", "Pareto front", text_table(table)]))
    if folder is not None:
        write_csv(folder / "designs.csv", found.rows(), line_end="\n")
        parts = ["# Design under a return on machine cost", *found.lines(), markdown_table(table)]
        pictures = {"draw": found.draw, "picture": "pareto.png", "alt": "designs"}
        save_results(folder, "design", found.to_dict(), parts, options, before=["designs.csv"], **pictures)
    return 0 if found.result.is_reached else 3


def choose_size(options: DesignOptions) -> DesignChoice:
    """The size of most gain under a return on its machine cost.

    Raises:
        ValueError: a size of the grid is out of range, a file does not hold what it should, no size is feasible. FileNotFoundError: no such
            file.
    """
    grid = options.grid()
    fit, metric = read_fit(options.fit)
    slope, intercept = _revenue(options, metric)
    ends = fit.predict([fit.x.min(), fit.x.max()])
    if options.revenue is None and options.slope is None and ends[1] < ends[0]:
        raise ValueError(
            f"{options.fit}: {metric} falls with the FLOPs, and without --slope a higher value is a gain; give what a unit of it is worth, a "
            "negative --slope, or --revenue"
        )
    curve = read_costs(options.costs, options.extrapolate)
    base = None if options.base is None else parse_sizes(options.base, "--base")
    if options.candidates is None:
        candidates = grid.configurations()
        if not candidates:
            raise ValueError(
                f"the grid has no size: none of {options.num_hidden_layers} hidden layers meets --max-flops {options.max_flops:g}, "
                f"--max-embedding-dim {options.max_embedding_dim} (steps of {options.embedding_step}) and --max-first-width {options.max_first_width} "
                f"(steps of {options.width_step}) with --ratio {options.ratio}"
            )
    else:
        rows = read_csv(options.candidates, text=["sizes"])
        candidates = [parse_sizes(row["sizes"], options.candidates) for row in rows]
    if base is not None and not curve.covers(mlp_flops(base), base):
        raise ValueError(
            f"--base {sizes_text(base)} has {flops_text(mlp_flops(base))} FLOPs, outside the measured range {flops_text(curve.low)} to "
            f"{flops_text(curve.high)} of {options.costs}: measure it, or give --extrapolate"
        )
    covered = [size for size in candidates if curve.covers(mlp_flops(size), size)]
    notes = coverage_notes(candidates, covered, fit, curve, None if options.absolute else base)
    if not covered:
        raise ValueError(f"{options.costs}: {notes[0]}")
    result = choose_design(
        covered,
        lambda size: slope * float(fit.predict(mlp_flops(size))) + intercept,
        lambda size: options.price * curve(mlp_flops(size), size),
        options.minimal_roi,
        base=base,
        relative=not options.absolute,
    )
    return DesignChoice(result, notes)


def read_fit(path: str | Path) -> tuple[ScalingFit, str]:
    """The law in a file of `lmctr scaling fit`, and the name of its metric. Raises `ValueError`: no law, or one of another x."""
    values = read_json(check_file(path))
    check_sizes_x(str(values.get("x")), f"{path}: a design")
    try:
        return ScalingFit.from_dict(values["fit"]), str(values.get("y", "metric"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no law: it is not the fit.json of `lmctr scaling fit` ({error})") from error


def _revenue(options: DesignOptions, metric: str) -> tuple[float, float]:
    """Slope and intercept of G."""
    if options.revenue is None:
        if options.metric is not None:
            raise ValueError("--metric belongs to --revenue")
        return (1.0 if options.slope is None else options.slope), options.intercept
    for name in ("slope", "intercept"):
        if getattr(options, name):
            raise ValueError(f"--revenue and --{name} both say what the metric is worth: keep one")
    name = metric if options.metric is None else options.metric
    lines = read_json(check_file(options.revenue)).get("metrics", {})
    if name not in lines:
        raise ValueError(
            f"{options.revenue} has no metric {name!r}; it has {', '.join(lines) or 'none'} (see --metric)"
        )
    return lines[name]["slope"], lines[name]["intercept"]


def read_costs(path: str | Path, extrapolate: bool = False) -> CostCurve:
    """Machine costs by FLOPs per sample, from the JSON of `lmctr scaling cost` or a CSV file."""
    path = check_file(path)
    measured = {}
    if path.suffix == ".json":
        models = read_json(path).get("models")
        if not isinstance(models, list) or not all("fraction" in row and "flops_per_sample" in row for row in models):
            raise ValueError(f"{path} holds no machine costs: it is not a result of `lmctr scaling cost`")
        flops, costs = [row["flops_per_sample"] for row in models], [row["fraction"] for row in models]
    else:
        head, _ = read_cells(path)
        cost = "machines" if "machines" in head else "cost"
        if cost not in head or not {"sizes", "flops"} & {*head}:
            raise ValueError(
                f"{path}: costs need a column sizes or flops, and one machines or cost; its columns: {first_of(head, LISTED)}"
            )
        text, numbers = (["sizes"], [cost]) if "sizes" in head else ([], ["flops", cost])
        rows = read_csv(path, text, positive=numbers)
        costs = [row[cost] for row in rows]
        sizes = [parse_sizes(row["sizes"], str(path)) for row in rows if text]
        flops = [mlp_flops(size) for size in sizes] or [row["flops"] for row in rows]
        measured = {
            size: math.exp(statistics.fmean(math.log(cost) for own, cost in zip(sizes, costs) if own == size))
            for size in sizes
        }
    with errors_of(path):
        return CostCurve(flops, costs, measured, extrapolate)


def coverage_notes(
    candidates: Sequence[tuple[int, ...]],
    covered: Sequence[tuple[int, ...]],
    fit: ScalingFit,
    curve: CostCurve,
    base: tuple[int, ...] | None = None,
) -> list[str]:
    """What the search leaves out or extrapolates, in words. base: the size in use, whose gain and cost all others' are relative to."""
    notes, low, high = [], fit.x.min(), fit.x.max()
    if len(covered) < len(candidates):
        notes.append(
            f"{len(candidates) - len(covered):,} of {len(candidates):,} sizes lie outside the measured costs "
            f"({flops_text(curve.low)} to {flops_text(curve.high)} FLOPs) and are left out; --extrapolate keeps them, --candidates names others"
        )
    ways = Counter(curve.way(mlp_flops(size), size) for size in covered)
    said = [f"cost of {ways['measured']:,} sizes measured", f"of {ways['interpolated']:,} interpolated in log FLOPs"]
    if ways["extrapolated"]:
        said.append(f"of {ways['extrapolated']:,} extrapolated")
    notes.append(", ".join(said))
    if base is not None and (way := curve.way(mlp_flops(base), base)) != "measured":
        notes[-1] += f"; that of the size in use {way}"
    beyond = {size for size in {*covered, base} - {None} if not low <= mlp_flops(size) <= high}
    if beyond:
        own = " and the one in use" if base in beyond else ""
        others = len(beyond) - (base in beyond)
        notes.append(
            f"the law is extrapolated for {others:,} sizes{own}: it was fitted on {flops_text(low)} to {flops_text(high)} FLOPs"
        )
    return notes
