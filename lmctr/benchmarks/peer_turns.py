"""Training loops of several processes in turn, for `lmctr benchmark peers`."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lmctr.utils.files import write_json

DENSE, LAZY = "lmctr, Adam", "lmctr"


@dataclass(frozen=True)
class Loop:
    """A way of training: its name, the program that does it, and what it is told besides the shared settings."""

    name: str
    program: tuple[str, ...]
    values: Mapping[str, Any]

    def started(self, task: Mapping[str, Any], path: Path) -> tuple[list[str], dict[str, str]]:
        """Writes what the program is told; its command line and environment."""
        write_json(path, {"loop": "own", **task, **self.values})
        environment = os.environ | {"OMP_NUM_THREADS": str(task["threads"]), "TOKENIZERS_PARALLELISM": "false"}
        return [*self.program, str(path)], environment


class Worker:
    """A process that trains in turns, see [`lmctr.benchmarks.peer_side.Turns`]."""

    def __init__(self, arm: Loop, task: Mapping[str, Any], folder: Path, number: int):
        self.name, self.error, self.auc, self.parameters = arm.name, None, None, None
        self.rates: dict[str, list[float]] = {"seconds": [], "cpu_seconds": []}
        self.batch_size = task["batch_size"]
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115 closed by `close`
        command, environment = arm.started(task, folder / f"task_{number}.json")
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )

    def begin(self) -> None:
        """Wait until it has read its data and made its model."""
        self.parameters = self.read().get("parameters")

    def read(self) -> dict[str, Any]:
        """The next line that the process tells; where it has died instead, `error` says why."""
        line = self.process.stdout.readline()
        if line:
            return json.loads(line)
        self.process.wait()
        self.log.seek(0)
        self.error = last_line(self.log.read()) or f"ended with code {self.process.returncode}"
        return {}

    def turn(self) -> bool:
        """Let it make its steps; False when the epoch, and what comes after it, are over."""
        with suppress(BrokenPipeError):  # it has died: `read` says why
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        told = self.read()
        if "seconds" in told:
            for clock, rates in self.rates.items():
                rates.append(told["steps"] * self.batch_size / told[clock])
        self.auc = told.get("auc")
        return "seconds" in told

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()
        self.log.close()


def measure(arms: list[Loop], shared: Mapping[str, Any], folder: Path) -> list[dict[str, Any]]:
    """The arms' epochs, a turn of each after the other, the order reversed each time."""
    workers: list[Worker] = []
    try:
        for number, arm in enumerate(arms):
            workers.append(Worker(arm, shared, folder, number))
        for worker in workers:
            worker.begin()
        going = [worker for worker in workers if worker.error is None]
        while going:
            going = [worker for worker in reversed(going) if worker.turn()]
    finally:
        for worker in workers:
            worker.close()
    rates = {worker.name: worker.rates for worker in workers if worker.error is None}
    return [_summary(worker, rates) for worker in workers]


def _summary(worker: Worker, rates: Mapping[str, Mapping[str, list[float]]]) -> dict[str, Any]:
    if worker.error is not None:
        return {"name": worker.name, "error": worker.error}

    def middle(values: list[float]) -> float:
        """Without the first turn, in which caches are filled, and the last, of few steps."""
        return statistics.median(values[1:-1] or values)

    def against(clock: str) -> dict[str, float]:
        own = {name: rates[name][clock] for name in (DENSE, LAZY) if name in rates}
        return {name: middle([a / b for a, b in zip(fast, worker.rates[clock])]) for name, fast in own.items()}

    return {
        "name": worker.name,
        "samples_per_second": middle(worker.rates["seconds"]),
        "against": against("seconds"),
        "against_cpu": against("cpu_seconds"),
        "turns": len(worker.rates["seconds"]),
        "parameters": worker.parameters,
        "auc": worker.auc,
    }


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1]
