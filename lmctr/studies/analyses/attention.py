"""`lmctr analyze attention RUN...`: where the attention of CTR-Sink models goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lmctr.analysis.attention import AttentionMap, SinkAttention, attention_map, sink_attention
from lmctr.analysis.plots import plot_attention_map, plot_layer_curves
from lmctr.data.batches.text import TextView
from lmctr.runs.folder import RunFolder
from lmctr.runs.inputs.logs import log_fingerprint
from lmctr.studies.analyses.common import Measure, OpenedRun
from lmctr.utils.ragged import blocks


@dataclass(frozen=True, eq=False)
class MeasuredAttention:
    """Attention of one run.

    Attributes:
        config: of the model.
        events: (S,) the samples. fingerprint: of their log and its split.
        attention: shares by sample and layer.
        sample: which of the samples the map shows. map: its attention.
    """

    config: Any
    events: np.ndarray
    fingerprint: str
    attention: SinkAttention
    sample: int
    map: AttentionMap


class _Attention(Measure):
    """Runs of CTR-Sink; results are [`MeasuredAttention`]."""

    name, input = "attention", "text"

    def measure(self, run: OpenedRun) -> MeasuredAttention:
        options, config, processor = self.options, run.model.config, run.processor
        for option, count in (
            ("layer", config.text_config.num_hidden_layers),
            ("head", config.text_config.num_attention_heads),
        ):
            value = getattr(options, option)
            if value is not None and not -count <= value < count:
                raise ValueError(f"--{option} {value}: the model has {count} {option}s, 0 to {count - 1}")
        log, splits = run.inputs.log, run.inputs.splits
        events = getattr(splits, options.split)
        if not len(events):
            raise ValueError(f"the {options.split} part is empty; choose another --split or other data.fractions")
        events = events[np.random.default_rng(options.seed).permutation(len(events))[: options.num_samples]]
        if options.sample is not None and not 0 <= options.sample < len(events):
            raise ValueError(
                f"--sample {options.sample}: {len(events)} samples are drawn, 0 to {len(events) - 1}; raise --num-samples"
            )
        # Histories are retrieved for the drawn samples only.
        retrieval = run.inputs.retrieve(processor, events, run.folder.retriever)
        view = TextView(log, processor, retrieval=retrieval)
        batches = (view.batch(events[some]) for some in blocks(len(events), options.batch_size))
        measured = sink_attention(run.model, batches)
        sample = options.sample
        if sample is None:
            sample = int(np.argmax(measured.num_sinks > 0))
        head = "mean" if options.head is None else options.head
        shown = attention_map(run.model, view.batch(events[sample : sample + 1]), 0, options.layer, head, processor)
        return MeasuredAttention(config, events, log_fingerprint(log, splits), measured, sample, shown)

    def text(self, name: str, result: MeasuredAttention) -> str:
        def percent(value: float | None) -> str:
            return "     -" if value is None or value != value else f"{value:6.1%}"

        measured = result.attention
        lines = [
            f"{name}: {measured.num_samples} samples, {measured.num_without_sinks} of them without sinks; "
            f"{measured.num_tokens.mean():.0f} tokens and {measured.num_sinks.mean():.1f} sinks on average",
            "  layer  to sinks (Eq. 7)  between sinks (Eq. 8)",
        ]
        for row in _layers(result):
            mark = "  sink bias" if row["sink_bias"] else ""
            shares = f"{percent(row['to_sinks']):>16}  {percent(row['between_sinks']):>21}"
            lines.append(f"  {row['layer']:5d}  {shares}{mark}")
        even = (percent(measured.mean_uniform_to_sinks), percent(measured.mean_uniform_between_sinks))
        lines.append(f"  {'even':>5}  {even[0]:>16}  {even[1]:>21}  if attention were spread evenly")
        return "\n".join(lines)

    def content(self, results: dict[str, MeasuredAttention], folders: dict[str, RunFolder]) -> dict[str, Any]:
        samples = {(result.fingerprint, tuple(result.events.tolist())) for result in results.values()}
        if len(samples) > 1:
            self.say("note: the runs were measured on different samples (their data or splits differ)")
        return self.of_runs(map(_entry, results.values()), folders, same_samples=len(samples) == 1)

    def rows(self, name: str, result: MeasuredAttention) -> list[dict[str, Any]]:
        return [{"run": name, **row} for row in _layers(result)]

    def plots(self, results: dict[str, MeasuredAttention], stem: Path) -> Iterator[Path]:
        yield plot_layer_curves(
            {name: result.attention for name, result in results.items()},
            f"{stem}_layers.png",
            {name: result.config.resolved_sink_bias_layers for name, result in results.items()},
        )
        for name, result in results.items():
            end = "" if len(results) == 1 else "_" + name.replace("/", "_")
            title = f"{name}: {result.map.where}; {self.options.split} sample {result.sample}"
            yield plot_attention_map(result.map, f"{stem}_map{end}.png", title)


def _layers(result: MeasuredAttention) -> list[dict[str, Any]]:
    """A row of numbers per layer; None where a share is undefined."""
    measured = result.attention
    with_sinks = measured.num_sinks > 0
    rows = []
    for layer in range(measured.num_layers):
        to_sinks, between = measured.to_sinks[:, layer], measured.between_sinks[with_sinks, layer]
        rows.append(
            {
                "layer": measured.first_layer + layer,
                "sink_bias": measured.first_layer + layer in result.config.resolved_sink_bias_layers,
                "to_sinks": float(measured.mean_to_sinks[layer]),
                "to_sinks_std": float(np.std(to_sinks)),
                "between_sinks": float(np.mean(between)) if len(between) else None,
                "between_sinks_std": float(np.std(between)) if len(between) else None,
            }
        )
    return rows


def _entry(result: MeasuredAttention) -> dict[str, Any]:
    """What the JSON file holds of a run."""
    measured, config = result.attention, result.config
    undefined = measured.num_without_sinks == measured.num_samples
    between = [row.tolist() if sinks else None for row, sinks in zip(measured.between_sinks, measured.num_sinks)]
    return {
        "backbone": config.text_config.model_type,
        "sink_kind": config.sink_kind,
        "sink_signal": config.sink_signal,
        "sink_bias_layers": list(config.resolved_sink_bias_layers),
        "num_samples": measured.num_samples,
        "num_without_sinks": measured.num_without_sinks,
        "mean_tokens": float(measured.num_tokens.mean()),
        "mean_sinks": float(measured.num_sinks.mean()),
        "uniform_to_sinks": measured.mean_uniform_to_sinks,
        "uniform_between_sinks": None if undefined else measured.mean_uniform_between_sinks,
        "layers": _layers(result),
        "samples": {
            "event": result.events.tolist(),
            "num_tokens": measured.num_tokens.tolist(),
            "num_sinks": measured.num_sinks.tolist(),
            "to_sinks": measured.to_sinks.tolist(),
            "between_sinks": between,
        },
        "map": {
            "sample": result.sample,
            "event": int(result.events[result.sample]),
            "layer": result.map.layer,
            "head": result.map.head,
            "tokens": result.map.tokens,
        },
    }


analyze_attention = _Attention.analyze
