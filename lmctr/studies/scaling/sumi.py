"""`lmctr scaling sumi DATA`: how many samples of a user to gather into one row (Climber, Eq. 5-8), by formula and as measured."""

from __future__ import annotations

import argparse
import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lmctr.scaling.compression import CompressionPlan

DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 15, 20)


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Add the action `sumi` to the verb `scaling`."""
    parser = actions.add_parser(
        "sumi",
        help="plan rows of several samples of a user: size and FLOPs by N_c (Climber)",
        description="Size and training FLOPs of the rows of a log for several N_c, the samples of a user in one row: by the formulas of the "
        "paper (Eq. 5-8) from the log's histogram of samples per user, and as measured on the rows that the sampler builds. Writes sumi.json, "
        "sumi.csv and sumi.png.",
        allow_abbrev=False,
    )
    parser.add_argument("data", help="data set: a name, a prepared folder or a schema")
    parser.add_argument("--path", help="folder (or zip) with the raw files")
    parser.add_argument("--options", default="{}", help="options of the data set, as YAML: '{num_users: 500}'")
    parser.add_argument(
        "--degrees", type=int, nargs="+", default=list(DEGREES), metavar="N_c", help="default: 1 2 3 4 5 6 8 10 15 20"
    )
    parser.add_argument(
        "--window-seconds", type=int, help="longest time between the samples of a row (default: no limit)"
    )
    parser.add_argument("--max-history-length", type=int, help="latest events of a row (default: the whole lifetime)")
    parser.add_argument(
        "--max-samples", type=int, default=100_000, help="work on whole users with so many samples (default: 100000)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the draw of users (default: 0)")
    parser.add_argument("--sequence-length", type=int, help="n of the ASTRO whose FLOPs are planned (default: 200)")
    parser.add_argument("--hidden-size", type=int, default=100, help="its d (default: 100)")
    parser.add_argument("--layers", type=int, default=2, help="its layers (default: 2)")
    parser.add_argument("--output", metavar="DIR", help="folder to write to (default: print only)")
    parser.add_argument("--no-plots", action="store_true", help="write numbers only; matplotlib is not needed")


def run(args: argparse.Namespace) -> int:
    """Run the action.

    Raises:
        ValueError: options out of range, data that cannot be read.
    """
    from lmctr.runs.recipe import parse_yaml
    from lmctr.utils.files import write_json

    for option in ("max_history_length", "max_samples", "sequence_length", "hidden_size", "layers"):
        value = getattr(args, option)
        if value is not None and value < 1:
            raise ValueError(f"--{option.replace('_', '-')} must be at least 1, got {value}")
    if args.window_seconds is not None and args.window_seconds < 0:
        raise ValueError(f"--window-seconds must be at least 0, got {args.window_seconds}")
    if min(args.degrees) < 1:
        raise ValueError(f"--degrees must be whole numbers from 1, got {args.degrees}")
    options = parse_yaml(args.options, "--options")
    if not isinstance(options, dict):
        raise ValueError(f"--options must be a mapping such as '{{num_users: 500}}', got {args.options!r}")
    if args.path is not None:
        options["path"] = args.path
    if args.output and not args.no_plots:
        from lmctr.analysis.plots import require_matplotlib

        require_matplotlib()
    plan, about = _plan(args, options)
    print(as_markdown(plan, about))
    if args.output:
        folder = Path(args.output)
        folder.mkdir(parents=True, exist_ok=True)
        content = {"command": args.command, **about, **plan.to_dict()}
        write_json(folder / "sumi.json", content)
        written = [folder / "sumi.json", _write_csv(folder / "sumi.csv", content["points"])]
        if not args.no_plots:
            from lmctr.analysis.plots_sequence import plot_compression

            title = f"{about['data']}: {plan.num_samples:,} samples"
            written.append(plot_compression(plan.to_dict(), folder / "sumi.png", title))
        print("wrote " + ", ".join(map(str, written)))
    return 0


def _plan(args: argparse.Namespace, options: dict[str, Any]) -> tuple[CompressionPlan, dict[str, Any]]:
    from lmctr.data.batches.sequence import SequenceView
    from lmctr.data.logs.splits import split_log
    from lmctr.data.processors.sequence import SequenceProcessor
    from lmctr.data.registry import load_log
    from lmctr.models.astro.configuration_astro import ASTROConfig
    from lmctr.scaling.compression import plan_compression

    log = load_log(args.data, **options)
    train = split_log(log).train
    processor = SequenceProcessor.fit(log, train, max_history_length=args.max_history_length)
    config = ASTROConfig(
        **processor.model_config_values(),
        sequence_length=args.sequence_length,
        hidden_size=args.hidden_size,
        num_hidden_layers=args.layers,
    )
    plan = plan_compression(
        SequenceView(log, processor), train, config, args.degrees, args.window_seconds, args.max_samples, args.seed
    )
    about = {
        "data": log.info.name,
        "part": "train",
        "window_seconds": args.window_seconds,
        "max_history_length": args.max_history_length,
        "sequence_length": config.sequence_length,
        "num_blocks": config.num_blocks,
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_hidden_layers,
    }
    return plan, about


def as_markdown(plan: CompressionPlan, about: dict[str, Any]) -> str:
    """The plan as a table."""
    by_size, by_flops = (plan.best(key).num_candidates for key in ("measured_bytes", "measured_flops"))
    lines = [
        f"{about['data']}, {plan.num_samples:,} samples of the training part: {plan.user_bytes:,.0f} bytes of history and user and "
        f"{plan.item_bytes:,.0f} of candidate per sample. FLOPs of one epoch (forward and backward) of an ASTRO with {about['sequence_length']} "
        f"events in {about['num_blocks']} blocks, {about['num_hidden_layers']} layers, d = {about['hidden_size']}.",
        "",
        "| N_c | rows | padded | size by Eq. 7 | size measured | FLOPs by Eq. 8 | FLOPs of the rows |",
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for point in plan.points:
        lines.append(
            f"| {point.num_candidates} | {point.rows:,} | {point.padded:,} | {point.ratio:.3f} | {point.measured_ratio:.3f} | {point.flops:.3g} | "
            f"{point.measured_flops:.3g} |"
        )
    lines += ["", f"Best N_c by measured size: {by_size}; by FLOPs of the rows: {by_flops}."]
    return "\n".join(lines)


def _write_csv(path: Path, points: list[dict[str, Any]]) -> Path:
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(points[0]))
        writer.writeheader()
        writer.writerows(points)
    return path
