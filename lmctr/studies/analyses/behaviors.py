"""`lmctr analyze behaviors RUN...`: which behaviour types the candidates of sequence models attend to (Climber, Fig. 7)."""

from __future__ import annotations

import argparse
import csv
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.runs.folder import RECIPE, RunFolder, open_run
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS

if TYPE_CHECKING:
    from lmctr.analysis.behavior_attention import BehaviorAttention


def add_measures(measures: argparse._SubParsersAction) -> None:
    """Add the measure of sequence models to `lmctr analyze`."""
    parser = measures.add_parser(
        "behaviors",
        help="attention by behaviour type (sequence families)",
        description="Share of the candidates' attention that falls on each behaviour type, by layer and block, beside the share of events "
        "of that type. Give an ASTRO run and a behavior_transformer run of the same data to compare them. Writes behaviors.json, "
        "behaviors.csv and behaviors.png; with several runs behaviors_comparison.json and so on.",
        epilog=f"Overrides: --data.KEY for {', '.join(COMMON_DATA_KEYS)} and what else only says where data lie.",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="run folder of lmctr train")
    parser.add_argument("--split", default="test", choices=("train", "validation", "test"), help="default: test")
    parser.add_argument(
        "--num-samples", type=int, default=1024, metavar="N", help="samples, drawn at random (default: 1024)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of that draw (default: 0)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="B", help="samples at a time (default: 32)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: cuda where there is one)")
    parser.add_argument("--output", metavar="DIR", help="folder to write to (default: analysis/ in the first RUN)")
    parser.add_argument("--no-plots", action="store_true", help="write numbers only; matplotlib is not needed")


def run_behaviors(args: argparse.Namespace) -> int:
    """`lmctr analyze behaviors RUN...`.

    Raises:
        ValueError: options out of range, a run of another kind of family, runs that know different behaviour types.
    """
    from lmctr.studies.analyses.attention import run_names
    from lmctr.utils.files import write_json

    for option in ("num_samples", "batch_size"):
        if getattr(args, option) < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {getattr(args, option)}")
    if not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    folders = [open_run(path) for path in args.runs]
    found = {}
    for name, folder in zip(run_names(folders), folders):
        found[name] = _measure(folder, args)
        print(_table(name, found[name]))
    output = Path(args.output) if args.output else folders[0].path / "analysis"
    output.mkdir(parents=True, exist_ok=True)
    stem = "behaviors" if len(found) == 1 else "behaviors_comparison"
    entries = [
        {"name": name, "run": str(folder.path), **measured.to_dict()}
        for (name, measured), folder in zip(found.items(), folders)
    ]
    content = {"measure": "behaviors", "command": args.command, "split": args.split, "seed": args.seed}
    write_json(output / f"{stem}.json", {**content, "runs": entries})
    written = [output / f"{stem}.json", _write_csv(output / f"{stem}.csv", found)]
    if not args.no_plots:
        from lmctr.analysis.plots_sequence import plot_behavior_attention

        written.append(plot_behavior_attention(found, output / f"{stem}.png"))
    print("wrote " + ", ".join(map(str, written)))
    return 0


def _measure(folder: RunFolder, args: argparse.Namespace) -> BehaviorAttention:
    """Load a run with its data, as `lmctr evaluate` does, and read its attention."""
    import numpy as np
    import torch
    import transformers

    import lmctr.auto  # noqa: F401 (registers the model types)
    from lmctr.analysis.behavior_attention import behavior_attention
    from lmctr.models.families import family_of
    from lmctr.runs.evaluation import check_overrides
    from lmctr.runs.inputs import input_of
    from lmctr.runs.inputs.base import RunContext
    from lmctr.runs.loading import load_run
    from lmctr.runs.recipe import load_recipe

    transformers.utils.logging.disable_progress_bar()
    view = input_of(load_recipe(folder.path / RECIPE))
    if family_of(view.model_group["family"]).input != "sequence":
        raise ValueError(
            f"{folder.path}: a run of the family {view.model_group['family']!r} has no event sequences; `lmctr analyze behaviors` reads runs "
            "of sequence families, for example astro and behavior_transformer"
        )
    check_overrides(args.overrides, view.free_data_keys)
    view = input_of(load_recipe(folder.path / RECIPE, args.overrides))
    with tempfile.TemporaryDirectory() as scratch:
        view.load(Path(scratch))
        model, processor = load_run(folder.path)
        view.open(processor, (args.split,), RunContext(folder.path))
        events = getattr(view.splits, args.split)
        events = events[np.random.default_rng(args.seed).permutation(len(events))[: args.num_samples]]
        model.to(args.device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return behavior_attention(model, view.view, events, args.batch_size)


def _rows(found: BehaviorAttention) -> list[dict[str, Any]]:
    """A row per layer, block and behaviour type; None where no candidate sees an event of the block."""
    import numpy as np

    rows = []
    for layer, of_layer in enumerate(found.shares):
        for block, shares in zip(found.block_names, of_layer):
            events = found.events[found.block_names.index(block)]
            for name, share, count in zip(found.behavior_names, shares, events):
                values = {"attention": share, "events": count}
                plain = {key: None if np.isnan(value) else float(value) for key, value in values.items()}
                rows.append({"layer": layer, "block": block, "behavior": name, **plain})
    return rows


def _table(name: str, found: BehaviorAttention) -> str:
    """The printed table of a run: the whole model, then each block in each layer."""
    from lmctr.utils.tables import text_table

    def cells(values: Any) -> list[str]:
        return ["-" if value != value else f"{value:.1%}" for value in values]

    table = [["", *found.behavior_names], ["attention, whole model", *cells(found.overall())]]
    for place, block in enumerate(found.block_names):
        table.append([f"events in {block}", *cells(found.events[place])])
    for layer, of_layer in enumerate(found.shares):
        for block, shares in zip(found.block_names, of_layer):
            table.append([f"attention, layer {layer}, {block}", *cells(shares)])
    return f"{name}: {found.num_candidates:,} candidates\n{text_table(table)}"


def _write_csv(path: Path, found: dict[str, BehaviorAttention]) -> Path:
    rows = [{"run": name, **row} for name, measured in found.items() for row in _rows(measured)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
