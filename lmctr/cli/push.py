"""`lmctr push RUN user/name`: check a run, write its card, upload it to the Hugging Face Hub."""

from __future__ import annotations

import argparse

from lmctr.cli.card import add_card_arguments


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Add the verb to the command line."""
    parser = subparsers.add_parser(
        "push",
        help="check a run and share it on the Hugging Face Hub",
        description="Reload the run and compare its logits, write its model card, and upload weights (safetensors), "
        "configurations, tokenizer and card. The access token is that of `hf auth login` or HF_TOKEN.",
        allow_abbrev=False,
    )
    parser.add_argument("run", metavar="RUN", help="run folder")
    parser.add_argument("repo_id", metavar="USER/NAME", help="repository; made where it does not exist")
    parser.add_argument("--private", action="store_true", help="make a new repository private")
    parser.add_argument("--revision", metavar="BRANCH", help="branch to commit to; made where it does not exist")
    parser.add_argument("--commit-message", metavar="TEXT")
    parser.add_argument("--dry-run", action="store_true", help="make every check, write and upload nothing")
    add_card_arguments(parser)


def run(args: argparse.Namespace) -> int:
    """Push and say what was done."""
    from transformers.utils import logging

    from lmctr.hub.publish import push_run

    logging.disable_progress_bar()  # loading takes moments; the upload has bars of its own
    result = push_run(
        args.run,
        args.repo_id,
        private=True if args.private else None,
        revision=args.revision,
        commit_message=args.commit_message,
        licence=args.licence,
        seed_runs=args.seeds,
        overwrite_card=args.force,
        dry_run=args.dry_run,
    )
    for line in result.checks:
        print(f"ok: {line}")
    if not result.card_written:
        print("kept: README.md, which was edited by hand (--force replaces it)")
    verb = "would upload" if args.dry_run else "uploaded"
    print(f"{verb} {len(result.files)} files to {result.repo_id}: {', '.join(result.files)}")
    if result.deleted:
        print(f"deleted there, left by an earlier push: {', '.join(result.deleted)}")
    if result.url:
        print(result.url)
    return 0
