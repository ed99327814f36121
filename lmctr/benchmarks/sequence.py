"""How fast ASTRO trains and scores: one row per sample (MUMI), rows of one user (SUMI), cached histories, parallel blocks.

Each arm adds one thing to the arm before it:

- `mumi`: one row per sample, every layer in full, the blocks one after the other;
- `sumi`: N_c samples of a user per row;
- `cache`: the two-stage forward, whose last layer computes keys and values of the history only; in scoring, the history is
  encoded once and kept;
- `blocks`: all blocks as one batched module.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import math
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, machine, write_result

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lmctr.data.batches.sequence import SequenceView
    from lmctr.data.logs.log import InteractionLog
    from lmctr.models.astro.modeling_astro import ASTROForCTR

ARMS = ("mumi", "sumi", "cache", "blocks")
_SEED = 0


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Add the action `sequence` to the verb `benchmark`."""
    parser = actions.add_parser(
        "sequence",
        help="training and scoring of ASTRO: single rows, rows of one user, cached histories, parallel blocks",
        description="Train and score an ASTRO on a log in four arms, each of which adds one thing to the one before: one row per sample, "
        "rows of one user, cached histories, parallel blocks. --lengths and --block-counts add how the cost grows, beside the formula.",
        allow_abbrev=False,
    )
    add_arguments(parser)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the benchmark."""
    parser.add_argument("--data", default="synthetic_sequence", help="data set: a name, a prepared folder or a schema")
    parser.add_argument("--path", help="folder (or zip) with the raw files")
    parser.add_argument("--length", type=int, default=200, help="events of a history (default: 200)")
    parser.add_argument("--candidates", type=int, default=10, help="samples per SUMI row, N_c (default: 10)")
    parser.add_argument("--request", type=int, default=500, help="candidates of a request (default: 500)")
    parser.add_argument("--samples", type=int, default=200, help="samples of a training measurement (default: 200)")
    parser.add_argument("--batch-size", type=int, default=50, help="samples per training step (default: 50)")
    parser.add_argument("--hidden-size", type=int, default=100, help="default: 100")
    parser.add_argument("--layers", type=int, default=2, help="default: 2")
    parser.add_argument(
        "--blocks", type=int, help="blocks that each read all events (default: a block per behaviour type)"
    )
    parser.add_argument("--lengths", type=int, nargs="*", default=[], help="history lengths for the growth of cost")
    parser.add_argument(
        "--block-counts", type=int, nargs="*", default=[], help="numbers of blocks for the growth of cost"
    )
    parser.add_argument("--repeats", type=int, default=5, help="measurements of each arm, taken in turn (default: 5)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Runs the benchmark that was asked for."""
    check_counts(
        args, ("length", "candidates", "request", "samples", "batch_size", "hidden_size", "layers", "repeats")
    )
    check_output(args.output or None)

    from lmctr.data.registry import load_log

    options: dict[str, Any] = {} if args.path is None else {"path": args.path}
    if args.data == "synthetic_sequence":
        options |= {"num_users": 60, "events_per_user": 2 * args.length}
    result = benchmark_sequence(
        load_log(args.data, **options),
        length=args.length,
        num_candidates=args.candidates,
        request=args.request,
        num_samples=args.samples,
        batch_size=args.batch_size,
        hidden_size=args.hidden_size,
        num_layers=args.layers,
        num_blocks=args.blocks,
        lengths=args.lengths,
        block_counts=args.block_counts,
        repeats=args.repeats,
        device=args.device,
        say=lambda line: print(line, file=sys.stderr),
    )
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output or None, result, table)
    return 0


def benchmark_sequence(
    log: InteractionLog,
    *,
    length: int = 200,
    num_candidates: int = 10,
    request: int = 500,
    num_samples: int = 200,
    batch_size: int = 50,
    hidden_size: int = 100,
    num_layers: int = 2,
    num_blocks: int | None = None,
    lengths: Sequence[int] = (),
    block_counts: Sequence[int] = (),
    repeats: int = 5,
    device: str = "cpu",
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure training, scoring, memory and growth of ASTRO.

    Args:
        log: the data; its users with at least `length` events and `num_candidates` samples after them are used.
        length: events of a history, over all blocks. num_candidates: N_c. request: candidates of a request.
        num_samples: samples of a training measurement, rounded down to whole rows. batch_size: samples per step.
        hidden_size, num_layers: of the model. num_blocks: blocks that each read all events, so that all are full; None: one
            block per behaviour type of the log.
        lengths, block_counts: measure stage 1 and 2 for these, on random histories. repeats: measurements, taken in turn.
        device: "cpu" or "cuda". say: prints progress.

    Returns:
        `machine`, `settings`, `training` (per arm samples per second, median and all; ratio to `mumi`), `scoring` (seconds per
        request), `memory` (growth of the peak for `request` and for 20 times as many candidates), `growth`, and
        `largest_difference` of logits between the arms.

    Raises:
        ValueError: a log without users that are active enough.
    """
    import torch

    from lmctr.data.batches.sequence import SequenceView
    from lmctr.data.processors.sequence import SequenceProcessor
    from lmctr.models.astro.configuration_astro import ASTROConfig
    from lmctr.models.astro.modeling_astro import ASTROForCTR

    view = SequenceView(log, SequenceProcessor.fit(log, max_history_length=length))
    rows = _rows(log, length, num_candidates, max(num_samples // num_candidates, 1))
    torch.manual_seed(_SEED)
    values: dict[str, Any] = {"hidden_size": hidden_size, "num_hidden_layers": num_layers}
    if num_blocks is not None:
        values["strategies"] = [{"name": f"all_{k}"} for k in range(num_blocks)]
        values["sequence_length"] = num_blocks
    probe = ASTROConfig(**view.processor.model_config_values(), **values)
    blocks = probe.num_blocks
    values["sequence_length"] = max(length // blocks, 1) * blocks
    config = ASTROConfig(**view.processor.model_config_values(), **values)
    model = ASTROForCTR(config).to(device)
    say(f"training: {rows.size} samples, {blocks} blocks, {repeats} repeats of {len(ARMS)} arms")
    training, difference = _training(model, view, rows, batch_size, repeats, device)
    say(f"scoring: {request} candidates")
    scoring, other, memory = _scoring(model, view, rows[0], request, repeats, device)
    growth = [
        _growth(config, blocks=count, length=n, candidates=request, repeats=repeats, device=device, say=say)
        for n, count in [*((n, blocks) for n in lengths), *((length, count) for count in block_counts)]
    ]
    return {
        "data": log.info.name,
        "machine": machine(device),
        "settings": {
            "length": config.sequence_length,
            "blocks": blocks,
            "num_candidates": num_candidates,
            "request": request,
            "samples": int(rows.size),
            "batch_size": batch_size,
            "hidden_size": hidden_size,
            "num_layers": num_layers,
            "repeats": repeats,
        },
        "training": training,
        "scoring": scoring,
        "memory": memory,
        "growth": growth,
        "largest_difference": max(difference, other),
    }


def _rows(log: InteractionLog, length: int, num_candidates: int, count: int) -> np.ndarray:
    """(R, N_c) full rows whose first sample has `length` events before it."""
    import numpy as np

    from lmctr.data.batches.sequence import sumi_rows

    events = log.sample_events()
    events = events[log.history_lengths(events) >= length]
    rows = sumi_rows(log, events, num_candidates) if len(events) else np.zeros((0, num_candidates), np.int64)
    rows = rows[(rows >= 0).all(axis=1)]
    if not len(rows):
        raise ValueError(
            f"no user of {log.info.name} has {num_candidates} samples after {length} events; lower the length or N_c"
        )
    return np.random.default_rng(_SEED).permutation(rows)[:count]


def _arm(model: ASTROForCTR, batch: Mapping[str, torch.Tensor], arm: str) -> torch.Tensor:
    """(B, C) logits of an arm."""
    from lmctr.models.common.sequence import sequence_inputs

    inputs = sequence_inputs(model.config, **{name: values for name, values in batch.items() if name != "labels"})
    fused = model.model.run(inputs, loop_blocks=arm != "blocks", short_circuit=arm in ("cache", "blocks"))
    return model.task_logits(fused.last_hidden_state, inputs)[..., 0]


def _training(
    model: ASTROForCTR, view: SequenceView, rows: np.ndarray, batch_size: int, repeats: int, device: str
) -> tuple[dict[str, Any], float]:
    import torch

    from lmctr.models.common.sequence import sequence_loss

    model.train()
    per_row = rows.shape[1]
    batches = {
        "mumi": _batches(view, rows.reshape(-1), batch_size, device),
        "sumi": _batches(view, rows, max(batch_size // per_row, 1), device),
    }
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)  # all its work, and the same weights in every arm

    def step(batch: Mapping[str, torch.Tensor], arm: str) -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        logits = _arm(model, batch, arm)
        labels = batch["labels"].reshape(logits.shape)
        sequence_loss(model.config, logits, labels).backward()
        optimizer.step()
        return logits.detach()

    speeds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    scores = {}
    for repeat in range(repeats + 1):  # the first round warms up
        for arm in ARMS:
            chosen = batches["mumi" if arm == "mumi" else "sumi"]
            started = _now(device)
            logits = [step(batch, arm) for batch in chosen]
            seconds = _now(device) - started
            scores[arm] = torch.cat([part.reshape(-1) for part in logits])
            if repeat:
                speeds[arm].append(rows.size / seconds)
    # A MUMI row begins later than its SUMI row where a history is longer than a row holds: compare the SUMI arms.
    difference = max(float((scores[arm] - scores["sumi"]).abs().max()) for arm in ("cache", "blocks"))
    return _ratios(speeds, "samples_per_second", faster=True), difference


def _batches(view: SequenceView, rows: np.ndarray, size: int, device: str) -> list[dict[str, torch.Tensor]]:
    return [
        {name: values.to(device) for name, values in view.batch(rows[begin : begin + size]).items()}
        for begin in range(0, len(rows), size)
    ]


def _scoring(
    model: ASTROForCTR, view: SequenceView, row: np.ndarray, request: int, repeats: int, device: str
) -> tuple[dict[str, Any], float, dict[str, Any]]:
    """One user's candidates: repeated rows, one row, one row on a kept history, the same with parallel blocks."""
    import torch

    from lmctr.models.common.sequence import sequence_inputs

    model.eval()
    base = {name: values.to(device) for name, values in view.batch(row[None, -1:]).items() if name != "labels"}

    def candidates(count: int) -> dict[str, torch.Tensor]:
        items = 2 + torch.arange(count, device=device)[None] % (model.config.item_vocab_size - 2)
        wide = {
            name: values.expand(1, count) if values.shape == (1, 1) and not name.startswith("history") else values
            for name, values in base.items()
        }
        return wide | {"candidate_items": items}

    def repeated(batch: Mapping[str, torch.Tensor], size: int = 50) -> torch.Tensor:
        count, logits = batch["candidate_items"].shape[1], []
        for begin in range(0, count, size):
            part = min(size, count - begin)
            rows = {
                name: values.expand(part, -1) if name.startswith("history") else values[0, begin : begin + part, None]
                for name, values in batch.items()
            }
            logits.append(_arm(model, rows, "mumi")[:, 0])
        return torch.cat(logits)

    def kept(loop: bool) -> Callable[[Mapping[str, torch.Tensor]], torch.Tensor]:
        inputs = sequence_inputs(model.config, **base)
        with torch.no_grad():
            cache = model.model.encode_history(inputs, model.model.slots(inputs))

        def score(batch: Mapping[str, torch.Tensor]) -> torch.Tensor:
            wide = sequence_inputs(model.config, **batch)
            if not loop:
                return model.score_candidates(cache, wide)[0, :, 0]
            read = []
            for k in range(model.config.num_blocks):
                own = slice(k, k + 1)
                keys, values = (tuple(x[own] for x in kind) for kind in (cache.keys, cache.values))
                part = cache._replace(slots=cache.slots.blocks(own), keys=keys, values=values)
                read.append(model.model.read_history(wide, part, own)[0])
            fused = model.model.fuse(torch.cat(read), wide.candidate_scenarios)
            return model.task_logits(fused, wide)[0, :, 0]

        return score

    ways = {
        "mumi": repeated,
        "sumi": lambda batch: _arm(model, batch, "sumi")[0],
        "cache": kept(loop=True),
        "blocks": kept(loop=False),
    }
    batch = candidates(request)
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    scores = {}
    with torch.no_grad():
        for repeat in range(repeats + 1):
            for arm in ARMS:
                started = _now(device)
                scores[arm] = ways[arm](batch)
                if repeat:
                    seconds[arm].append(_now(device) - started)
        memory = {
            str(count): _peak_growth(lambda count=count: ways["blocks"](candidates(count)), device)
            for count in (request, 20 * request)
        }
    difference = max(float((scores[arm] - scores["mumi"]).abs().max()) for arm in ARMS)
    return _ratios(seconds, "seconds", faster=False), difference, memory


def _growth(
    config: Any, blocks: int, length: int, candidates: int, repeats: int, device: str, say: Callable[[str], None]
) -> dict[str, Any]:
    """Seconds and FLOPs of stage 1 (one history) and stage 2 (candidates) for random inputs, beside the formula."""
    import torch

    from lmctr.models.astro.configuration_astro import ASTROConfig
    from lmctr.models.astro.modeling_astro import ASTROForCTR
    from lmctr.models.common.sequence import sequence_inputs
    from lmctr.scaling.flops import astro_flops, count_flops, paper_flops

    length = max(length // blocks, 1) * blocks
    say(f"growth: length {length}, {blocks} blocks")
    made = ASTROConfig(
        strategies=[{"name": f"all_{k}"} for k in range(blocks)],
        sequence_length=length,
        hidden_size=config.hidden_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
    )
    torch.manual_seed(_SEED)
    model = ASTROForCTR(made).eval().to(device)
    events = length // blocks  # every block holds all of them
    batch = {
        "history_items": torch.randint(1, 1000, (1, events)),
        "history_times": torch.randint(1, 1000, (1, events)).cumsum(1),
        "candidate_items": torch.randint(1, 1000, (1, candidates)),
        "candidate_times": torch.full((1, candidates), 1000 * (events + 1)),
    }
    batch = {name: values.to(device) for name, values in batch.items()}
    inputs = sequence_inputs(made, **batch)
    first, second = [], []
    with torch.no_grad():
        for repeat in range(repeats + 1):
            started = _now(device)
            cache = model.model.encode_history(inputs, model.model.slots(inputs))
            middle = _now(device)
            model.score_candidates(cache, inputs)
            if repeat:
                first.append(middle - started)
                second.append(_now(device) - middle)
    formula = astro_flops(made, candidates)
    return {
        "length": length,
        "blocks": blocks,
        "stage1_seconds": statistics.median(first),
        "stage2_seconds": statistics.median(second),
        "counted_flops": count_flops(model, batch),
        "formula_flops": formula.total,
        "formula_stage1_flops": formula.stage1,
        "paper_flops": paper_flops(length, made.num_hidden_layers, made.hidden_size, blocks),
    }


def _ratios(found: Mapping[str, list[float]], unit: str, faster: bool) -> dict[str, Any]:
    medians = {arm: statistics.median(values) for arm, values in found.items()}
    result = {}
    for arm, values in found.items():
        ratio = medians[arm] / medians["mumi"]
        result[arm] = {f"{unit}_median": medians[arm], unit: values, "speedup": ratio if faster else 1 / ratio}
    blocks = medians["blocks"] / medians["cache"]
    result["blocks"]["speedup_over_loop"] = blocks if faster else 1 / blocks
    return result


def _now(device: str) -> float:
    if device == "cuda":
        import torch

        torch.cuda.synchronize()
    return time.perf_counter()


def _peak_growth(call: Callable[[], Any], device: str) -> int | None:
    """Bytes by which the peak of memory rises during a call; None where the system does not tell."""
    import torch

    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    status, reset = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    gc.collect()
    if hasattr(libc := ctypes.CDLL(None), "malloc_trim"):  # what was freed before counts as memory still
        libc.malloc_trim(0)

    def field(name: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(name))
        return 1024 * int(line.split()[1])

    try:
        reset.write_text("5")
        before = field("VmRSS")
    except OSError:
        return None
    call()
    return max(field("VmHWM") - before, 0)


def as_markdown(result: Mapping[str, Any]) -> str:
    """The results as tables."""
    chosen, place = result["settings"], result["machine"]
    lines = [
        f"ASTRO on {result['data']}: histories of {chosen['length']} events in {chosen['blocks']} blocks, "
        f"{chosen['num_layers']} layers, d = {chosen['hidden_size']}; {chosen['samples']} samples, N_c = "
        f"{chosen['num_candidates']}; requests of {chosen['request']} candidates; median of {chosen['repeats']}. "
        f"{place.get('gpu', 'cpu')}, {place['threads']} thread(s), torch {place['torch']}.",
        "",
        "| arm | training, samples/s | speed-up | scoring, ms | speed-up |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for arm in ARMS:
        training, scoring = result["training"][arm], result["scoring"][arm]
        lines.append(
            f"| {arm} | {training['samples_per_second_median']:.1f} | {training['speedup']:.2f} | "
            f"{1000 * scoring['seconds_median']:.1f} | {scoring['speedup']:.2f} |"
        )
    lines += [
        "",
        f"Parallel blocks over looped ones: {result['training']['blocks']['speedup_over_loop']:.2f} in training, "
        f"{result['scoring']['blocks']['speedup_over_loop']:.2f} in scoring. Largest difference of logits: "
        f"{result['largest_difference']:.1e}.",
    ]
    memory = {count: value for count, value in result["memory"].items() if value is not None}
    if memory:
        shown = ", ".join(f"{int(count):,} candidates {value / 2**20:.1f} MiB" for count, value in memory.items())
        lines.append(f"Growth of the peak of memory while scoring: {shown}.")
    if result["growth"]:
        lines += [
            "",
            "| length | blocks | stage 1, ms | stage 2, ms | FLOPs counted | by formula | the paper's formula |",
            "| ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
        ]
        for point in result["growth"]:
            lines.append(
                f"| {point['length']} | {point['blocks']} | {1000 * point['stage1_seconds']:.2f} | "
                f"{1000 * point['stage2_seconds']:.2f} | {point['counted_flops']:.3g} | {point['formula_flops']:.3g} | "
                f"{point['paper_flops']:.3g} |"
            )
        exponents = _exponents(result["growth"])
        lines += [f"Growth of stage 1 in the length, from point to point: {exponents}."] if exponents else []
    return "\n".join(lines)


def _exponents(growth: Sequence[Mapping[str, Any]]) -> str:
    """Exponent of seconds (and of the formula) between neighbouring lengths of the same number of blocks."""
    found = []
    for one, two in zip(growth, growth[1:]):  # noqa: RUF007
        if one["blocks"] == two["blocks"] and one["length"] < two["length"]:
            step = math.log(two["length"] / one["length"])
            time_, flops = (math.log(two[key] / one[key]) / step for key in ("stage1_seconds", "formula_stage1_flops"))
            found.append(f"{one['length']} to {two['length']} {time_:.2f} (formula {flops:.2f})")
    return ", ".join(found)
