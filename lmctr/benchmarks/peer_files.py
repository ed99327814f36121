"""`lmctr benchmark peers --from-csv N`: whole processes, from CSV files to the AUC on the test part."""

from __future__ import annotations

import json
import math
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
import yaml

from lmctr.benchmarks.harness import in_turn, table
from lmctr.benchmarks.peer_own import SCHEMA
from lmctr.benchmarks.peer_turns import LAZY, Loop, last_line
from lmctr.data import TableSource
from lmctr.data.logs.splits import PARTS


def write_files(folder: Path, source: TableSource) -> None:
    """The parts of a table as CSV files, and a schema that says which field is what."""
    for part in PARTS:
        writer = None
        for rows in source.rows(None, part):
            writer = writer or pacsv.CSVWriter(folder / f"{part}.csv", rows.table.schema)
            writer.write(rows.table)
        writer.close()
    kinds = {"categorical": {}, "numeric": {"transform": "standardize"}}  # as FuxiCTR's are
    fields = [{"name": one["name"], "type": one["type"], **kinds[one["type"]]} for one in source.fields]
    schema = {
        "name": "peers",
        "files": {part: f"{part}.csv" for part in PARTS},
        "label": source.label,
        "fields": fields,
    }
    (folder / SCHEMA).write_text(yaml.safe_dump(schema))


def measure_files(arms: Sequence[Loop], shared: Mapping[str, Any], folder: Path, repeats: int) -> list[dict[str, Any]]:
    """Seconds of each arm from its start to its end, in turns whose order is reversed each time.

    Returns:
        Per arm `name`, and either `error`, or `seconds` (each time), `auc`, and `against`: how many times as long as lmctr's it took.
    """
    found: dict[str, dict[str, Any]] = {arm.name: {"name": arm.name} for arm in arms}
    task = {**shared, "csv": str(folder), "steps": 1 << 60}

    def run(number: int, arm: Loop) -> None:
        command, environment = arm.started(task, folder / f"task_{number}.json")
        process = subprocess.run(command, input="\n", capture_output=True, text=True, env=environment, check=False)
        if process.returncode:
            found[arm.name]["error"] = last_line(process.stderr)
        else:
            found[arm.name]["auc"] = json.loads(process.stdout.splitlines()[-1])["auc"]

    ways = {arm.name: partial(run, number, arm) for number, arm in enumerate(arms)}
    for name, seconds in in_turn(ways, repeats, about=f"{shared['family']}: ").items():
        found[name]["seconds"] = seconds
    own = found[LAZY]
    for one in found.values():
        if "error" not in one and "error" not in own:
            one["against"] = statistics.median(b / a for a, b in zip(own["seconds"], one["seconds"]))
    return list(found.values())


def files_table(families: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """What [`measure_files`] gives for each family as a table, without the arms that failed."""
    rows = [
        {"family": family, "median": statistics.median(arm["seconds"]), "against": math.nan, **arm}
        for family, arms in families.items()
        for arm in arms
        if "error" not in arm
    ]
    head = f"family | from CSV to AUC | s | times as long as {LAZY} | test AUC"
    return table(head, "{family} | {name} | {median:.1f} | {against:.2f} | {auc:.4f}", rows, left=(0, 1))
