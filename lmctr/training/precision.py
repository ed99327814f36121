"""`training.bf16: auto`: bfloat16 where the processor computes in it and a short trial shows a gain."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from typing import Any

import torch

LEAST_GAIN = 1.1
"""How many times as fast the trial's steps must be in bfloat16."""


def bf16_gain(model: torch.nn.Module, inputs: Mapping[str, Any], repeats: int = 3) -> float:
    """How many times as fast a forward and backward pass is under bfloat16 autocast; both in turn, after a step of each.

    The model keeps the gradients, and what a step changes in its buffers: throw it away afterwards.

    Args:
        model: in the training mode, where it is to train.
        inputs: a batch with labels, on the model's device.
        repeats: steps of each that are timed.
    """
    place = next(model.parameters()).device
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for repeat in range(repeats + 1):
        for half in (False, True) if repeat % 2 else (True, False):
            model.zero_grad(set_to_none=True)
            began = _now(place)
            with torch.autocast(place.type, torch.bfloat16, enabled=half):
                loss = model(**inputs)["loss"]
            loss.backward()
            seconds[half].append(_now(place) - began)
    full, half = (statistics.median(seconds[which][1:]) for which in (False, True))
    return full / half


def _now(place: torch.device) -> float:
    if place.type == "cuda":
        torch.cuda.synchronize(place)
    return time.perf_counter()
