"""`lmctr benchmark WHAT`: speed of the library's parts on this machine; each benchmark is a module of its own."""

from __future__ import annotations

import argparse

from lmctr.benchmarks import features as benchmark_features
from lmctr.benchmarks import retrieval as benchmark_retrieval
from lmctr.benchmarks import scoring as benchmark_scoring
from lmctr.benchmarks import sequence as benchmark_sequence
from lmctr.benchmarks import tabular as benchmark_tabular
from lmctr.benchmarks import text as benchmark_text
from lmctr.benchmarks import train as benchmark_train

# Each module has `add_parser(actions)` and `run(args)`, and imports nothing heavy at its top.
BENCHMARKS = {
    "text": benchmark_text,
    "train": benchmark_train,
    "scoring": benchmark_scoring,
    "features": benchmark_features,
    "tabular": benchmark_tabular,
    "sequence": benchmark_sequence,
    "retrieval": benchmark_retrieval,
}


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds the verb `benchmark`."""
    parser = subparsers.add_parser(
        "benchmark", help="measure the speed of the library's parts on this machine", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="WHAT", required=True)
    for module in BENCHMARKS.values():
        module.add_parser(actions)


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark that was asked for."""
    return BENCHMARKS[args.action].run(args)
