"""`lmctr card RUN`: write the model card of a run."""

from __future__ import annotations

import argparse


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "card",
        help="write the model card of a run",
        description="Write RUN/README.md, filled from the run's config, recipe, data and metrics.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    add_card_arguments(parser)
    parser.add_argument("--repo-id", metavar="USER/NAME", help="repository that the loading example names")
    parser.add_argument("--print", action="store_true", help="print the card instead of writing it")


def add_card_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments that `card` and `push` share."""
    parser.add_argument("--licence", "--license", metavar="ID", help="licence of the weights, for example apache-2.0")
    parser.add_argument(
        "--seeds",
        metavar="RUN",
        nargs="+",
        default=[],
        help="runs of the same recipe with other seeds: the card shows mean and spread",
    )
    parser.add_argument("--force", action="store_true", help="replace a README.md that was edited by hand")


def run(args: argparse.Namespace) -> int:
    """Write or print the card."""
    from lmctr.hub.model_card import build_card, write_card

    options = {"repo_id": args.repo_id, "licence": args.licence, "seed_runs": args.seeds}
    if args.print:
        print(build_card(args.run, **options), end="")
        return 0
    path, written = write_card(args.run, overwrite=args.force, **options)
    if not written:
        raise ValueError(f"{path} was edited by hand and is kept; --force replaces it, --print shows the new card")
    print(f"wrote {path}")
    return 0
