"""`lmctr analyze rank|fields|bound RUN`: look into tabular models."""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lmctr.runs.folder import RECIPE, RunFolder, open_run
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS
from lmctr.utils.files import write_json

_TOP_SHOWN = 10


def add_measures(measures: argparse._SubParsersAction) -> None:
    """Add the measures of tabular models to `lmctr analyze`."""
    free = f"Overrides: --data.KEY for {', '.join(COMMON_DATA_KEYS)} and what else only says where data lie."
    rank = measures.add_parser(
        "rank",
        help="effective rank of the representations, stage by stage (tabular families)",
        description="Effective rank of each sample's representation at every stage of tabular runs: mean, interval and "
        "distribution. Writes rank.json, rank.csv, rank.png (curves), rank_distributions.png; with several runs "
        "rank_comparison.json and so on, with distributions per run.",
        epilog=free,
        allow_abbrev=False,
    )
    rank.add_argument("runs", nargs="+", metavar="RUN", help="run folder of lmctr train")
    rank.add_argument("--kind", default="stable", choices=("stable", "entropy"), help="rank in table and plots")
    rank.add_argument("--normalized", action="store_true", help="divide by min(T, D) in table and curves")
    _data_options(rank, "samples, drawn at random (default: 2048)")
    fields = measures.add_parser(
        "fields",
        help="weights of field pairs (FAT)",
        description="The modulation weights w of FAT runs, mean over heads: table by field pair, heat maps, and the pairs "
        "that read each other most differently. Writes fields.json, fields.csv, fields.png (mean over layers) and "
        "fields_layer_N.png.",
        allow_abbrev=False,
    )
    fields.add_argument("run", metavar="RUN", help="run folder of lmctr train")
    fields.add_argument("--layer", type=int, metavar="L", help="0 = first, -1 = last (default: mean over layers)")
    fields.add_argument("--top", type=int, default=_TOP_SHOWN, metavar="N", help="rows printed per list (default: 10)")
    _output_options(fields)
    bound = measures.add_parser(
        "bound",
        help="terms of the generalisation bound (FAT)",
        description="The terms of FAT's Theorem A.1 from the run's norms, layer by layer, and the parameters of field-wise, "
        "field-pair and generated projections. Writes bound.json.",
        epilog=free,
        allow_abbrev=False,
    )
    bound.add_argument("run", metavar="RUN", help="run folder of lmctr train")
    _data_options(bound, "samples, drawn at random, whose largest norm is R (default: 2048)", plots=False)


def _data_options(parser: argparse.ArgumentParser, samples: str, plots: bool = True) -> None:
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    parser.add_argument("--num-samples", type=int, default=2048, metavar="N", help=samples)
    parser.add_argument("--seed", type=int, default=0, help="seed of that draw (default: 0)")
    parser.add_argument("--batch-size", type=int, default=512, metavar="B", help="samples at a time (default: 512)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")
    _output_options(parser, plots)


def _output_options(parser: argparse.ArgumentParser, plots: bool = True) -> None:
    parser.add_argument("--output", metavar="DIR", help="folder to write to (default: analysis/ in the first RUN)")
    if plots:
        parser.add_argument("--no-plots", action="store_true", help="write numbers only; matplotlib is not needed")


def run_rank(args: argparse.Namespace) -> int:
    """`lmctr analyze rank RUN...`."""
    from lmctr.analysis.effective_rank import measure_effective_rank
    from lmctr.studies.analyses.attention import run_names

    _check(args)
    folders = [open_run(path) for path in args.runs]
    results = {}
    for name, folder in zip(run_names(folders), folders):
        with _opened(folder, args) as (model, batches, _):
            results[name] = measure_effective_rank(model, batches)
        print(_rank_table(name, results[name], args.kind, args.normalized))
    output = _output(args, folders[0])
    stem = "rank" if len(results) == 1 else "rank_comparison"
    entries = [
        {
            "name": name,
            "run": str(folder.path),
            "num_samples": ranks.num_samples,
            "stages": ranks.rows(),
            "left_out": dict(ranks.left_out),
            "samples": {kind: values.tolist() for kind, values in ranks.values.items()},
        }
        for (name, ranks), folder in zip(results.items(), folders)
    ]
    content = {"measure": "rank", "command": args.command, "split": args.split, "seed": args.seed, "runs": entries}
    write_json(output / f"{stem}.json", content)
    rows = [{"run": entry["name"], **row} for entry in entries for row in entry["stages"]]
    written = [output / f"{stem}.json", _write_csv(output / f"{stem}.csv", rows)]
    if not args.no_plots:
        from lmctr.analysis.plots_tabular import plot_rank_curves, plot_rank_distributions

        written.append(plot_rank_curves(results, output / f"{stem}.png", args.kind, args.normalized))
        for name, ranks in results.items():
            end = "" if len(results) == 1 else "_" + name.replace("/", "_")
            path = output / f"{stem}_distributions{end}.png"
            if len(ranks.stages) > 1:
                written.append(plot_rank_distributions(ranks, path, args.kind, name))
    print("wrote " + ", ".join(map(str, written)))
    return 0


def run_fields(args: argparse.Namespace) -> int:
    """`lmctr analyze fields RUN`."""
    import transformers

    import lmctr.auto  # noqa: F401 (registers the model types)
    from lmctr.analysis.field_interactions import field_interactions
    from lmctr.runs.loading import load_run

    transformers.utils.logging.disable_progress_bar()

    if args.top < 1:
        raise ValueError(f"--top must be at least 1, got {args.top}")
    if args.overrides:
        raise ValueError(f"--{args.overrides[0][0]} has no effect on the weights of a trained run")
    _require_plots(args)
    folder = open_run(args.run)
    found = field_interactions(load_run(folder.path)[0])
    table, asymmetry = found.table(args.layer), found.asymmetry(args.layer)
    where = "mean over layers" if args.layer is None else f"layer {args.layer}"
    print(f"{folder.path}: w of {len(found.field_names)} fields, mean over heads, {where}")
    print("  largest weights            query reads key")
    for row in table[: args.top]:
        print(f"  {row['weight']:9.4f}  ({row['scaled']:.2f})   {row['query']} <- {row['key']}")
    print("  most different directions  (weight, the other way round)")
    for row in asymmetry[: args.top]:
        print(
            f"  {row['difference']:9.4f}  {row['query']} <- {row['key']} ({row['weight']:.4f}, {row['reverse']:.4f})"
        )
    output = _output(args, folder)
    content = {
        "measure": "fields",
        "command": args.command,
        "run": str(folder.path),
        "layer": args.layer,
        "field_names": list(found.field_names),
        "matrix": found.matrix(args.layer).tolist(),
        "layers": [found.matrix(layer).tolist() for layer in range(found.num_layers)],
        "asymmetry": asymmetry,
    }
    write_json(output / "fields.json", content)
    written = [output / "fields.json", _write_csv(output / "fields.csv", table)]
    if not args.no_plots:
        from lmctr.analysis.plots_tabular import plot_field_interactions

        written.append(plot_field_interactions(found, output / "fields.png"))
        for layer in range(found.num_layers):
            written.append(plot_field_interactions(found, output / f"fields_layer_{layer + 1}.png", layer))
    print("wrote " + ", ".join(map(str, written)))
    return 0


def run_bound(args: argparse.Namespace) -> int:
    """`lmctr analyze bound RUN`."""
    from lmctr.analysis.generalization import bound_terms, projection_parameters

    _check(args)
    folder = open_run(args.run)
    with _opened(folder, args) as (model, batches, num_train):
        config = model.config
        terms = bound_terms(model, batches, num_train)
    counts = projection_parameters(
        config.num_fields, config.hidden_size, config.num_bases, config.meta_dim, config.num_attention_heads
    )
    print(f"{folder.path}: F = {config.num_fields}, d = {config.hidden_size}, m = {num_train} training samples")
    print("  layer        R     B_Q     B_K     B_V     B_w          C   sqrt(F d^2 + F^2) / sqrt(m) * C")
    for term in terms:
        norms = "".join(f"{value:8.3f}" for value in (term.query, term.key, term.value, term.modulation))
        print(f"  {term.layer:5d} {term.radius:8.3f}{norms} {term.constant:10.4g}   {term.bound:.4g}")
    print("  parameters of a layer's projections: " + ", ".join(f"{kind} {count:,}" for kind, count in counts.items()))
    output = _output(args, folder)
    content = {
        "measure": "bound",
        "command": args.command,
        "run": str(folder.path),
        "split": args.split,
        "layers": [term.row() for term in terms],
        "projection_parameters": counts,
    }
    write_json(output / "bound.json", content)
    print(f"wrote {output / 'bound.json'}")
    return 0


def _check(args: argparse.Namespace) -> None:
    for option in ("num_samples", "batch_size"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}")
    _require_plots(args)


def _require_plots(args: argparse.Namespace) -> None:
    if not getattr(args, "no_plots", True):
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()


@contextmanager
def _opened(folder: RunFolder, args: argparse.Namespace) -> Iterator[tuple[Any, Iterator[dict], int]]:
    """A run's model, batches of drawn samples, and the number of its training samples."""
    import numpy as np
    import torch
    import transformers

    import lmctr.auto  # noqa: F401 (registers the model types)
    from lmctr.models.families import family_of
    from lmctr.runs.evaluation import check_overrides
    from lmctr.runs.inputs import input_of
    from lmctr.runs.inputs.base import RunContext
    from lmctr.runs.loading import load_run
    from lmctr.runs.recipe import load_recipe

    transformers.utils.logging.disable_progress_bar()
    view = input_of(load_recipe(folder.path / RECIPE))
    family = view.model_group["family"]
    if family_of(family).input != "tabular":
        raise ValueError(f"{folder.path}: the family {family!r} reads no tables; this measure is for tabular families")
    check_overrides(args.overrides, view.free_data_keys)
    view = input_of(load_recipe(folder.path / RECIPE, args.overrides))
    with tempfile.TemporaryDirectory() as scratch:
        view.load(Path(scratch))
        model, processor = load_run(folder.path)
        model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        view.open(processor, (args.split,), RunContext(folder.path))
        dataset, collate = view.dataset(args.split), view.collator(False)
        drawn = np.random.default_rng(args.seed).permutation(len(dataset))[: args.num_samples]
        drawn.sort()  # in the order of the file
        size = args.batch_size
        batches = (collate(dataset.__getitems__(drawn[at : at + size].tolist())) for at in range(0, len(drawn), size))
        yield model, batches, view.num_samples("train")


def _rank_table(name: str, ranks: Any, kind: str, normalized: bool) -> str:
    """The printed table of a run."""
    what = f"{kind} effective rank" + (" / min(T, D)" if normalized else "")
    lines = [f"{name}: {what} of {ranks.num_samples} samples"]
    lines.append(f"  {'stage':<16} {'T x D':>9}    mean   95% interval       samples: 5%, median, 95%")
    quantiles = ranks.quantiles((0.05, 0.5, 0.95), kind, normalized)
    rows = zip(ranks.stages, ranks.shapes, ranks.mean(kind, normalized), ranks.interval(kind, normalized), quantiles)
    for stage, (tokens, size), mean, (low, high), points in rows:
        spread = "  ".join(f"{point:.3f}" for point in points)
        lines.append(f"  {stage:<16} {f'{tokens} x {size}':>9} {mean:7.3f}   {low:.3f} - {high:.3f}     {spread}")
    if ranks.left_out:
        lines.append("  without a matrix per sample: " + ", ".join(ranks.left_out))
    return "\n".join(lines)


def _output(args: argparse.Namespace, folder: RunFolder) -> Path:
    output = Path(args.output) if args.output else folder.path / "analysis"
    output.mkdir(parents=True, exist_ok=True)
    return output


def _write_csv(path: Path, rows: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return path
