"""How fast ASTRO trains and scores: one row per sample (MUMI), rows of one user (SUMI), cached histories, parallel blocks.

Each arm adds one thing to the arm before it:

- `mumi`: one row per sample, every layer in full, the blocks one after the other;
- `sumi`: N_c samples of a user per row;
- `cache`: the two-stage forward, whose last layer computes keys and values of the history only; in scoring, the history is
  encoded once and kept;
- `blocks`: all blocks as one batched module.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmctr.benchmarks.harness import in_turn, keeping, machine_text, reports, results, say, speedups, table
from lmctr.benchmarks.inputs import SEED, read_log
from lmctr.benchmarks.options import SequenceBenchmark
from lmctr.data.batches.sequence import SequenceView, sumi_rows
from lmctr.data.logs.log import InteractionLog
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.models.astro.configuration_astro import ASTROConfig
from lmctr.models.astro.modeling_astro import ASTROForCTR
from lmctr.models.common.base import task_loss
from lmctr.models.common.sequence import sequence_inputs
from lmctr.scaling.flops import astro_flops, count_flops, paper_flops
from lmctr.scaling.inputs import RequestShape, random_inputs
from lmctr.utils.measure import release_memory
from lmctr.utils.ragged import blocks

ARMS = ("mumi", "sumi", "cache", "blocks")
_ROWS = 50  # of a forward pass that scores one row per candidate
Batch = Mapping[str, torch.Tensor]


def benchmark_sequence(options: SequenceBenchmark, log: InteractionLog | None = None) -> dict[str, Any]:
    """Measure training, scoring, memory and growth of ASTRO.

    Args:
        options: what is measured; growth on random histories. log: the data, where they are loaded already; its users with at least
            `length` events and `candidates` samples after them are used.

    Returns:
        `machine`, `settings`, `training` (per arm samples per second, median and all; ratio to `mumi`), `scoring` (seconds per
        request), `memory` (growth of the peak for `request` and for 20 times as many candidates; None where the system does not
        tell), `growth`, and `largest_difference` of logits between the arms.

    Raises:
        ValueError: a log without users that are active enough.
    """
    log = read_log(options, num_users=60, events_per_user=2 * options.length) if log is None else log
    view = SequenceView(log, SequenceProcessor.fit(log, max_history_length=options.length))
    rows = _rows(log, options.length, options.candidates, max(options.samples // options.candidates, 1))
    torch.manual_seed(SEED)
    values: dict[str, Any] = {"hidden_size": options.hidden_size, "num_hidden_layers": options.layers}
    if options.blocks is not None:
        values["strategies"] = [{"name": f"all_{k}"} for k in range(options.blocks)]
        values["sequence_length"] = options.blocks
    values |= view.processor.model_config_values()
    blocks = ASTROConfig(**values).num_blocks
    values["sequence_length"] = max(options.length // blocks, 1) * blocks
    config = ASTROConfig(**values)
    model = ASTROForCTR(config).to(options.device)
    say(f"training: {rows.size} samples, {blocks} blocks, {options.repeats} repeats of {len(ARMS)} arms")
    training, difference = _training(model, view, rows, options)
    say(f"scoring: {options.request} candidates")
    scoring, other, memory = _scoring(model, view, rows[0], options)
    points = [*((n, blocks) for n in options.lengths), *((options.length, count) for count in options.block_counts)]
    settings = {"length": config.sequence_length, "blocks": blocks, "samples": int(rows.size)}
    settings |= {"num_candidates": options.candidates, "num_layers": options.layers}
    return {
        "data": log.info.name,
        **results(options, options.device, **settings),
        "training": training,
        "scoring": scoring,
        "memory": memory,
        "growth": [_growth(config, options, *point) for point in points],
        "largest_difference": max(difference, other),
    }


def _rows(log: InteractionLog, length: int, num_candidates: int, count: int) -> np.ndarray:
    """(R, N_c) full rows whose first sample has `length` events before it."""
    events = log.sample_events()
    events = events[log.history_lengths(events) >= length]
    rows = sumi_rows(log, events, num_candidates) if len(events) else np.zeros((0, num_candidates), np.int64)
    rows = rows[(rows >= 0).all(axis=1)]
    if not len(rows):
        raise ValueError(
            f"no user of {log.info.name} has {num_candidates} samples after {length} events; lower the length or N_c"
        )
    return np.random.default_rng(SEED).permutation(rows)[:count]


def _arm(model: ASTROForCTR, batch: Batch, arm: str) -> torch.Tensor:
    """(B, C) logits of an arm."""
    inputs = sequence_inputs(model.config, **{name: values for name, values in batch.items() if name != "labels"})
    fused = model.model.run(inputs, loop_blocks=arm != "blocks", short_circuit=arm in ("cache", "blocks"))
    return model.task_logits(fused.last_hidden_state, inputs)[..., 0]


def _training(
    model: ASTROForCTR, view: SequenceView, rows: np.ndarray, options: SequenceBenchmark
) -> tuple[dict[str, Any], float]:
    """Speed of the arms, and by how much their logits differ."""
    model.train()
    batches = {
        "mumi": _batches(view, rows.reshape(-1), options.batch_size, options.device),
        "sumi": _batches(view, rows, max(options.batch_size // rows.shape[1], 1), options.device),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # all its work, and the same weights in every arm

    def epoch(arm: str) -> torch.Tensor:
        found = []
        for batch in batches["mumi" if arm == "mumi" else "sumi"]:
            optimizer.zero_grad(set_to_none=True)
            logits = _arm(model, batch, arm)
            task_loss(model.config, logits, batch["labels"].reshape(logits.shape)).backward()
            optimizer.step()
            found.append(logits.detach().reshape(-1))
        return torch.cat(found)

    ways, logits = keeping({arm: partial(epoch, arm) for arm in ARMS})
    seconds = in_turn(ways, options.repeats, device=options.device, warm_up=True)
    # A MUMI row begins later than its SUMI row where a history is longer than a row holds: compare the SUMI arms.
    difference = max(float((logits[arm] - logits["sumi"]).abs().max()) for arm in ("cache", "blocks"))
    rates = {arm: [rows.size / value for value in values] for arm, values in seconds.items()}
    return _with_ratios(seconds, "samples_per_second", rates), difference


def _batches(view: SequenceView, rows: np.ndarray, size: int, device: str) -> list[dict[str, torch.Tensor]]:
    return [
        {name: values.to(device) for name, values in view.batch(rows[some]).items()}
        for some in blocks(len(rows), size)
    ]


def _scoring(
    model: ASTROForCTR, view: SequenceView, row: np.ndarray, options: SequenceBenchmark
) -> tuple[dict[str, Any], float, dict[str, Any]]:
    """One user's candidates: repeated rows, one row, one row on a kept history, the same with parallel blocks."""
    model.eval()
    device = options.device
    base = {name: values.to(device) for name, values in view.batch(row[None, -1:]).items() if name != "labels"}

    def candidates(count: int) -> Batch:
        items = 2 + torch.arange(count, device=device)[None] % (model.config.item_vocab_size - 2)
        wide = {
            name: values.expand(1, count) if values.shape == (1, 1) and not name.startswith("history") else values
            for name, values in base.items()
        }
        return wide | {"candidate_items": items}

    def repeated(batch: Batch) -> torch.Tensor:
        count, logits = batch["candidate_items"].shape[1], []
        for begin in range(0, count, _ROWS):
            part = min(_ROWS, count - begin)
            rows = {
                name: values.expand(part, -1) if name.startswith("history") else values[0, begin : begin + part, None]
                for name, values in batch.items()
            }
            logits.append(_arm(model, rows, "mumi")[:, 0])
        return torch.cat(logits)

    with torch.no_grad():
        inputs = sequence_inputs(model.config, **base)
        cache = model.model.encode_history(inputs, model.model.slots(inputs))

    def one_by_one(batch: Batch) -> torch.Tensor:
        wide, read = sequence_inputs(model.config, **batch), []
        for k in range(model.config.num_blocks):
            own = slice(k, k + 1)
            keys, values = (tuple(x[own] for x in kind) for kind in (cache.keys, cache.values))
            part = cache._replace(slots=cache.slots.blocks(own), keys=keys, values=values)
            read.append(model.model.read_history(wide, part, own)[0])
        fused = model.model.fuse(torch.cat(read), wide.candidate_scenarios)
        return model.task_logits(fused, wide)[0, :, 0]

    def together(batch: Batch) -> torch.Tensor:
        return model.score_candidates(cache, sequence_inputs(model.config, **batch))[0, :, 0]

    batch = candidates(options.request)
    ways, scores = keeping(
        {
            "mumi": lambda: repeated(batch),
            "sumi": lambda: _arm(model, batch, "sumi")[0],
            "cache": lambda: one_by_one(batch),
            "blocks": lambda: together(batch),
        }
    )
    with torch.no_grad():
        seconds = in_turn(ways, options.repeats, device=device, warm_up=True)
        memory = {
            str(count): _peak_growth(lambda count=count: together(candidates(count)), device)
            for count in (options.request, 20 * options.request)
        }
    difference = max(float((scores[arm] - scores["mumi"]).abs().max()) for arm in ARMS)
    return _with_ratios(seconds, "seconds", seconds), difference, memory


def _growth(config: ASTROConfig, options: SequenceBenchmark, length: int, blocks: int) -> dict[str, Any]:
    """Seconds and FLOPs of stage 1 (one history) and stage 2 (candidates) for random inputs, beside the formula."""
    candidates, device = options.request, options.device
    length = max(length // blocks, 1) * blocks
    say(f"growth: length {length}, {blocks} blocks")
    made = ASTROConfig(
        strategies=[{"name": f"all_{k}"} for k in range(blocks)],
        sequence_length=length,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
    )
    torch.manual_seed(SEED)
    model = ASTROForCTR(made).eval().to(device)
    events = length // blocks  # every block holds all of them
    batch = random_inputs(made, RequestShape(candidates, events), seed=SEED)
    batch = {name: values.to(device) for name, values in batch.items()}
    inputs = sequence_inputs(made, **batch)

    def encode() -> Any:
        return model.model.encode_history(inputs, model.model.slots(inputs))

    with torch.no_grad():
        cache = encode()
        ways = {"stage1_seconds": encode, "stage2_seconds": lambda: model.score_candidates(cache, inputs)}
        stages = in_turn(ways, options.repeats, device=device, warm_up=True)
    formula = astro_flops(made, candidates)
    return {
        "length": length,
        "blocks": blocks,
        **{stage: statistics.median(seconds) for stage, seconds in stages.items()},
        "counted_flops": count_flops(model, batch),
        "formula_flops": formula.total,
        "formula_stage1_flops": formula.stage1,
        "paper_flops": paper_flops(length, made.num_hidden_layers, made.hidden_size, blocks),
    }


def _with_ratios(seconds: Mapping[str, list[float]], unit: str, values: Mapping[str, list[float]]) -> dict[str, Any]:
    """Values of each arm in a unit, and its speed over `mumi`, by the medians of the values."""
    speedup = speedups(seconds, "mumi", pairs=False)
    result: dict[str, Any] = {
        arm: {f"{unit}_median": statistics.median(own), unit: own, "speedup": speedup[arm]}
        for arm, own in values.items()
    }
    result["blocks"]["speedup_over_loop"] = speedups(seconds, "cache", pairs=False)["blocks"]
    return result


def _peak_growth(call: Callable[[], Any], device: str) -> int | None:
    """Bytes by which the peak of memory rises during a call; None where the system does not tell."""
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        call()
        torch.cuda.synchronize(device)
        return torch.cuda.max_memory_allocated(device) - before
    status = Path("/proc/self/status")
    if not status.exists():
        return None

    def field(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])

    gc.collect()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
        release_memory()  # what was freed before counts as memory still
        before = field("VmRSS")
    except OSError:
        return None
    call()
    return max(field("VmHWM") - before, 0)


def as_markdown(result: Mapping[str, Any]) -> str:
    chosen, training, scoring = result["settings"], result["training"], result["scoring"]
    rows = [
        {"arm": arm, "training": training[arm], "scoring": scoring[arm]}
        | {"milliseconds": 1000 * scoring[arm]["seconds_median"]}
        for arm in ARMS
    ]
    form = "{arm} | {training[samples_per_second_median]:.1f} | {training[speedup]:.2f} | {milliseconds:.1f} | {scoring[speedup]:.2f}"
    text = f"""ASTRO on {result["data"]}: histories of {chosen["length"]} events in {chosen["blocks"]} blocks, {chosen["layers"]} layers, \
d = {chosen["hidden_size"]}; {chosen["samples"]} samples, N_c = {chosen["candidates"]}; requests of {chosen["request"]} candidates; \
median of {chosen["repeats"]}. {machine_text(result)}

{table("arm | training, samples/s | speed-up | scoring, ms | speed-up", form, rows)}

Parallel blocks over looped ones: {training["blocks"]["speedup_over_loop"]:.2f} in training, \
{scoring["blocks"]["speedup_over_loop"]:.2f} in scoring. Largest difference of logits: {result["largest_difference"]:.1e}."""
    memory = {count: value for count, value in result["memory"].items() if value is not None}
    if memory:
        shown = ", ".join(f"{int(count):,} candidates {value / 2**20:.1f} MiB" for count, value in memory.items())
        text += f"\nGrowth of the peak of memory while scoring: {shown}."
    if result["growth"]:
        rows = [
            point | {f"{stage}_ms": 1000 * point[f"{stage}_seconds"] for stage in ("stage1", "stage2")}
            for point in result["growth"]
        ]
        growth = table(
            "length | blocks | stage 1, ms | stage 2, ms | FLOPs counted | by formula | the paper's formula",
            "{length} | {blocks} | {stage1_ms:.2f} | {stage2_ms:.2f} | {counted_flops:.3g} | {formula_flops:.3g} | {paper_flops:.3g}",
            rows,
            left=(),
        )
        text += f"\n\n{growth}"
        exponents = _exponents(result["growth"])
        text += f"\n\nGrowth of stage 1 in the length, from point to point: {exponents}." if exponents else ""
    return text


def _exponents(growth: Sequence[Mapping[str, Any]]) -> str:
    """Exponent of seconds (and of the formula) between neighbouring lengths of the same number of blocks."""
    found = []
    for one, two in zip(growth, growth[1:]):  # noqa: RUF007
        if one["blocks"] == two["blocks"] and one["length"] < two["length"]:
            step = math.log(two["length"] / one["length"])
            time_, flops = (math.log(two[key] / one[key]) / step for key in ("stage1_seconds", "formula_stage1_flops"))
            found.append(f"{one['length']} to {two['length']} {time_:.2f} (formula {flops:.2f})")
    return ", ".join(found)


run = reports(benchmark_sequence, as_markdown)
