"""`lmctr scaling flops RUN_OR_RECIPE...`: FLOPs per sample and request, dense and embedding parameters."""

from __future__ import annotations

import dataclasses
from typing import Any

from lmctr.scaling.flops import measure_flops
from lmctr.scaling.inputs import random_inputs, request_shape
from lmctr.studies.scaling.models import open_model
from lmctr.studies.scaling.options import FlopsOptions, RequestOptions
from lmctr.studies.scaling.tables import flops_text
from lmctr.utils.results import write_result
from lmctr.utils.tables import markdown_table, text_table


def run(options: FlopsOptions) -> None:
    rows = [count_model(open_model(name, options.overrides), options, name) for name in options.models]
    table = flops_table(rows)
    print(text_table(table))
    if options.modules:
        for row in rows:
            print(f"\n{row['model']}, FLOPs per request")
            parts = [[f"  {name}", flops_text(value)] for name, value in row["modules"].items()]
            print(text_table(parts or [["  no matrix products", ""]]))
    write_result(options.output, {"models": rows, "command": options.command}, markdown_table(table))


def count_model(model: Any, request: RequestOptions, name: str = "") -> dict[str, Any]:
    """FLOPs of one request of random inputs, and parameters, as JSON can hold them: `model` (its name), `family`, the request's `candidates` and
    `length`, and the fields of `lmctr.scaling.flops.ModelFlops`."""
    shape = request_shape(model.config, request.candidates, request.length)
    found = measure_flops(model, random_inputs(model.config, shape), shape.candidates, num_requests=1)
    about = {"model": name, "family": model.config.model_type, **dataclasses.asdict(shape)}
    return about | dataclasses.asdict(found)


def flops_table(rows: list[dict[str, Any]]) -> list[list[str]]:
    head = ["model", "family", "candidates", "length", "FLOPs/sample", "FLOPs/request"]
    table = [[*head, "dense params", "embedding params"]]
    for row in rows:
        names = [row["model"], row["family"], str(row["candidates"]), str(row["length"])]
        flops = [flops_text(row["per_sample"]), flops_text(row["per_request"])]
        table.append([*names, *flops, f"{row['dense_parameters']:,}", f"{row['embedding_parameters']:,}"])
    return table
