"""`lmctr analyze MEASURE RUN ...`: look into trained runs. `attention`: where a CTR-Sink model's attention goes.

`rank`, `fields` and `bound` are in `lmctr.studies.analyses.tabular`, `behaviors` in `lmctr.studies.analyses.behaviors`.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.runs.folder import RECIPE, RunFolder, open_run
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS
from lmctr.studies.analyses import behaviors as analyze_sequence
from lmctr.studies.analyses import tabular as analyze_tabular

if TYPE_CHECKING:
    import numpy as np

    from lmctr.analysis import AttentionMap, SinkAttention

ACCEPTS_OVERRIDES = True
FREE_DATA_KEYS = (*COMMON_DATA_KEYS, "retrieval")


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "analyze", help="look into trained runs", description="Look into trained runs.", allow_abbrev=False
    )
    measures = parser.add_subparsers(dest="measure", metavar="MEASURE", required=True)
    attention = measures.add_parser(
        "attention",
        help="share of attention on sinks, by layer (CTR-Sink)",
        description=(
            "Attention of CTR-Sink runs by layer: the share that goes to sinks (Eq. 7) and from sinks to sinks (Eq. 8), a "
            "heat map of one sample, and curves that compare runs. Writes attention.json, attention.csv, attention_map.png "
            "and attention_layers.png; with several runs attention_comparison.json and so on, with one map per run."
        ),
        epilog=f"Overrides: --data.KEY for {', '.join(FREE_DATA_KEYS)}.",
        allow_abbrev=False,
    )
    attention.add_argument("runs", nargs="+", metavar="RUN", help="run folder of lmctr train")
    attention.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    attention.add_argument(
        "--num-samples", type=int, default=64, metavar="N", help="samples, drawn at random (default: 64)"
    )
    attention.add_argument("--seed", type=int, default=0, help="seed of that draw (default: 0)")
    attention.add_argument(
        "--sample",
        type=int,
        metavar="K",
        help="which of the drawn samples the map shows, from 0 (default: the first one with sinks)",
    )
    attention.add_argument(
        "--layer", type=int, metavar="L", help="layer of the map, 0 = first, -1 = last (default: mean over layers)"
    )
    attention.add_argument("--head", type=int, metavar="H", help="head of the map (default: mean over heads)")
    attention.add_argument("--batch-size", type=int, default=8, metavar="B", help="samples at a time (default: 8)")
    attention.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")
    attention.add_argument("--output", metavar="DIR", help="folder to write to (default: analysis/ in the first RUN)")
    attention.add_argument("--no-plots", action="store_true", help="write numbers only; matplotlib is not needed")
    analyze_tabular.add_measures(measures)
    analyze_sequence.add_measures(measures)


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    measures = {
        "attention": _run_attention,
        "rank": analyze_tabular.run_rank,
        "fields": analyze_tabular.run_fields,
        "bound": analyze_tabular.run_bound,
        "behaviors": analyze_sequence.run_behaviors,
    }
    return measures[args.measure](args)


@dataclass(frozen=True, eq=False)
class _Measured:
    """One run's part of the result."""

    name: str
    folder: RunFolder
    config: Any
    events: np.ndarray
    fingerprint: str
    attention: SinkAttention
    sample: int
    map: AttentionMap


def _run_attention(args: argparse.Namespace) -> int:
    for option in ("num_samples", "batch_size"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}")
    for key, _ in args.overrides:
        group, name = key.split(".")[:2]
        if group != "data" or name not in FREE_DATA_KEYS:
            raise ValueError(
                f"--{key} has no effect on an analysis of a trained run; free are data.{', data.'.join(FREE_DATA_KEYS)}"
            )
    folders = [open_run(path) for path in args.runs]
    if not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    results = [_measure_run(folder, name, args) for folder, name in zip(folders, run_names(folders))]
    output = Path(args.output) if args.output else folders[0].path / "analysis"
    stem = "attention" if len(results) == 1 else "attention_comparison"
    for result in results:
        print(_table(result))
    if not _same_samples(results):
        print("note: the runs were measured on different samples (their data or splits differ)")
    written = _write_numbers(output, stem, results, args)
    if not args.no_plots:
        written += _write_plots(output, stem, results, args)
    print("wrote " + ", ".join(map(str, written)))
    return 0


def _measure_run(folder: RunFolder, name: str, args: argparse.Namespace) -> _Measured:
    """Load a run with its data, as `lmctr evaluate` does, and measure it."""
    import numpy as np
    import torch
    import transformers

    import lmctr.auto  # noqa: F401 (registers the model types)
    from lmctr.analysis import attention_map, sink_attention
    from lmctr.data.batches.text import TextView
    from lmctr.runs.answers import load_retriever
    from lmctr.runs.inputs import logs
    from lmctr.runs.inputs import text_build as build
    from lmctr.runs.loading import load_run
    from lmctr.runs.recipe import load_recipe

    transformers.utils.logging.disable_progress_bar()
    recipe = load_recipe(folder.path / RECIPE, args.overrides)
    model, processor = load_run(folder.path)
    config = model.config
    for option, count in (
        ("layer", config.text_config.num_hidden_layers),
        ("head", config.text_config.num_attention_heads),
    ):
        value = getattr(args, option)
        if value is not None and not -count <= value < count:
            raise ValueError(f"--{option} {value}: the model of {folder.path} has {count} {option}s, 0 to {count - 1}")
    model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    log = logs.build_log(recipe.data)
    splits = logs.build_splits(log, recipe.data)
    events = getattr(splits, args.split)
    if not len(events):
        raise ValueError(f"the {args.split} part is empty; choose another --split or other data.fractions")
    drawn = np.random.default_rng(args.seed).permutation(len(events))[: args.num_samples]
    events = events[drawn]
    if args.sample is not None and not 0 <= args.sample < len(events):
        raise ValueError(
            f"--sample {args.sample}: {len(events)} samples are drawn, 0 to {len(events) - 1}; raise --num-samples"
        )
    retriever = load_retriever(folder.path, processor)
    retrieval = build.build_retrieval_for(processor, log, events, recipe.data, None, splits.train, retriever)
    view = TextView(log, processor, retrieval=retrieval)
    size = args.batch_size
    measured = sink_attention(model, (view.batch(events[at : at + size]) for at in range(0, len(events), size)))
    sample = args.sample
    if sample is None:
        sample = int(np.argmax(measured.num_sinks > 0))
    head = "mean" if args.head is None else args.head
    shown = attention_map(model, view.batch(events[sample : sample + 1]), 0, args.layer, head, processor)
    return _Measured(name, folder, config, events, logs.log_fingerprint(log, splits), measured, sample, shown)


def run_names(folders: list[RunFolder]) -> list[str]:
    """A short name per run: its folder, with as many parents as it takes to tell the runs apart."""
    paths = [folder.path.resolve() for folder in folders]
    if len(set(paths)) < len(paths):
        raise ValueError(f"the same run is given twice: {', '.join(str(folder.path) for folder in folders)}")
    depth = 1
    while len({path.parts[-depth:] for path in paths}) < len(paths):
        depth += 1
    return ["/".join(path.parts[-depth:]) for path in paths]


def _same_samples(results: list[_Measured]) -> bool:
    return len({(result.fingerprint, tuple(result.events.tolist())) for result in results}) == 1


def _rows(result: _Measured) -> list[dict[str, Any]]:
    """A row of numbers per layer; None where a share is undefined."""
    import numpy as np

    measured = result.attention
    with_sinks = measured.num_sinks > 0
    rows = []
    for layer in range(measured.num_layers):
        to_sinks, between = measured.to_sinks[:, layer], measured.between_sinks[with_sinks, layer]
        rows.append(
            {
                "layer": layer,
                "sink_bias": layer in result.config.resolved_sink_bias_layers,
                "to_sinks": float(measured.mean_to_sinks[layer]),
                "to_sinks_std": float(np.std(to_sinks)),
                "between_sinks": float(np.mean(between)) if len(between) else None,
                "between_sinks_std": float(np.std(between)) if len(between) else None,
            }
        )
    return rows


def _table(result: _Measured) -> str:
    """The printed table of a run."""

    def percent(value: float | None) -> str:
        return "     -" if value is None or value != value else f"{value:6.1%}"

    measured = result.attention
    lines = [
        f"{result.name}: {measured.num_samples} samples, {measured.num_without_sinks} of them without sinks; "
        f"{measured.num_tokens.mean():.0f} tokens and {measured.num_sinks.mean():.1f} sinks on average",
        "  layer  to sinks (Eq. 7)  between sinks (Eq. 8)",
    ]
    for row in _rows(result):
        mark = "  sink bias" if row["sink_bias"] else ""
        lines.append(f"  {row['layer']:5d}  {percent(row['to_sinks']):>16}  {percent(row['between_sinks']):>21}{mark}")
    even = (percent(measured.mean_uniform_to_sinks), percent(measured.mean_uniform_between_sinks))
    lines.append(f"  {'even':>5}  {even[0]:>16}  {even[1]:>21}  if attention were spread evenly")
    return "\n".join(lines)


def _write_numbers(output: Path, stem: str, results: list[_Measured], args: argparse.Namespace) -> list[Path]:
    from lmctr.utils.files import write_json

    output.mkdir(parents=True, exist_ok=True)
    entries = []
    for result in results:
        measured = result.attention
        undefined = measured.num_without_sinks == measured.num_samples
        entries.append(
            {
                "name": result.name,
                "run": str(result.folder.path),
                "backbone": result.config.text_config.model_type,
                "sink_kind": result.config.sink_kind,
                "sink_signal": result.config.sink_signal,
                "sink_bias_layers": list(result.config.resolved_sink_bias_layers),
                "num_samples": measured.num_samples,
                "num_without_sinks": measured.num_without_sinks,
                "mean_tokens": float(measured.num_tokens.mean()),
                "mean_sinks": float(measured.num_sinks.mean()),
                "uniform_to_sinks": measured.mean_uniform_to_sinks,
                "uniform_between_sinks": None if undefined else measured.mean_uniform_between_sinks,
                "layers": _rows(result),
                "samples": {
                    "event": result.events.tolist(),
                    "num_tokens": measured.num_tokens.tolist(),
                    "num_sinks": measured.num_sinks.tolist(),
                    "to_sinks": measured.to_sinks.tolist(),
                    "between_sinks": [
                        row.tolist() if sinks else None
                        for row, sinks in zip(measured.between_sinks, measured.num_sinks)
                    ],
                },
                "map": {
                    "sample": result.sample,
                    "event": int(result.events[result.sample]),
                    "layer": result.map.layer,
                    "head": result.map.head,
                },
            }
        )
    content = {
        "measure": "attention",
        "command": args.command,
        "split": args.split,
        "seed": args.seed,
        "same_samples": _same_samples(results),
        "runs": entries,
    }
    write_json(output / f"{stem}.json", content)
    with open(output / f"{stem}.csv", "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["run", *_rows(results[0])[0]])
        for result in results:
            writer.writerows([result.name, *row.values()] for row in _rows(result))
    return [output / f"{stem}.json", output / f"{stem}.csv"]


def _write_plots(output: Path, stem: str, results: list[_Measured], args: argparse.Namespace) -> list[Path]:
    from lmctr.analysis.plots import plot_attention_map, plot_layer_curves

    curves = plot_layer_curves(
        {result.name: result.attention for result in results},
        output / f"{stem}_layers.png",
        {result.name: result.config.resolved_sink_bias_layers for result in results},
    )
    written = [curves]
    for result in results:
        name = f"{stem}_map.png" if len(results) == 1 else f"{stem}_map_{result.name.replace('/', '_')}.png"
        layer = "mean over layers" if result.map.layer == "mean" else f"layer {result.map.layer}"
        head = "mean over heads" if result.map.head == "mean" else f"head {result.map.head}"
        title = f"{result.name}: {layer}, {head}; {args.split} sample {result.sample}"
        written.append(plot_attention_map(result.map, output / name, title))
    return written
