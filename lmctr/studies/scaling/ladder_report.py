"""What a ladder says: law, noise, machine cost, chosen design, allocation, as text, Markdown, JSON and pictures.

Decided: the gain of a size is G of the law's value, not of the size's own noisy mean; its machine cost is the fraction before rounding
(with few machines rounding would hide what sizes differ in), times the price. How firm a choice is, is told by choosing again with the laws
of the bootstrap; machine costs and G are taken as given there.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from typing import Any

from lmctr.analysis.plots_scaling import plot_machine_cost
from lmctr.evaluation.evaluator import LOWER_IS_BETTER
from lmctr.scaling.allocation import Allocation, allocate
from lmctr.scaling.cost_curve import CostCurve
from lmctr.scaling.design import Design, DesignResult, choose_design, mlp_flops
from lmctr.scaling.fits import ScalingFit
from lmctr.studies.scaling.allocate import allocation_dict, allocation_lines, allocation_table
from lmctr.studies.scaling.design import DesignChoice
from lmctr.studies.scaling.fit import FitAnalysis
from lmctr.studies.scaling.ladder_file import Ladder
from lmctr.studies.scaling.tables import compact, document, flops_text, sizes_text
from lmctr.utils.files import read_json, write_json, write_text
from lmctr.utils.measure import machine
from lmctr.utils.tables import markdown_table, text_table

_FRONT_ROWS = 15
# What machines are counted from; times beside are in seconds where their names do not say milliseconds.
_COUNTED_FROM = ("base", "base_machines", "latency_ms", "quantile", "confidence")


class Report:
    """Collected results of a ladder.

    Args:
        ladder: the checked file. sizes: rows of sizes.csv, with costs. missing: names of runs that are not finished.
    """

    def __init__(self, ladder: Ladder, sizes: list[dict[str, Any]], missing: list[str], command: str):
        self.ladder, self.sizes, self.missing, self.command = ladder, sizes, missing, command
        self.analysis: FitAnalysis | None = None
        self.design: DesignChoice | None = None
        self.votes: Counter[str] = Counter()
        self.allocation: Allocation | None = None

    # ---- choices ----

    @property
    def measured(self) -> list[dict[str, Any]]:
        """Sizes with a machine cost."""
        return [row for row in self.sizes if row.get("qps") is not None]

    def choose(self) -> None:
        """The size of most gain under the minimal ROI. Raises `ValueError`: none is feasible."""
        section, ladder, fit = self.ladder.design, self.ladder, self.analysis.fit
        cost_of = {
            row["size"]: ladder.revenue.price * ladder.cost.base_machines * row["relative"] for row in self.measured
        }
        x_of: dict[Any, float] = {row["size"]: row[ladder.x] for row in self.sizes}
        base = section.base or ladder.cost.base
        if base not in cost_of:
            raise ValueError(
                f"design.base {base} has no machine cost: it missed the latency limit, or has no finished run"
            )
        notes: list[str] = []
        if section.grid is not None:
            curve = CostCurve([x_of[name] for name in cost_of], list(cost_of.values()))
            every = section.sizes().configurations()
            inside = [size for size in every if curve.covers(mlp_flops(size))]
            for size in inside:
                x_of[size], cost_of[size] = float(mlp_flops(size)), curve(mlp_flops(size))
            notes.append(
                f"{len(inside):,} of the grid's {len(every):,} sizes lie within the measured FLOPs; their costs are interpolated"
            )

        def choice(law: ScalingFit) -> DesignResult:
            values = ladder.revenue.slope * law.predict(list(x_of.values())) + ladder.revenue.intercept
            gain_of, reference = dict(zip(x_of, values)), base if section.relative else None
            candidates = list(cost_of)
            gain, cost = gain_of.__getitem__, cost_of.__getitem__
            return choose_design(candidates, gain, cost, section.minimal_roi, reference, relative=section.relative)

        flops = {row["size"]: float(row["flops_per_sample"]) for row in self.sizes}
        self.design = DesignChoice(_with_flops(choice(fit), flops), notes)
        if self.analysis.band is None:
            return
        for law in fit.bootstrap(self.analysis.options.resamples, self.analysis.options.seed):
            try:
                self.votes[sizes_text(choice(law).best.sizes)] += 1
            except ValueError:
                self.votes["none is feasible"] += 1

    def allocate(self) -> None:
        """One design per scenario under the budget. Raises `ValueError`: a scenario or the budget is infeasible."""
        section, scenarios = self.ladder.allocate, {}
        for scenario in section.scenarios:
            rows = self.measured
            if scenario.name in self.ladder.scenarios:  # it has a law and costs of its own
                own = read_json(self.ladder.scenarios[scenario.name].output_dir / "ladder.json")
                rows = [row for row in own["sizes"] if row["qps"] is not None]
            scenarios[scenario.name] = [
                Design(
                    row["size"],
                    scenario.slope * row["law"] + scenario.intercept,
                    scenario.price * scenario.base_machines * row["relative"],
                )
                for row in rows
            ]
        self.allocation = allocate(scenarios | section.files, section.budget, section.minimal_roi)

    # ---- words ----

    def noise(self) -> list[str]:
        """How the spread over seeds compares with what sizes differ in."""
        means = [row["mean"] for row in self.sizes]
        spreads = [row["std"] for row in self.sizes if row["std"] is not None]
        lines = []
        if spreads:
            pooled = math.sqrt(sum(spread**2 for spread in spreads) / len(spreads))
            span = max(means) - min(means)
            lines.append(
                f"noise: the standard deviation over seeds is {pooled:.2g} (pooled), the means of the sizes span {span:.2g}"
                + (f", {span / pooled:.1f} times as much" if pooled else "")
            )
        else:
            lines.append("noise: one seed per size, so nothing tells chance from size")
        ordered = sorted(self.sizes, key=lambda row: row[self.ladder.x])
        better = -1 if self.ladder.metric.endswith(LOWER_IS_BETTER) else 1
        steps = [b["mean"] - a["mean"] for a, b in itertools.pairwise(ordered)]
        wrong = sum(better * step <= 0 for step in steps)
        small, large = (self.analysis.fit.predict(ordered[place][self.ladder.x]) for place in (0, -1))
        if better * (large - small) <= 0:
            lines.append("the law finds no gain from size: what is chosen by it below is no advice")
        if wrong:
            lines.append(f"noise: {wrong} of {len(steps)} steps to the next larger size make the mean no better")
        return lines

    def lines(self) -> list[str]:
        """What is printed."""
        lines = ["", text_table(self._size_table()), "", *self._missing_lines(), *self._cut_lines(), *self.noise(), ""]
        lines += [*self.analysis.lines(), *(["", *self.analysis.notes] if self.analysis.notes else [])]
        for title, content, table in self._choices():
            lines += ["", title, *content, text_table(table)]
        return lines

    def _missing_lines(self) -> list[str]:
        return [f"not finished, and left out: {', '.join(self.missing)}"] if self.missing else []

    def _choices(self) -> list[tuple[str, list[str], list[list[str]]]]:
        found = []
        if self.design is not None:
            unit = f" (gain and cost in {self.ladder.revenue.unit})" if self.ladder.revenue.unit else ""
            content = [*self.design.lines(), *self._votes()]
            title = f"Design under a return on machine cost{unit}"
            found.append((title, content, self.design.front_table(_FRONT_ROWS)))
        if self.allocation is not None:
            content = allocation_lines(self.allocation)
            found.append(("Allocation between scenarios", content, allocation_table(self.allocation)))
        return found

    def _votes(self) -> list[str]:
        total = sum(self.votes.values())
        if not total:
            return []
        shares = ", ".join(f"{name} {count / total:.0%}" for name, count in self.votes.most_common(5))
        more = "" if len(self.votes) <= 5 else f", {len(self.votes) - 5} others"
        return [f"choices of {total} bootstrap laws: {shares}{more}"]

    def _size_table(self) -> list[list[str]]:
        with_cost = self.ladder.cost is not None
        head = ["size", self.ladder.x, "parameters", f"{self.ladder.split} {self.ladder.metric}", "seeds", "law"]
        table = [head + (["requests/s", "95 % of windows", "relative cost", "machines"] if with_cost else [])]
        for row in self.sizes:
            spread = "" if row["std"] is None else f" ± {row['std']:.5f}"
            cells = [
                row["size"],
                flops_text(row[self.ladder.x]),
                flops_text(row["parameters"]),
                f"{row['mean']:.5f}{spread}",
                str(row["seeds"]),
                f"{row['law']:.5f}",
            ]
            if with_cost and row.get("qps") is None:
                cells += ["-", "-", "misses the limit", "-"]
            elif with_cost:
                interval = "-" if row["qps_low"] is None else f"{row['qps_low']:,.0f} to {row['qps_high']:,.0f}"
                cells += [f"{row['qps']:,.1f}", interval, compact(row["relative"], 4), compact(row["machines"])]
            table.append(cells)
        return table

    def _cost_words(self) -> list[str]:
        cost = self.ladder.cost
        if cost is None:
            return []
        row = self.sizes[0]
        words = (
            f"Machine cost: highest rate of requests of {row['candidates']} candidates with p{100 * cost.quantile:g} of at most "
            f"{cost.latency_ms:g} ms at {cost.confidence:.0%} confidence, up to {max(cost.batch_sizes)} requests per call and "
            f"{cost.max_concurrency} clients, random inputs. {cost.base_machines:g} machines serve {cost.base} today."
        )
        notes = [f"{row['size']}: {row['note']}" for row in self.sizes if row.get("note")]
        return [words, *notes, *self._cut_lines()]

    def _cut_lines(self) -> list[str]:
        """Rates that more time might have raised."""
        cut = ", ".join(row["size"] for row in self.measured if not row["complete"])
        base_is_cut = any(row["size"] == self.ladder.cost.base and not row["complete"] for row in self.measured)
        costs = (
            "the base's too, so that costs relative to it are bounds of neither side"
            if base_is_cut
            else "and their costs upper ones"
        )
        words = (
            f"time was over before all loads were tried: the rates of {cut} are lower bounds, {costs}; raise cost.max_seconds, or lower "
            "cost.min_calls"
        )
        return [words] if cut else []

    # ---- files ----

    def to_dict(self) -> dict[str, Any]:
        """What ladder.json holds."""
        cost = self.ladder.cost
        return {
            **{key: getattr(self.ladder, key) for key in ("name", "metric", "split", "x")},
            "sizes": self.sizes,
            "missing": self.missing,
            "noise": self.noise(),
            **self.analysis.to_dict(),
            "machine": None if cost is None else machine(),
            "cost": None if cost is None else {name: getattr(cost, name) for name in _COUNTED_FROM},
            "revenue": self.ladder.revenue.model_dump(),
            "design": None if self.design is None else self._design_dict(self.design),
            "allocation": None if self.allocation is None else allocation_dict(self.allocation),
            "command": self.command,
        }

    def _design_dict(self, choice: DesignChoice) -> dict[str, Any]:
        found, written = choice.result, choice.to_dict()
        return {
            "best": sizes_text(found.best.sizes),
            "gain": found.best.gain,
            "cost": found.best.cost,
            **{key: written[key] for key in ("minimal_roi", "is_reached", "highest_roi")},
            "base": None if found.base is None else sizes_text(found.base.sizes),
            "feasible": found.num_feasible,
            "candidates": found.num_candidates,
            "bootstrap_choices": dict(self.votes),
            "notes": choice.notes,
        }

    def write(self, plots: bool = True) -> None:
        """Write ladder.json, report.md and the pictures."""
        ladder, folder, result = self.ladder, self.ladder.output_dir, self.to_dict()
        write_json(folder / "ladder.json", result)
        pictures = self._draw() if plots else []
        parts = [f"# {ladder.name}", *([ladder.description] if ladder.description else [])]
        parts += [markdown_table(self._size_table()), *self._missing_lines(), *self._cost_words()]
        if result["machine"]:
            parts.append("Machine: " + ", ".join(f"{key} {value}" for key, value in result["machine"].items()) + ".")
        parts += [*self.noise(), f"## {ladder.metric} by {ladder.x}", self.analysis.markdown()]
        for title, content, table in self._choices():
            parts += [f"## {title}", *content, markdown_table(table)]
        parts += [f"![{name}]({name})" for name in pictures]
        write_text(folder / "report.md", document(parts, self.command))

    def _draw(self) -> list[str]:
        folder, names = self.ladder.output_dir, ["law.png"]
        self.analysis.draw(folder / "law.png", title=self.ladder.name)
        rows = [row for row in self.measured if row["relative"] is not None]
        if rows:
            x, cost = [row[self.ladder.x] for row in rows], [row["relative"] for row in rows]
            words = self.ladder.x.replace("_", " ")
            labels = [row["size"] for row in rows]
            plot_machine_cost(x, cost, folder / "cost.png", labels=labels, x_name=words)
            names.append("cost.png")
        if self.design is not None:
            self.design.draw(folder / "pareto.png", title=self.ladder.name, unit=self.ladder.revenue.unit)
            names.append("pareto.png")
        return names


def _with_flops(found: DesignResult, flops: dict[str, float]) -> DesignResult:
    """A choice among named sizes with their FLOPs of a sample, which the names do not tell."""

    def known(design: Design) -> Design:
        return dataclasses.replace(design, flops=flops.get(design.sizes, design.flops))

    base = None if found.base is None else known(found.base)
    front, candidates = (tuple(map(known, designs)) for designs in (found.front, found.candidates))
    return dataclasses.replace(found, best=known(found.best), base=base, front=front, candidates=candidates)
