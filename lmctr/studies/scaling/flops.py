"""`lmctr scaling flops RUN_OR_RECIPE...`: FLOPs per sample and request, dense and embedding parameters."""

from __future__ import annotations

import argparse
import dataclasses
from typing import Any

from lmctr.studies.scaling.tables import flops_text, markdown_table, text_table
from lmctr.utils.results import check_output, write_result

ACCEPTS_OVERRIDES = True


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `scaling flops`."""
    parser = actions.add_parser(
        "flops",
        help="count FLOPs and parameters of models",
        description="Count the FLOPs of one request of random inputs, from the modules that run (2 x multiply-accumulates of matrix products, fused "
        "attention included). A sample is one candidate of a request. A recipe's model has its initial weights; its data are read, since "
        "vocabularies decide the tables.",
        epilog="Overrides such as --model.hidden_units '[64, 64]' apply to recipes.",
        allow_abbrev=False,
    )
    parser.add_argument("models", nargs="+", metavar="RUN_OR_RECIPE", help="run folder, or recipe")
    add_request_arguments(parser)
    parser.add_argument("--modules", action="store_true", help="also the parts of each model")
    parser.add_argument("--output", help="write the results to this .json or .md file")


def add_request_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the size of a request."""
    parser.add_argument("--candidates", type=int, metavar="N", help="candidates of a request (default: the family's)")
    parser.add_argument(
        "--length", type=int, metavar="N", help="tokens of a text, events of a history (default: the family's)"
    )


def run(args: argparse.Namespace) -> int:
    """Runs the sub-verb."""
    check_output(args.output)
    rows = [count(name, args.overrides, args.candidates, args.length) for name in args.models]
    table = flops_table(rows)
    print(text_table(table))
    if args.modules:
        for row in rows:
            print(f"\n{row['model']}, FLOPs per request")
            parts = [[f"  {name}", flops_text(value)] for name, value in row["modules"].items()]
            print(text_table(parts or [["  no matrix products", ""]]))
    write_result(args.output, {"models": rows, "command": args.command}, markdown_table(table))
    return 0


def count(name: str, overrides: list[tuple[str, str]], candidates: int | None, length: int | None) -> dict[str, Any]:
    """FLOPs of one request of a model, as a row of results."""
    from lmctr.studies.scaling.models import open_model

    return count_model(open_model(name, overrides), candidates, length) | {"model": name}


def count_model(model: Any, candidates: int | None = None, length: int | None = None) -> dict[str, Any]:
    """FLOPs of one request of random inputs, and parameters."""
    from lmctr.scaling.flops import measure_flops
    from lmctr.scaling.inputs import random_inputs, request_shape

    shape = request_shape(model.config, candidates, length)
    found = measure_flops(model, random_inputs(model.config, shape), shape.candidates, num_requests=1)
    return {
        "model": "",
        "family": model.config.model_type,
        "candidates": shape.candidates,
        "length": shape.length,
        **dataclasses.asdict(found),
    }


def flops_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """Cells for people."""
    head = ["model", "family", "candidates", "length", "FLOPs/sample", "FLOPs/request", "dense", "embedding"]
    return [head] + [
        [
            row["model"],
            row["family"],
            str(row["candidates"]),
            str(row["length"]),
            flops_text(row["per_sample"]),
            flops_text(row["per_request"]),
            f"{row['dense_parameters']:,}",
            f"{row['embedding_parameters']:,}",
        ]
        for row in rows
    ]
