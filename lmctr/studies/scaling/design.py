"""`lmctr scaling design`: the best size of a retrieval MLP under a return on its machine cost."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.studies.scaling.tables import (
    check_file,
    compact,
    flops_text,
    markdown_table,
    output_folder,
    parse_sizes,
    read_rows,
    sizes_text,
    text_table,
    write_rows,
)
from lmctr.utils.files import read_json, write_json, write_text

if TYPE_CHECKING:
    from lmctr.scaling.cost_curve import CostCurve
    from lmctr.scaling.design import Design, DesignGrid, DesignResult
    from lmctr.scaling.fits import ScalingFit


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling design`."""
    parser = actions.add_parser(
        "design",
        help="best size under a return on machine cost",
        description="Search a grid of MLP sizes (a_0-a_1-...-1, the input first) for the one of most gain whose gain per cost is at least lambda "
        "(Eq. 7-8 of arXiv 2411.13322). The gain is revenue by metric by FLOPs; the cost of a measured size is its own, of another one "
        "interpolated in log FLOPs. Gains and costs are relative to the base size, unless --absolute.",
        allow_abbrev=False,
    )
    parser.add_argument("--fit", metavar="FIT.json", help="metric by FLOPs per sample, from `lmctr scaling fit`")
    parser.add_argument(
        "--costs",
        metavar="FILE",
        help="machine costs: .json of `lmctr scaling cost`, or .csv with a column sizes or flops, and one machines or cost",
    )
    parser.add_argument("--base", metavar="SIZES", help="size in use, such as 3328-1024-256-256-256-1")
    parser.add_argument("--minimal-roi", type=float, metavar="LAMBDA", help="least gain per cost")
    parser.add_argument("--revenue", metavar="REVENUE.json", help="metric to revenue, from `lmctr scaling revenue`")
    parser.add_argument("--metric", metavar="NAME", help="metric of REVENUE.json (default: that of FIT.json)")
    parser.add_argument(
        "--slope",
        type=float,
        help="revenue per unit of the metric, instead of --revenue (default: 1, gain in the metric)",
    )
    parser.add_argument("--intercept", type=float, default=0.0, help="revenue at metric 0; matters with --absolute")
    parser.add_argument("--price", type=float, default=1.0, help="of a unit of machine cost (default: 1)")
    parser.add_argument("--absolute", action="store_true", help="gains and costs as they are, without a base")
    parser.add_argument("--extrapolate", action="store_true", help="also sizes outside the measured range of FLOPs")
    parser.add_argument(
        "--candidates", metavar="FILE.csv", help="sizes to choose from, in a column sizes (default: the paper's grid)"
    )
    grid = parser.add_argument_group("grid", "the space of Appendix B.1; with these defaults it has 1,553 sizes")
    grid.add_argument("--num-sparse-features", type=int, default=200, help="default: 200")
    grid.add_argument("--num-dense", type=int, default=128, help="default: 128")
    grid.add_argument("--embedding-step", type=int, default=16, help="default: 16")
    grid.add_argument("--max-embedding-dim", type=int, default=1984, help="default: 1984")
    grid.add_argument("--width-step", type=int, default=128, help="default: 128")
    grid.add_argument("--hidden-layers", type=int, default=4, help="default: 4")
    grid.add_argument("--max-first-width", type=int, default=1024, help="default: 1024")
    grid.add_argument("--ratio", type=int, default=20, help="a layer is at least 1/ratio of the one before")
    grid.add_argument(
        "--no-ratio-on-input", action="store_true", help="the ratio does not bound the first layer (9,191 sizes)"
    )
    grid.add_argument("--max-flops", type=float, default=143e6, help="per user-ad pair (default: 143e6)")
    parser.add_argument("--count", action="store_true", help="only count the grid's sizes")
    parser.add_argument("--rows", type=int, default=15, help="most rows of the Pareto front that are shown")
    parser.add_argument("--no-plots", action="store_true", help="write no picture")
    parser.add_argument(
        "--output", metavar="FOLDER", help="write designs.csv, design.json, design.md, pareto.png there"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    grid = _grid(args)
    if args.count:
        print(f"{len(grid.configurations()):,} sizes")
        return 0
    for name in ("fit", "costs", "minimal_roi"):
        if getattr(args, name) is None:
            raise ValueError(f"--{name.replace('_', '-')} is missing (only --count goes without)")
    if args.base is None and not args.absolute:
        raise ValueError("--base is missing: gains are relative to the size in use; or give --absolute")
    if args.price <= 0:
        raise ValueError(f"--price must be above 0, got {args.price:g}")
    from lmctr.scaling.design import choose_design, mlp_flops

    folder = output_folder(args.output)
    if folder is not None and not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    fit, metric = read_fit(args.fit)
    slope, intercept = _revenue(args, metric)
    curve = read_costs(args.costs, args.extrapolate)
    base = None if args.base is None else parse_sizes(args.base, "--base")
    if args.candidates is None:
        candidates = grid.configurations()
    else:
        rows = read_rows(args.candidates, text=["sizes"])
        candidates = [parse_sizes(row["sizes"], args.candidates) for row in rows]
    if base is not None and not curve.covers(mlp_flops(base), base):
        raise ValueError(
            f"--base {sizes_text(base)} has {flops_text(mlp_flops(base))} FLOPs, outside the measured range {flops_text(curve.low)} to "
            f"{flops_text(curve.high)} of {args.costs}: measure it, or give --extrapolate"
        )
    covered = [size for size in candidates if curve.covers(mlp_flops(size), size)]
    notes = coverage_notes(candidates, covered, fit, curve)
    if not covered:
        raise ValueError(f"{args.costs}: {notes[0]}")
    result = choose_design(
        covered,
        lambda size: slope * float(fit.predict(mlp_flops(size))) + intercept,
        lambda size: args.price * curve(mlp_flops(size), size),
        args.minimal_roi,
        base=base,
        relative=not args.absolute,
    )
    print("\n".join([*summary(result), *notes, "", "Pareto front", text_table(front_table(result, args.rows))]))
    if folder is not None:
        save_design(result, folder, notes, args.command, args.rows, plots=not args.no_plots)
        print(f"\nwritten to {folder}: designs.csv, design.json, design.md{'' if args.no_plots else ', pareto.png'}")
    return 0


def _grid(args: argparse.Namespace) -> DesignGrid:
    from lmctr.scaling.design import DesignGrid

    return DesignGrid(
        num_sparse_features=args.num_sparse_features,
        num_dense=args.num_dense,
        embedding_step=args.embedding_step,
        width_step=args.width_step,
        max_embedding_dim=args.max_embedding_dim,
        num_hidden_layers=args.hidden_layers,
        max_first_width=args.max_first_width,
        ratio=args.ratio,
        ratio_on_input=not args.no_ratio_on_input,
        max_flops=int(args.max_flops),
    )


def read_fit(path: str | Path) -> tuple[ScalingFit, str]:
    """The law in a file of `lmctr scaling fit`, and the name of its metric."""
    from lmctr.scaling.fits import ScalingFit

    values = read_json(check_file(path))
    try:
        return ScalingFit.from_dict(values["fit"]), str(values.get("y", "metric"))
    except (KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no law: it is not the fit.json of `lmctr scaling fit` ({error})") from error


def _revenue(args: argparse.Namespace, metric: str) -> tuple[float, float]:
    """Slope and intercept of G."""
    if args.revenue is None:
        if args.metric is not None:
            raise ValueError("--metric belongs to --revenue")
        return (1.0 if args.slope is None else args.slope), args.intercept
    if args.slope is not None:
        raise ValueError("--revenue and --slope both say what the metric is worth: keep one")
    name = metric if args.metric is None else args.metric
    lines = read_json(check_file(args.revenue)).get("metrics", {})
    if name not in lines:
        raise ValueError(f"{args.revenue} has no metric {name!r}; it has {', '.join(lines) or 'none'} (see --metric)")
    return lines[name]["slope"], lines[name]["intercept"]


def read_costs(path: str | Path, extrapolate: bool = False) -> CostCurve:
    """Machine costs by FLOPs per sample, from the JSON of `lmctr scaling cost` or a CSV file."""
    from lmctr.scaling.cost_curve import CostCurve
    from lmctr.scaling.design import mlp_flops

    path = check_file(path)
    measured = {}
    if path.suffix == ".json":
        models = read_json(path).get("models")
        if not isinstance(models, list) or not all("fraction" in row and "flops_per_sample" in row for row in models):
            raise ValueError(f"{path} holds no machine costs: it is not a result of `lmctr scaling cost`")
        flops, costs = [row["flops_per_sample"] for row in models], [row["fraction"] for row in models]
    else:
        head = path.read_text(encoding="utf-8-sig").split("\n", 1)[0].strip().split(",")
        cost = "machines" if "machines" in head else "cost"
        if "sizes" in head:
            rows = read_rows(path, text=["sizes"], numbers=[cost])
            sizes = [parse_sizes(row["sizes"], str(path)) for row in rows]
            flops, costs = [mlp_flops(size) for size in sizes], [row[cost] for row in rows]
            measured = dict(zip(sizes, costs))
        else:
            rows = read_rows(path, numbers=["flops", cost])
            flops, costs = [row["flops"] for row in rows], [row[cost] for row in rows]
    try:
        return CostCurve(flops, costs, measured, extrapolate)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def coverage_notes(
    candidates: Sequence[tuple[int, ...]], covered: Sequence[tuple[int, ...]], fit: ScalingFit, curve: CostCurve
) -> list[str]:
    """What the search leaves out or extrapolates, in words."""
    from lmctr.scaling.design import mlp_flops

    notes = []
    if len(covered) < len(candidates):
        notes.append(
            f"{len(candidates) - len(covered):,} of {len(candidates):,} sizes lie outside the measured costs "
            f"({flops_text(curve.low)} to {flops_text(curve.high)} FLOPs) and are left out"
        )
    interpolated = sum(size not in curve.measured for size in covered)
    notes.append(
        f"cost of {len(covered) - interpolated:,} sizes measured, of {interpolated:,} interpolated in log FLOPs"
    )
    beyond = sum(not fit.x.min() <= mlp_flops(size) <= fit.x.max() for size in covered)
    if beyond:
        notes.append(
            f"the law is extrapolated for {beyond:,} sizes: it was fitted on {flops_text(fit.x.min())} to {flops_text(fit.x.max())} FLOPs"
        )
    return notes


def summary(result: DesignResult) -> list[str]:
    """The choice in words."""
    best = result.best
    relative = "" if result.base is None else f" above {sizes_text(result.base.sizes)}"
    flops = "" if best.flops is None else f", {flops_text(best.flops)} FLOPs"
    return [
        f"{result.num_candidates:,} designs, {result.num_feasible:,} with ROI of at least {result.minimal_roi:g}",
        f"chosen: {sizes_text(best.sizes)}{flops}: gain {best.gain:.5g}, cost {best.cost:.5g}{relative}, ROI {_roi(best, result)}",
    ]


def front_table(result: DesignResult, rows: int | None = None) -> list[list[str]]:
    """The Pareto front; where it is longer than `rows`, evenly spaced designs of it, the chosen one among them."""
    front = list(result.front)
    if rows is not None and len(front) > rows:
        step = (len(front) - 1) / max(rows - 1, 1)
        kept = {round(place * step) for place in range(rows)}
        front = [design for place, design in enumerate(front) if place in kept or design == result.best]
    table = [["design", "FLOPs", "gain", "cost", "ROI", ""]]
    for design in front:
        flops = "-" if design.flops is None else flops_text(design.flops)
        chosen = "chosen" if design == result.best else ""
        table.append(
            [
                sizes_text(design.sizes),
                flops,
                f"{design.gain:.5g}",
                f"{design.cost:.5g}",
                _roi(design, result),
                chosen,
            ]
        )
    return table


def _roi(design: Design, result: DesignResult) -> str:
    """ROI; relative to a base, a design that costs no more has none."""
    if result.base is not None and design.cost <= 0:
        return (
            "-" if design.gain < 0 else "saves" if design.cost < 0 else "as the base" if design.gain == 0 else "free"
        )
    return compact(design.roi)


def save_design(
    result: DesignResult, folder: Path, notes: Sequence[str], command: str, rows: int = 15, plots: bool = True
) -> None:
    """Write designs.csv, design.json, design.md and pareto.png."""
    front = set(result.front)
    write_rows(
        folder / "designs.csv",
        [
            {
                "design": sizes_text(design.sizes),
                "flops": design.flops,
                "gain": design.gain,
                "cost": design.cost,
                "on_front": int(design in front),
                "chosen": int(design == result.best),
            }
            for design in result.candidates
        ],
    )
    write_json(
        folder / "design.json",
        {
            "best": _plain(result.best),
            "base": None if result.base is None else _plain(result.base),
            "minimal_roi": result.minimal_roi,
            "num_candidates": result.num_candidates,
            "num_feasible": result.num_feasible,
            "front": [_plain(design) for design in result.front],
            "notes": list(notes),
            "command": command,
        },
    )
    parts = [
        "# Design under a return on machine cost",
        *summary(result),
        *notes,
        markdown_table(front_table(result, rows)),
    ]
    if plots:
        draw_designs(result, folder / "pareto.png")
        parts.append("![designs](pareto.png)")
    write_text(folder / "design.md", "\n\n".join([*parts, f"```\n{command}\n```"]) + "\n")


def draw_designs(result: DesignResult, path: Path, title: str | None = None) -> None:
    """The picture of a search."""
    from lmctr.analysis.plots_scaling import plot_designs

    relative = "" if result.base is None else f" relative to {sizes_text(result.base.sizes)}"
    plot_designs(
        [design.cost for design in result.candidates],
        [design.gain for design in result.candidates],
        path,
        front=([design.cost for design in result.front], [design.gain for design in result.front]),
        best=(result.best.cost, result.best.gain),
        minimal_roi=result.minimal_roi,
        cost_name=f"machine cost{relative}",
        gain_name="gain",
        title=title,
    )


def _plain(design: Design) -> dict[str, Any]:
    roi = design.roi
    return {
        "design": sizes_text(design.sizes),
        "flops": design.flops,
        "gain": design.gain,
        "cost": design.cost,
        "roi": roi if abs(roi) != float("inf") else None,
    }
