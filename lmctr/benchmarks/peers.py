"""`lmctr benchmark peers`: whole training loops of lmctr and of other libraries, a few steps of each in turn."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmctr.benchmarks import peer_own, peer_side
from lmctr.benchmarks.harness import machine_text, reports, results, say, table
from lmctr.benchmarks.options import PEER_FAMILIES, PEERS, PeersBenchmark
from lmctr.benchmarks.peer_files import files_table, measure_files, write_files
from lmctr.benchmarks.peer_turns import DENSE, LAZY, Loop, last_line, measure
from lmctr.data import TabularStore, load_tabular
from lmctr.data.logs.splits import PARTS
from lmctr.models.families import family_of
from lmctr.utils.files import read_json, write_json

PACKAGES = {  # polars 2 is not what FuxiCTR was written for
    "fuxictr": ("fuxictr", "polars<2", "torch"),  # which it does not ask for
    "deepctr": ("deepctr-torch",),
    "rechub": ("torch-rechub",),
    "authors": ("fuxictr", "polars<2", "torch"),
}


def benchmark_peers(options: PeersBenchmark) -> dict[str, Any]:
    """Measure the families in lmctr and in the peers.

    Returns:
        `machine`, `settings`, `versions` of the peers' packages, `failed` (why a peer could not be installed), and `families`: by name a
        list of arms, each with `name`, and either `error`, or `samples_per_second` (median of the turns), `against`: how many times as
        fast lmctr is (by its arm: the median of the ratios turn by turn), `against_cpu`, the same by processor time, `parameters` and `auc` on the test part;
        with `from_csv` what [`~lmctr.benchmarks.peer_files.measure_files`] gives.
    """
    options = options.sized()
    with ExitStack() as stack:
        folder = options.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="lmctr-peers-"))
        folder = Path(folder).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        wanted = [peer for peer in options.peers if any(peer in PEER_FAMILIES[name] for name in options.families)]
        if "authors" in wanted and options.rank_elastor is None:
            wanted.remove("authors")
        python, failed = install(folder / "venv", wanted)
        shared = prepare(folder / "table", options)
        result = results(options, versions=versions(python), failed=failed)
        result["families"] = {}
        for family in options.families:
            arms = own_arms(family)
            for peer in PEER_FAMILIES[family]:
                if peer in wanted and peer not in failed:
                    arms += peer_arms(peer, options, python)
            task = shared | {"family": family, "stem": family_of(family).stem}
            if options.from_csv:
                result["families"][family] = measure_files(arms, task, folder / "table", options.from_csv)
                continue
            result["families"][family] = measure(arms, task, folder / "table")
            for arm in result["families"][family]:
                told = arm.get("error") or f"{arm['samples_per_second']:,.0f} samples/s"
                say(f"{family}, {arm['name']}: {told}")
    return result


# ---- what is measured ----


def install(folder: Path, peers: list[str]) -> tuple[Path, dict[str, str]]:
    """The Python of a virtual environment with the peers' packages and this process's torch, and why some could not be installed."""
    python, noted = folder / "bin" / "python", folder / "installed.json"
    done = read_json(noted)["peers"] if noted.is_file() else []
    if peers and not python.is_file():
        say(f"making the virtual environment {folder}")
        venv.create(folder, with_pip=True)
    constraints = folder / "constraints.txt"
    failed = {}
    for peer in peers:
        if peer in done:
            continue
        say(f"installing {', '.join(PACKAGES[peer])}")
        constraints.write_text(f"torch=={torch.__version__.partition('+')[0]}\n")
        command = [str(python), "-m", "pip", "install", "-q", "-c", str(constraints), *PACKAGES[peer]]
        process = subprocess.run(command, capture_output=True, text=True, check=False)
        if process.returncode:
            failed[peer] = last_line(process.stderr)
        else:
            done.append(peer)
            write_json(noted, {"peers": done})
    return python, failed


def versions(python: Path) -> dict[str, str]:
    """Versions of what the environment holds, by package; nothing where there is none."""
    if not python.is_file():
        return {}
    found = subprocess.run(
        [str(python), "-m", "pip", "list", "--format", "json"], capture_output=True, text=True, check=False
    )
    names = {package.split("<")[0] for packages in PACKAGES.values() for package in packages} | {"torch"}
    return {one["name"]: one["version"] for one in json.loads(found.stdout or "[]") if one["name"] in names}


def prepare(folder: Path, options: PeersBenchmark) -> dict[str, Any]:
    """Write the generated table, as lmctr's processor encodes it, as the arrays that the peers read; the settings all arms share."""
    folder.mkdir(exist_ok=True)
    made = {
        "num_rows": options.rows * 10 // 8,
        "num_categorical": options.categorical,
        "num_numeric": options.numeric,
        "vocab_size": options.vocabulary,
        "seed": options.seed,
    }
    source = load_tabular(peer_own.TABLE, **made)
    if options.from_csv:
        write_files(folder, source)
    store = TabularStore.build(source)
    for part in PARTS:
        rows = store.splits[part]
        ids, numbers = store.input_ids[rows], store.numeric_values[rows]
        columns = {f"C{n}": ids[:, n].astype(np.int64) for n in range(ids.shape[1])}
        columns |= {f"I{n}": numbers[:, n] for n in range(numbers.shape[1])}
        np.savez(folder / f"{part}.npz", **columns, label=store.labels[rows])
    return {
        "folder": str(folder),
        "table": made,
        "vocab_sizes": store.processor.model_config_values()["vocab_sizes"],
        "num_numeric": options.numeric,
        "embedding_dim": 16,
        "hidden_units": [8] if options.quick else [400, 400, 400],
        "batch_size": options.batch_size,
        "steps": options.turn,
        "most": options.steps,
        "threads": options.threads or torch.get_num_threads(),
        "workers": options.workers,
        "seed": options.seed,
        "source": None,
        "ready": False,
    }


def own_arms(family: str) -> list[Loop]:
    """lmctr with the peers' optimiser, and with its own for tables."""
    width = {"embedding_dim": family_of(family).benchmark.get("embedding_dim", 16)}
    program = (sys.executable, "-m", peer_own.__name__)
    return [Loop(name, program, {"arm": arm, **width}) for name, arm in ((DENSE, "dense"), (LAZY, "lazy"))]


def peer_arms(peer: str, options: PeersBenchmark, python: Path) -> list[Loop]:
    """A peer's loop, and for FuxiCTR also on batches that lie in memory, so that its loader costs nothing; from CSV files FuxiCTR's alone."""
    program = (str(python), peer_side.__file__)
    if options.from_csv and peer != "fuxictr":
        return []
    if peer == "authors":
        source = str(Path(options.rank_elastor).resolve())
        return [Loop(PEERS[peer], program, {"loop": "fuxictr", "source": source, "embedding_dim": 10})]
    values = {"loop": peer}
    if peer == "fuxictr" and options.fuxictr is not None:
        values["source"] = str(Path(options.fuxictr).resolve())
    arms = [Loop(PEERS[peer], program, values)]
    if peer == "fuxictr" and not options.from_csv:
        arms.append(Loop(f"{PEERS[peer]}, batches in memory", program, values | {"ready": True}))
    return arms


# ---- the report ----


def as_markdown(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    packages = ", ".join(f"{name} {version}" for name, version in settings["versions"].items()) or "none"
    rows, notes = [], [f"- {PEERS[peer]} could not be installed: {why}" for peer, why in settings["failed"].items()]
    for family, arms in result["families"].items():
        for arm in arms:
            if "error" in arm:
                notes.append(f"- {family}, {arm['name']}: {arm['error']}")
                continue
            if settings["from_csv"]:
                continue
            found = [arm[clock].get(name) for clock in ("against", "against_cpu") for name in (DENSE, LAZY)]
            shown = " | ".join("-" if value is None else f"{value:.2f}" for value in found)
            rows.append({"family": family, **arm, "ratios": shown})
    if not settings["rank_elastor"] and {"rank_elastor", "rank_mixer"} & set(result["families"]):
        notes.append("- The code of RankElastor's authors: give its folder by --rank-elastor.")
    form = "{family} | {name} | {samples_per_second:,.0f} | {ratios} | {auc:.4f} | {parameters:,}"
    head = f"family | loop | samples/s | {DENSE} is so many times as fast | {LAZY} is | by processor time: {DENSE} | {LAZY} | test AUC then | parameters"
    if settings["from_csv"]:
        return _files_report(result, packages, notes)
    steps = "one epoch" if settings["steps"] is None else f"{settings['steps']} steps"
    return f"""## Training loops beside other libraries

{settings["rows"]:,} generated rows, {settings["categorical"]} categorical and {settings["numeric"]} numeric fields, \
{settings["vocabulary"]:,} values, batch {settings["batch_size"]:,}, float32, Adam 1e-3, {steps} in turns of {settings["turn"]} steps, \
the order reversed each time; medians, and medians of the turns' own ratios. "{LAZY}" trains the tables by `lazy_adam`, "{DENSE}" by the \
peers' optimiser. The other libraries' environment: {packages}; their loaders with {settings["workers"]} worker(s), whose processor time is not \
counted. By the clock other work on the machine counts too, by processor time it does not.
{machine_text(result)}

{table(head, form, rows, left=(0, 1))}

{chr(10).join(notes)}""".strip()


def _files_report(result: Mapping[str, Any], packages: str, notes: list[str]) -> str:
    settings = result["settings"]
    return f"""## From CSV files to the AUC on the test part

Whole processes, {settings["from_csv"]} times in turn, medians and medians of the ratios: start, CSV files of {settings["rows"]:,} training rows and a tenth \
each of validation and test ({settings["categorical"]} categorical and {settings["numeric"]} numeric fields, {settings["vocabulary"]:,} values), fit, transform, one \
epoch with batch {settings["batch_size"]:,}, validation, test. The other libraries' environment: {packages}.
{machine_text(result)}

{files_table(result["families"])}

{chr(10).join(notes)}""".strip()


run = reports(benchmark_peers, as_markdown)
