"""`lmctr analyze rank|fields|bound RUN`: look into tabular models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.effective_rank import EffectiveRanks, measure_effective_rank
from lmctr.analysis.field_interactions import FieldInteractions, field_interactions
from lmctr.analysis.generalization import BoundTerms, bound_terms, projection_parameters
from lmctr.analysis.plots import require_matplotlib
from lmctr.analysis.plots_tabular import plot_field_interactions, plot_rank_curves, plot_rank_distributions
from lmctr.runs.download import is_hub_id, open_model
from lmctr.runs.folder import RunFolder
from lmctr.runs.loading import load_run
from lmctr.studies.analyses.common import Analysis, Measure, OpenedRun
from lmctr.utils.options import check_counts
from lmctr.utils.ragged import blocks
from lmctr.utils.suggest import errors_of


@dataclass(frozen=True)
class Bound:
    """The terms of the bound for each layer of a run, and the parameters of its projections by kind."""

    run: Path
    terms: list[BoundTerms]
    projection_parameters: dict[str, int]


def _drawn_batches(run: OpenedRun, options: Any) -> Iterator[dict[str, Any]]:
    """Batches of a part's samples, drawn at random, in the order of the file."""
    run.open(options.split)
    dataset, collate = run.inputs.dataset(options.split), run.inputs.collator(False)
    drawn = np.random.default_rng(options.seed).permutation(len(dataset))[: options.num_samples]
    drawn.sort()
    return (collate(dataset.__getitems__(drawn[some].tolist())) for some in blocks(len(drawn), options.batch_size))


class _Rank(Measure):
    """Tabular runs; results are [`EffectiveRanks`]."""

    name, input = "rank", "tabular"

    def measure(self, run: OpenedRun) -> EffectiveRanks:
        return measure_effective_rank(run.model, _drawn_batches(run, self.options))

    def text(self, name: str, ranks: EffectiveRanks) -> str:
        kind, normalized = self.options.kind, self.options.normalized
        what = f"{kind} effective rank" + (" / min(T, D)" if normalized else "")
        lines = [f"{name}: {what} of {ranks.num_samples} samples"]
        lines.append(f"  {'stage':<16} {'T x D':>9}    mean   95% interval       samples: 5%, median, 95%")
        quantiles = ranks.quantiles((0.05, 0.5, 0.95), kind, normalized)
        rows = zip(
            ranks.stages, ranks.shapes, ranks.mean(kind, normalized), ranks.interval(kind, normalized), quantiles
        )
        for stage, (tokens, size), mean, (low, high), points in rows:
            spread = "  ".join(f"{point:.3f}" for point in points)
            lines.append(f"  {stage:<16} {f'{tokens} x {size}':>9} {mean:7.3f}   {low:.3f} - {high:.3f}     {spread}")
        if ranks.left_out:
            lines.append("  without a matrix per sample: " + ", ".join(ranks.left_out))
        return "\n".join(lines)

    def content(self, results: dict[str, EffectiveRanks], folders: dict[str, RunFolder]) -> dict[str, Any]:
        entries = (
            {
                "num_samples": ranks.num_samples,
                "stages": ranks.rows(),
                "left_out": dict(ranks.left_out),
                "samples": {kind: values.tolist() for kind, values in ranks.values.items()},
            }
            for ranks in results.values()
        )
        return self.of_runs(entries, folders)

    def rows(self, name: str, ranks: EffectiveRanks) -> list[dict[str, Any]]:
        return [{"run": name, **row} for row in ranks.rows()]

    def plots(self, results: dict[str, EffectiveRanks], stem: Path) -> Iterator[Path]:
        kind = self.options.kind
        yield plot_rank_curves(results, f"{stem}.png", kind, self.options.normalized)
        for name, ranks in results.items():
            end = "" if len(results) == 1 else "_" + name.replace("/", "_")
            if len(ranks.stages) > 1:
                yield plot_rank_distributions(ranks, f"{stem}_distributions{end}.png", kind, name)


class _Fields(Measure):
    """The weights of a FAT run, no data; the result is a [`FieldInteractions`]."""

    name, input = "fields", "tabular"

    def run(self, runs: list[str]) -> Analysis:
        options = self.options
        check_counts(options, ("top",))
        if options.overrides:
            raise ValueError(f"--{options.overrides[0][0]} has no effect on the weights of a trained run")
        (run,) = runs
        folder = open_model(run)
        opened = OpenedRun(folder, None, *load_run(folder.path))
        with errors_of(run):
            result = self.measure(opened)
        if self.has_plots:
            require_matplotlib()
        name = str(run) if is_hub_id(run) else folder.path.name
        self.say(self.text(str(run), result))
        return self.write({name: result}, {name: folder}, run)

    def measure(self, run: OpenedRun) -> FieldInteractions:
        return field_interactions(run.model)

    def text(self, name: str, found: FieldInteractions) -> str:
        layer, top = self.options.layer, self.options.top
        where = "mean over layers" if layer is None else f"layer {layer}"
        lines = [f"{name}: w of {len(found.field_names)} fields, mean over heads, {where}"]
        lines.append("  largest weights            query reads key")
        for row in found.table(layer)[:top]:
            lines.append(f"  {row['weight']:9.4f}  ({row['scaled']:.2f})   {row['query']} <- {row['key']}")
        lines.append("  most different directions  (weight, the other way round)")
        for row in found.asymmetry(layer)[:top]:
            pair = f"{row['query']} <- {row['key']} ({row['weight']:.4f}, {row['reverse']:.4f})"
            lines.append(f"  {row['difference']:9.4f}  {pair}")
        return "\n".join(lines)

    def content(self, results: dict[str, FieldInteractions], folders: dict[str, RunFolder]) -> dict[str, Any]:
        ((name, found),), layer = results.items(), self.options.layer
        return {
            "run": str(folders[name].path),
            "layer": layer,
            "field_names": list(found.field_names),
            "matrix": found.matrix(layer).tolist(),
            "layers": [found.matrix(number).tolist() for number in range(found.num_layers)],
            "asymmetry": found.asymmetry(layer),
        }

    def rows(self, name: str, found: FieldInteractions) -> list[dict[str, Any]]:
        return found.table(self.options.layer)

    def plots(self, results: dict[str, FieldInteractions], stem: Path) -> Iterator[Path]:
        (found,) = results.values()
        yield plot_field_interactions(found, f"{stem}.png")
        for layer in range(found.num_layers):
            yield plot_field_interactions(found, f"{stem}_layer_{layer + 1}.png", layer)


class _Bound(Measure):
    """A FAT run; the result is a [`Bound`]."""

    name, input = "bound", "tabular"

    def measure(self, run: OpenedRun) -> Bound:
        batches, config = _drawn_batches(run, self.options), run.model.config
        terms = bound_terms(run.model, batches, run.inputs.num_samples("train"))
        counts = projection_parameters(
            config.num_fields, config.hidden_size, config.num_bases, config.meta_dim, config.num_attention_heads
        )
        return Bound(run.folder.path, terms, counts)

    def text(self, name: str, found: Bound) -> str:
        first = found.terms[0]
        lines = [
            f"{found.run}: F = {first.num_fields}, d = {first.hidden_size}, m = {first.num_samples} training samples",
            "  layer        R     B_Q     B_K     B_V     B_w          C   sqrt(F d^2 + F^2) / sqrt(m) * C",
        ]
        for term in found.terms:
            norms = "".join(f"{value:8.3f}" for value in (term.query, term.key, term.value, term.modulation))
            lines.append(f"  {term.layer:5d} {term.radius:8.3f}{norms} {term.constant:10.4g}   {term.bound:.4g}")
        counts = ", ".join(f"{kind} {count:,}" for kind, count in found.projection_parameters.items())
        return "\n".join([*lines, f"  parameters of a layer's projections: {counts}"])

    def content(self, results: dict[str, Bound], folders: dict[str, RunFolder]) -> dict[str, Any]:
        (found,) = results.values()
        return {
            "run": str(found.run),
            "split": self.options.split,
            "layers": [term.row() for term in found.terms],
            "projection_parameters": found.projection_parameters,
        }


analyze_rank = _Rank.analyze
analyze_fields = _Fields.analyze
analyze_bound = _Bound.analyze
