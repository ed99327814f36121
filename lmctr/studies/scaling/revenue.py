"""`lmctr scaling revenue PAIRS.csv`: from offline metrics to revenue, and which metric it works for."""

from __future__ import annotations

import argparse
import csv
import dataclasses

from lmctr.studies.scaling.tables import check_file, markdown_table, output_folder, read_rows, text_table
from lmctr.utils.files import write_json, write_text


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling revenue`."""
    parser = actions.add_parser(
        "revenue",
        help="regress revenue on offline metrics",
        description="A line from each offline metric to revenue (G), with R^2, mean and largest deviation side by side. A row of the file is a "
        "model: its metrics, and the revenue that it earned online.",
        allow_abbrev=False,
    )
    parser.add_argument("pairs", metavar="PAIRS.csv", help="CSV file with a header, a row per model")
    parser.add_argument("--revenue", default="revenue", metavar="COLUMN", help="default: revenue")
    parser.add_argument(
        "--metrics", nargs="+", metavar="COLUMN", help="default: every other column that holds numbers only"
    )
    parser.add_argument("--no-plots", action="store_true", help="write no picture")
    parser.add_argument("--output", metavar="FOLDER", help="write revenue.json, revenue.md and revenue.png there")


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    from lmctr.scaling.revenue import compare_metrics

    folder = output_folder(args.output)
    if folder is not None and not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    names = args.metrics or _number_columns(args.pairs, args.revenue)
    if args.revenue in names:
        raise ValueError(f"--metrics {args.revenue}: that column is the revenue")
    rows = read_rows(args.pairs, numbers=[args.revenue, *names])
    revenue = [row[args.revenue] for row in rows]
    metrics = {name: [row[name] for row in rows] for name in names}
    try:
        fits = compare_metrics(metrics, revenue)
    except ValueError as error:
        raise ValueError(f"{args.pairs}: {error}") from error
    table = [["metric", "R^2", "mean deviation", "max deviation", "slope", "intercept"]]
    for name, fit in fits.items():
        numbers = (fit.mean_deviation, fit.max_deviation, fit.slope, fit.intercept)
        table.append([name, f"{fit.r2:.4f}", *(f"{value:.5g}" for value in numbers)])
    print(f"{len(rows)} models; deviations in the units of {args.revenue}\n{text_table(table)}")
    if folder is None:
        return 0
    write_json(
        folder / "revenue.json",
        {
            "revenue": args.revenue,
            "metrics": {name: dataclasses.asdict(fit) for name, fit in fits.items()},
            "command": args.command,
        },
    )
    parts = [f"# {args.revenue} by offline metric", f"{len(rows)} models, least squares.", markdown_table(table)]
    if not args.no_plots:
        from lmctr.analysis.plots_scaling import plot_revenue

        lines = {name: (fit.slope, fit.intercept, fit.r2) for name, fit in fits.items()}
        plot_revenue(metrics, revenue, lines, folder / "revenue.png", args.revenue)
        parts.append("![regressions](revenue.png)")
    write_text(folder / "revenue.md", "\n\n".join([*parts, f"```\n{args.command}\n```"]) + "\n")
    print(f"\nwritten to {folder}: revenue.json, revenue.md{'' if args.no_plots else ', revenue.png'}")
    return 0


def _number_columns(path: str, revenue: str) -> list[str]:
    with open(check_file(path), newline="", encoding="utf-8-sig") as file:
        reader = csv.DictReader(file)
        columns, rows = list(reader.fieldnames or ()), list(reader)
    found = [name for name in columns if name != revenue and all(_is_number(row[name]) for row in rows)]
    if not found:
        raise ValueError(f"{path} has no column of numbers besides {revenue!r}; its columns: {', '.join(columns)}")
    return found


def _is_number(text: str | None) -> bool:
    try:
        float(text or "")
    except ValueError:
        return False
    return True
