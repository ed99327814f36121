"""`lmctr grid run|report GRID`: many training runs from one file, resumable run by run, and their comparison."""

from __future__ import annotations

import argparse

ACCEPTS_OVERRIDES = True


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "grid", help="train a grid of recipes over seeds, and compare its points", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    epilog = (
        "Overrides such as --data.path FOLDER or --training.use_cpu true apply to every point, last. Give `grid report` the "
        "same ones as `grid run` (--data.path alone may be left out)."
    )
    train = actions.add_parser(
        "run",
        help="train what is missing",
        description="Train every point of the grid with every seed, each as a normal run folder OUTPUT_DIR/POINT/seed-S. Finished "
        "runs are skipped, begun ones continued from their newest checkpoint; a failed one does not stop the others. Ctrl-C "
        "at any time: the same command goes on.",
        epilog=epilog,
        allow_abbrev=False,
    )
    _common(train)
    train.add_argument("--keep-checkpoints", action="store_true", help="keep the checkpoints of finished runs")
    train.add_argument("--max-minutes", type=float, metavar="N", help="start no further run after N minutes")
    train.add_argument("--dry-run", action="store_true", help="list the runs and their state; train nothing")
    train.add_argument(
        "--launcher",
        metavar="WORDS",
        help="start each run by these words and `-m lmctr train ...`: 'accelerate launch --config_file recipes/accelerate/ddp.yaml'",
    )
    report = actions.add_parser(
        "report",
        help="mean, spread and paired significance of what is done",
        description="Mean and sample standard deviation over seeds, differences to the grid's compare_to with paired tests, and the "
        "baselines beside them. What is not done is listed as missing.",
        epilog=epilog,
        allow_abbrev=False,
    )
    _common(report)
    report.add_argument("--output", metavar="FOLDER", help="write NAME.md, NAME.csv and NAME_tests.csv there")
    report.add_argument("--split", default="test", choices=("test", "validation"), help="default: test")
    report.add_argument("--resamples", type=int, default=1000, metavar="N", help="draws per bootstrap (default: 1000)")


def run(args: argparse.Namespace) -> int:
    """Run the verb."""
    from lmctr.studies.grids.file import load_grid

    grid = load_grid(args.grid, args.output_dir).select(args.only)
    if args.action == "report":
        from lmctr.studies.grids.report import report

        return report(grid, args.overrides, args.split, args.resamples, args.output, args.command)
    if args.max_minutes is not None and args.max_minutes <= 0:
        raise ValueError(f"--max-minutes must be greater than 0, got {args.max_minutes:g}")
    from lmctr.studies.grids.run import GridRunner

    runner = GridRunner(grid, args.overrides, args.keep_checkpoints, args.max_minutes, args.launcher)
    if not args.dry_run:
        return runner.run()
    for entry in runner.plan():
        print(f"{entry.state:12} {entry.folder.path}")
    return 0


def _common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("grid", help="YAML file, or the name of a grid of the package (ctr_sink/tables/table1_small)")
    parser.add_argument(
        "--output_dir", help="folder of the runs (default: the grid's own, else runs/<name of the grid>)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only points of such names ('roberta-*'); repeatable",
    )
