"""Load on a model in this process, and results of measurements that are kept.

Clients are threads of one process: the model lies in memory once, as in a server, and PyTorch lets other threads run while it is inside an
operator. Python between the operators runs one thread at a time, so models whose operators take microseconds do not gain from more clients;
a machine that serves such a model from several processes does more than is measured here. Each call uses as many threads as PyTorch is set to.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import ValidationError

from lmctr.utils.files import read_json, write_json

from .cost import Capacity, CostOptions, Window
from .inputs import RequestShape, random_inputs

__all__ = ["CapacityCache", "ModelLoad", "SplitLoad", "ThreadLoad", "model_fingerprint"]

_ADS_PER_CANDIDATE = 100
_INPUT_SETS = 4  # different random inputs of each batch size, so that no cache holds the one answer


class ThreadLoad:
    """Clients as threads.

    Args:
        call: `call(b, number)` scores b requests and returns when the answer is there; `number` counts a client's calls.
        clock: seconds.
    """

    def __init__(self, call: Callable[[int, int], Any], clock: Callable[[], float] = time.perf_counter):
        self.call, self.clock = call, clock

    def run(self, batch_size: int, concurrency: int, seconds: float) -> Window:
        """Keep c clients busy for `seconds`; each finishes the call that it has begun, and makes at least one.

        Raises:
            Exception: what a call raised, after all clients have stopped.
        """
        ready, failed, end = threading.Barrier(concurrency + 1), threading.Event(), float("inf")

        def client(number: int) -> list[float]:
            latencies: list[float] = []
            ready.wait()
            try:
                while ((began := self.clock()) < end and not failed.is_set()) or not latencies:
                    self.call(batch_size, number + len(latencies))
                    latencies.append(self.clock() - began)
            except BaseException:
                failed.set()
                raise
            return latencies

        with ThreadPoolExecutor(concurrency) as pool:
            clients = [pool.submit(client, number) for number in range(concurrency)]
            began = self.clock()
            end = began + seconds
            try:
                ready.wait()
                wait(clients)
            except BaseException:  # a Ctrl-C: no client is at work when the process ends
                failed.set()
                ready.abort()
                wait(clients)
                raise
        passed = self.clock() - began
        return Window(np.concatenate([each.result() for each in clients]), passed)


class ModelLoad(ThreadLoad):
    """Calls of a model of the library with random inputs of fixed size.

    Args:
        model: an `XForCTR`; it is put in evaluation mode. shape: of a request.
        device: where it runs; on a GPU a call ends when its answer is on the CPU.
    """

    def __init__(self, model: torch.nn.Module, shape: RequestShape, device: str = "cpu", seed: int = 0):
        super().__init__(self._score)
        self.model, self.shape, self.device, self.seed = model.eval().to(device), shape, device, seed
        self._inputs: dict[int, list[dict[str, torch.Tensor]]] = {}

    def run(self, batch_size: int, concurrency: int, seconds: float) -> Window:
        if batch_size not in self._inputs:
            made = (self._made(batch_size, self.seed + i) for i in range(_INPUT_SETS))
            self._inputs[batch_size] = [{k: v.to(self.device) for k, v in inputs.items()} for inputs in made]
        return super().run(batch_size, concurrency, seconds)

    def _made(self, batch_size: int, seed: int) -> dict[str, torch.Tensor]:
        return random_inputs(self.model.config, self.shape, batch_size, seed)

    def _score(self, batch_size: int, number: int) -> torch.Tensor:
        inputs = self._inputs[batch_size]
        with torch.inference_mode():
            return self.model(**inputs[number % len(inputs)]).logits.cpu()


class SplitLoad(ModelLoad):
    """Calls of a retrieval model whose ads are kept ("first-layer optimisation", section 3.4 of arXiv 2411.13322): of a request the user's
    half is made, and those of its candidates, drawn for each, are looked up.

    Args:
        model: an `XForCTR` that `split` takes apart. shape, device, seed: as of [`ModelLoad`].
        split: makes a [`~lmctr.serving.SplitRetrievalModel`]; it is given a hundred times as many ads as a request has.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        shape: RequestShape,
        device: str = "cpu",
        seed: int = 0,
        *,
        split: Callable[[torch.nn.Module], Any],
    ):
        super().__init__(model, shape, device, seed)
        self.served, self.num_ads = split(self.model), _ADS_PER_CANDIDATE * shape.candidates
        ads = random_inputs(model.config, replace(shape, candidates=self.num_ads), 1, seed)
        of_ads = ("ad_input_ids", "ad_numeric_values")
        self.served.update(range(self.num_ads), **{key: ads[key][0].to(device) for key in of_ads if key in ads})

    def _made(self, batch_size: int, seed: int) -> dict[str, torch.Tensor]:
        one = random_inputs(self.model.config, replace(self.shape, candidates=1), batch_size, seed)
        draw = torch.Generator().manual_seed(seed)
        places = torch.randint(self.num_ads, (batch_size, self.shape.candidates), generator=draw)
        return {key: values for key, values in one.items() if key.startswith("user_")} | {"places": places}

    def _score(self, batch_size: int, number: int) -> torch.Tensor:
        inputs = self._inputs[batch_size]
        inputs = dict(inputs[number % len(inputs)])
        with torch.inference_mode():
            halves = self.served.ad_halves[inputs.pop("places")]
            return self.served.halves.from_halves(self.served.user_half(**inputs), halves).cpu()


def model_fingerprint(folder: str | Path) -> str:
    """Checksum of a saved model: its `config.json` and its weights.

    Raises:
        FileNotFoundError: no `config.json` or no weights in safetensors.
    """
    folder = Path(folder)
    files = [folder / "config.json", *sorted(folder.glob("model*.safetensors"))]
    if not files[0].is_file() or len(files) == 1:
        raise FileNotFoundError(f"{folder} holds no saved model: config.json and model.safetensors are needed")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()[:32]


class CapacityCache:
    """Measured capacities in a folder, one JSON file per machine, model, request and options.

    A result is found again only where all four are the same; `max_seconds` is one of the options, since it decides how far the sweep gets.
    Without a folder nothing is kept.
    """

    def __init__(self, folder: str | Path | None):
        self.folder = None if folder is None else Path(folder)

    def path(self, machine: dict[str, Any], model: str, shape: RequestShape, options: CostOptions) -> Path:
        """The file of a measurement. machine: `lmctr.utils.measure.machine`. model: `model_fingerprint`."""
        text = json.dumps([machine, model, vars(shape), vars(options)], sort_keys=True)
        return self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:24]}.json"

    def get(self, machine: dict[str, Any], model: str, shape: RequestShape, options: CostOptions) -> Capacity | None:
        """The kept result, None where there is none. Raises `ValueError` for a damaged file, and for a folder that may not be written."""
        if self.folder is None:
            return None
        if not (path := self.path(machine, model, shape, options)).is_file():
            self._open()  # before the measurement that is to be kept
            return None
        try:
            return Capacity.from_dict(read_json(path)["capacity"])
        except (KeyError, ValueError) as error:
            told = "" if isinstance(error, KeyError | ValidationError) else f" ({error})"
            raise ValueError(f"{path} is no kept measurement{told}; delete it to measure again") from error

    def _open(self) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            if not os.access(self.folder, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise ValueError(
                f"{self.folder}: measurements cannot be kept there ({error.strerror}); give another folder by --cache, or --no-cache"
            ) from error

    def put(
        self, machine: dict[str, Any], model: str, shape: RequestShape, options: CostOptions, capacity: Capacity
    ) -> None:
        """Keep a result."""
        if self.folder is None:
            return
        content = {"machine": machine, "model": model, "request": vars(shape), "capacity": capacity.to_dict()}
        write_json(self.path(machine, model, shape, options), content)
