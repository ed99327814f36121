"""`lmctr scaling revenue PAIRS.csv`: from offline metrics to revenue, and which metric it works for."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lmctr.analysis.plots_scaling import plot_revenue
from lmctr.scaling.revenue import RevenueFit, compare_metrics
from lmctr.studies.scaling.options import RevenueOptions
from lmctr.studies.scaling.tables import save_results, with_folder
from lmctr.utils.suggest import LISTED, errors_of, first_of
from lmctr.utils.tables import cell_number, markdown_table, read_cells, read_csv, text_table


@dataclass(frozen=True)
class RevenueComparison:
    """Lines from offline metrics to revenue.

    Args:
        revenue_name: its column. revenue: (P,) of the models. metrics: name -> (P,). fits: name -> line, by falling R^2.
        left_out: column of numbers -> the line where it has none.
    """

    revenue_name: str
    revenue: list[float]
    metrics: dict[str, list[float]]
    fits: dict[str, RevenueFit]
    left_out: dict[str, int] = field(default_factory=dict)

    def notes(self) -> list[str]:
        """Columns that look like metrics and are none of them."""
        return [
            f"{name} is left out: no number in line {line}; mend it, or choose by --metrics"
            for name, line in self.left_out.items()
        ]

    def table(self) -> list[list[str]]:
        table = [["metric", "R^2", "mean deviation", "max deviation", "slope", "intercept"]]
        for name, fit in self.fits.items():
            numbers = (fit.mean_deviation, fit.max_deviation, fit.slope, fit.intercept)
            table.append([name, f"{fit.r2:.4f}", *(f"{value:.5g}" for value in numbers)])
        return table

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it; `lmctr scaling design` reads "metrics"."""
        return {
            "revenue": self.revenue_name,
            "metrics": {name: dataclasses.asdict(fit) for name, fit in self.fits.items()},
            "notes": self.notes(),
        }

    def draw(self, path: Path) -> None:
        """The picture of the lines."""
        lines = {name: (fit.slope, fit.intercept, fit.r2) for name, fit in self.fits.items()}
        plot_revenue(self.metrics, self.revenue, lines, path, self.revenue_name)


def run(options: RevenueOptions) -> None:
    folder, found = with_folder(options, compare_pairs)
    models, table = len(found.revenue), found.table()
    for note in found.notes():
        print(f"warning: {note}", file=sys.stderr)
    print(f"{models} models; deviations in the units of {options.revenue}\n{text_table(table)}")
    if folder is not None:
        heading = [f"# {options.revenue} by offline metric", f"{models} models, least squares."]
        parts = [*heading, markdown_table(table), *found.notes()]
        save_results(
            folder, "revenue", found.to_dict(), parts, options, found.draw, picture="revenue.png", alt="regressions"
        )


def compare_pairs(options: RevenueOptions) -> RevenueComparison:
    """Fit a line from each metric of a CSV file to its revenue.

    Raises:
        ValueError: a column is missing or holds no numbers, too few pairs to fit. FileNotFoundError: no such file.
    """
    names, left_out = (options.metrics, {}) if options.metrics else _number_columns(options.pairs, options.revenue)
    if options.revenue in names:
        raise ValueError(f"--metrics {options.revenue}: that column is the revenue")
    rows = read_csv(options.pairs, numbers=[options.revenue, *names])
    revenue = [row[options.revenue] for row in rows]
    metrics = {name: [row[name] for row in rows] for name in names}
    with errors_of(options.pairs):
        fits = compare_metrics(metrics, revenue)
    return RevenueComparison(options.revenue, revenue, metrics, fits, left_out)


def _number_columns(path: str, revenue: str) -> tuple[list[str], dict[str, int]]:
    """Columns that hold numbers only, and those that do but for some cells, each with the line of the first such cell."""
    columns, rows = read_cells(path)
    found, left_out = [], {}
    for name in columns:
        wrong = [line for line, row in rows if cell_number(row[name]) is None]
        if name != revenue and not wrong:
            found.append(name)
        elif name != revenue and len(wrong) < len(rows):
            left_out[name] = wrong[0]
    if not found:
        cells = "".join(f"; {name} has none in line {line}" for name, line in left_out.items())
        raise ValueError(
            f"{path} has no column of numbers besides {revenue!r}; its columns: {first_of(columns, LISTED)}{cells}"
        )
    return found, left_out
