"""`lmctr benchmark tabular`: training speed of the tabular families, with the step taken apart."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, machine, write_result
from lmctr.models.families import families

if TYPE_CHECKING:
    import torch
    from torch import nn

ARMS = {
    "dense": "torch.optim.Adam with its defaults, dense gradients of the tables",
    "fused": "fused AdamW, dense gradients of the tables",
    "lazy": "fused AdamW, and LazyAdamW on the touched rows of the tables",
    "lazy-bf16": "the same, with the model under bfloat16 autocast; weights and optimisers stay float32",
}
_BF16 = "bf16"
PHASES = ("forward", "backward", "optimiser")
FAMILIES: dict[str, Mapping[str, Any]] = {family.model_type: family.benchmark for family in families("tabular")}
"""What each family is measured with."""
_MIXERS = ("rank_mixer", "rank_elastor")
GROWTH = {
    "fields": (10, 39, 100, 300, 1000),
    "vocabulary": (10_000, 100_000, 1_000_000, 10_000_000),
    "width": (8, 16, 32, 64),
}
_QUICK_GROWTH = {"fields": (6, 12), "vocabulary": (200, 400), "width": (4, 8)}
_BATCHES = 8


@dataclass(frozen=True)
class Shape:
    """What is measured: rows of a batch, fields, distinct values of all categorical fields together, embedding width."""

    batch_size: int = 4096
    num_categorical: int = 26
    num_numeric: int = 13
    vocabulary: int = 1_010_000
    embedding_dim: int = 16

    def vocab_sizes(self) -> list[int]:
        """Sizes that rise geometrically from 4 and add up to the vocabulary, as Criteo's do."""
        import numpy as np

        count = self.num_categorical
        low, high = (
            1.0,
            max(1.0, self.vocabulary / 4) ** (1 / max(count - 1, 1)),
        )  # the last field alone is within the sum
        for _ in range(200):  # the ratio of the series, by halving
            ratio = (low * high) ** 0.5
            if (4 * ratio ** np.arange(count)).sum() < self.vocabulary:
                low = ratio
            else:
                high = ratio
        return [max(3, int(size)) + 2 for size in 4 * low ** np.arange(count)]


@dataclass
class Measured:
    """Seconds of each step of an arm, by phase."""

    seconds: dict[str, list[float]] = field(default_factory=lambda: {phase: [] for phase in PHASES})

    def median(self, phase: str | None = None) -> float:
        """Median seconds of a phase, or of the whole step."""
        if phase is not None:
            return statistics.median(self.seconds[phase])
        return statistics.median(map(sum, zip(*self.seconds.values())))


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Add the action `tabular` to the verb `benchmark`."""
    parser = actions.add_parser(
        "tabular",
        help="training speed of the tabular families, optimisers, and how cost grows",
        description="Train each family on made-up batches (Zipf-like values), the optimisers in turn, and take the step apart: forward, "
        "backward, optimiser, and the share of it that matrix products take at the speed this machine reaches on large ones. "
        "--growth adds a table per family of how the step grows with fields, vocabulary and width.",
        allow_abbrev=False,
    )
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="FAMILY", help="default: all")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=list(ARMS), help="default: all")
    parser.add_argument("--batch-size", type=int, default=Shape.batch_size)
    parser.add_argument(
        "--vocabulary", type=int, default=Shape.vocabulary, help="distinct values of all fields together"
    )
    parser.add_argument("--steps", type=int, default=3, help="steps of an arm before the next one's turn (default: 3)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each arm (default: 5)")
    parser.add_argument("--growth", action="store_true", help="also the tables of growth (long)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    parser.add_argument("--device", default="cpu", help="cpu (default), cuda, ...")
    parser.add_argument("--set", action="append", default=[], metavar="FAMILY.KEY=VALUE", help="a configuration key")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: shows that it runs, measures nothing")
    parser.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Run the benchmark and print its tables."""
    check_output(args.output or None)
    check_counts(args, ("batch_size", "vocabulary", "steps", "rounds"))
    unknown = [name for name in args.families if name not in FAMILIES]
    if unknown:
        raise ValueError(f"--families {unknown[0]}: no tabular family; accepted: {', '.join(FAMILIES)}")
    shape = Shape(args.batch_size, vocabulary=args.vocabulary)
    growth = GROWTH if args.growth else {}
    steps, rounds = args.steps, args.rounds
    if args.quick:
        shape, steps, rounds = Shape(32, 10, 5, 500, 4), 1, 1
        growth = _QUICK_GROWTH if args.growth else {}
    result = benchmark_tabular(
        args.families,
        args.arms,
        shape,
        steps=steps,
        rounds=rounds,
        growth=growth,
        changes=_changes(args.set),
        device=args.device,
        threads=args.threads,
        quick=args.quick,
        say=lambda line: print(line, file=sys.stderr, flush=True),
    )
    result["command"] = getattr(args, "command", None)
    text = as_markdown(result)
    print(text)
    write_result(args.output or None, result, text)
    return 0


def _changes(words: Sequence[str]) -> dict[str, dict[str, Any]]:
    from lmctr.utils.files import parse_yaml

    found: dict[str, dict[str, Any]] = {}
    for word in words:
        name, equals, text = word.partition("=")
        family, dot, key = name.partition(".")
        if not equals or not dot or family not in FAMILIES:
            raise ValueError(f"--set {word}: give FAMILY.KEY=VALUE, such as deepfm.hidden_units='[64, 64]'")
        found.setdefault(family, {})[key] = parse_yaml(text, f"--set {name}")
    return found


def benchmark_tabular(
    families: Sequence[str],
    arms: Sequence[str] = tuple(ARMS),
    shape: Shape | None = None,
    *,
    steps: int = 3,
    rounds: int = 5,
    growth: Mapping[str, Sequence[int]] | None = None,
    changes: Mapping[str, Mapping[str, Any]] | None = None,
    device: str = "cpu",
    threads: int | None = None,
    quick: bool = False,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the training step of each family.

    Args:
        families: names in `FAMILIES`. arms: names in `ARMS`.
        shape: of batch and table. steps, rounds: each arm in turn does `steps` steps, `rounds` times, after one step to warm up.
        growth: which values of "fields", "vocabulary" and "width" to go through; none: no tables of growth.
        changes: family to configuration keys to set.
        device: torch device. threads: of torch.
        quick: sizes of layers for a test.
        say: prints progress.

    Returns:
        `machine`, `settings`, `families` (by name: parameters, matrix-product FLOP of a step, and by arm the samples/s, milliseconds by
        phase and the share of matrix products), `growth`.
    """
    import torch

    shape = Shape() if shape is None else shape
    if threads is not None:
        torch.set_num_threads(threads)
    changes = changes or {}
    place = torch.device(device)
    sizes = 256 if quick else 2048
    peaks = {
        name: matmul_speed(place, sizes, dtype=getattr(torch, name))
        for name in ("float32", "bfloat16")
        if name == "float32" or any(arm.endswith(_BF16) for arm in arms)
    }
    result: dict[str, Any] = {
        "machine": machine(str(place)),
        "settings": {
            **vars(shape),
            "steps": steps,
            "rounds": rounds,
            "matmul_gflops_per_second": {name: peak / 1e9 for name, peak in peaks.items()},
        },
        "arms": {arm: ARMS[arm] for arm in arms},
        "families": {},
        "growth": {},
    }
    for family in families:
        values = _family_values(family, quick) | dict(changes.get(family, {}))
        result["families"][family] = _measure_family(family, values, shape, arms, steps, rounds, place, peaks)
        say(_line(family, result["families"][family]))
    for family in families if growth else ():
        values = _family_values(family, quick) | dict(changes.get(family, {}))
        result["growth"][family] = {}
        for axis, points in growth.items():
            rows = []
            for point in points:
                rows.append(_grown(family, values, shape, axis, point, steps, rounds, place, quick))
                say(f"{family}, {axis} {point:,}: {rows[-1].get('milliseconds') or rows[-1]['note']}")
            result["growth"][family][axis] = rows
    return result


def _family_values(family: str, quick: bool) -> dict[str, Any]:
    values = dict(FAMILIES[family])
    if quick:  # 15 fields of 4 are 60 numbers: 6 tokens of 10
        values = {key: [8] if key == "hidden_units" else value for key, value in values.items()}
        if family in _MIXERS:
            values |= {"embedding_dim": 4, "num_tokens": 6, "token_dim": 12}
        if family == "fat":
            values |= {"hidden_size": 16, "num_attention_heads": 2, "num_bases": 4, "meta_dim": 8}
    return values


def make_model(family: str, values: Mapping[str, Any], shape: Shape) -> nn.Module:
    """A family's model for the shape, with seeded weights."""
    import torch

    import lmctr
    from lmctr.runs.inputs import config_class

    keys = {"vocab_sizes": shape.vocab_sizes(), "num_numeric": shape.num_numeric, "embedding_dim": shape.embedding_dim}
    torch.manual_seed(0)
    return lmctr.AutoModelForCTR.from_config(config_class(family)(**{**keys, **values})).train()


def make_batches(shape: Shape, place: torch.device, count: int = _BATCHES) -> list[dict[str, torch.Tensor]]:
    """Batches whose values follow a Zipf-like law, P(rank k) ~ k^-1.05, and labels of both classes."""
    import numpy as np
    import torch

    rng = np.random.default_rng(0)
    sizes = np.array(shape.vocab_sizes()) - 2
    batches = []
    for _ in range(count):
        uniform = rng.random((shape.batch_size, len(sizes)))
        power = 1 - 1.05  # bounded Pareto, rounded down
        ranks = (1 + uniform * ((sizes + 1.0) ** power - 1)) ** (1 / power)
        ids = np.minimum(ranks.astype(np.int64) - 1, sizes - 1) + 2
        batch = {
            "input_ids": torch.from_numpy(ids.astype(np.int32)),
            "labels": torch.from_numpy((rng.random(shape.batch_size) < 0.25).astype(np.float32)),
        }
        if shape.num_numeric:
            numbers = rng.normal(size=(shape.batch_size, shape.num_numeric)).astype(np.float32)
            batch["numeric_values"] = torch.from_numpy(numbers)
        batches.append({key: values.to(place) for key, values in batch.items()})
    return batches


def _measure_family(
    family: str,
    values: Mapping[str, Any],
    shape: Shape,
    arms: Sequence[str],
    steps: int,
    rounds: int,
    place: torch.device,
    peaks: Mapping[str, float],
) -> dict[str, Any]:
    batches = make_batches(shape, place)
    flop, parameters, touched = _facts(family, values, shape, batches[0], place)
    runners = {arm: _steps(arm, make_model(family, values, shape).to(place), batches, place) for arm in arms}
    for runner in runners.values():
        next(runner)  # warm up
    measured = {arm: Measured() for arm in arms}
    for _ in range(rounds):
        for arm, runner in runners.items():
            for _ in range(steps):
                for phase, seconds in zip(PHASES, next(runner)):
                    measured[arm].seconds[phase].append(seconds)
    first = measured[arms[0]].median()
    return {
        "parameters": parameters,
        "matmul_gflop_per_step": flop / 1e9,
        "touched_rows": touched,
        "arms": {
            arm: {
                "samples_per_second": shape.batch_size / found.median(),
                "ratio": first / found.median(),
                "milliseconds": {phase: 1e3 * found.median(phase) for phase in PHASES},
                "step_milliseconds": 1e3 * found.median(),
                "matmul_share": flop / peaks["bfloat16" if arm.endswith(_BF16) else "float32"] / found.median(),
                "all_steps_milliseconds": [round(1e3 * sum(step), 3) for step in zip(*found.seconds.values())],
            }
            for arm, found in measured.items()
        },
    }


def _steps(
    arm: str, model: nn.Module, batches: list[dict[str, torch.Tensor]], place: torch.device
) -> Iterator[tuple[float, float, float]]:
    """Endless training; each `next` is one step and gives the seconds of its phases."""
    import torch

    optimizer = make_optimizer(arm, model)
    number = 0
    while True:
        batch = batches[number % len(batches)]
        number += 1
        times = [_now(place)]
        with torch.autocast(place.type, torch.bfloat16, enabled=arm.endswith(_BF16)):
            loss = model(**batch).loss
        times.append(_now(place))
        loss.backward()
        times.append(_now(place))
        optimizer.step()
        optimizer.zero_grad()
        times.append(_now(place))
        yield tuple(end - start for start, end in itertools.pairwise(times))


def make_optimizer(arm: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of an arm, learning rate 1e-3; the lazy ones turn on COO gradients."""
    import torch

    from lmctr.training.optim import GroupedOptimizer, LazyAdamW, use_sparse_gradients

    if arm == "dense":
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    if arm == "fused":
        return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
    tables = use_sparse_gradients(model)
    sparse = {id(table) for table in tables}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in sparse]
    dense = torch.optim.AdamW(rest, lr=1e-3, weight_decay=0.0, fused=True)
    return GroupedOptimizer([dense, LazyAdamW(tables, lr=1e-3)])


def _now(place: torch.device) -> float:
    if place.type == "cuda":
        import torch

        torch.cuda.synchronize(place)
    return time.perf_counter()


def _facts(
    family: str, values: Mapping[str, Any], shape: Shape, batch: dict[str, torch.Tensor], place: torch.device
) -> tuple[int, int, float]:
    """FLOP of the matrix products of a forward and backward pass, parameters, and the share of table rows in a batch."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model = make_model(family, values, shape).to(place)
    with FlopCounterMode(display=False) as counter:
        model(**batch).loss.backward()
    distinct = sum(len(torch.unique(column)) for column in batch["input_ids"].T)
    return (
        counter.get_total_flops(),
        sum(parameter.numel() for parameter in model.parameters()),
        distinct / sum(shape.vocab_sizes()),
    )


def matmul_speed(place: torch.device, size: int = 2048, repeats: int = 5, dtype: torch.dtype | None = None) -> float:
    """FLOP/s of a product of two (size, size) matrices (default: float32): the best of a few."""
    import torch

    left, right = (torch.randn(size, size, device=place).to(dtype or torch.float32) for _ in range(2))
    left @ right
    best = float("inf")
    for _ in range(repeats):
        start = _now(place)
        left @ right
        best = min(best, _now(place) - start)
    return 2 * size**3 / best


def _grown(
    family: str,
    values: Mapping[str, Any],
    shape: Shape,
    axis: str,
    point: int,
    steps: int,
    rounds: int,
    place: torch.device,
    quick: bool,
) -> dict[str, Any]:
    """One point of a table of growth, with the lazy optimiser; a model that cannot be made says why."""
    changed = dict(vars(shape))
    values = dict(values)
    if axis == "fields":  # as many rows as keep the attention of 1,000 fields in memory
        changed |= {"num_categorical": point, "num_numeric": 0, "batch_size": min(shape.batch_size, 64)}
        changed["vocabulary"] = max(shape.vocabulary // 10, 8 * point)
        if family in _MIXERS:
            values["tokenizer"] = "dense"
    elif axis == "vocabulary":
        changed["vocabulary"] = point
    else:
        changed["embedding_dim"] = point
        values.pop("embedding_dim", None)
        if family in _MIXERS:
            values |= {"tokenizer": "dense", "token_dim": values["num_tokens"] * max(1, point // 8)}
        elif family == "fat":
            values["hidden_size"] = 4 * point
    grown = Shape(**changed)
    row: dict[str, Any] = {"point": point, "batch_size": grown.batch_size}
    try:
        model = make_model(family, values, grown).to(place)
        runner = _steps("lazy", model, make_batches(grown, place, 2), place)
        next(runner)
        times = [sum(next(runner)) for _ in range(max(3, steps) if not quick else 1)]
    except (ValueError, RuntimeError, MemoryError) as error:  # refused, or out of memory
        return row | {"note": str(error).splitlines()[0]}
    seconds = statistics.median(times)
    return row | {
        "milliseconds": round(1e3 * seconds, 2),
        "samples_per_second": grown.batch_size / seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


# ---- what is printed ------------------------------------------------------------------------------------------------


def _line(family: str, measured: dict[str, Any]) -> str:
    arms = ", ".join(f"{arm} {values['samples_per_second']:,.0f}/s" for arm, values in measured["arms"].items())
    return f"{family}: {arms}"


def as_markdown(result: dict[str, Any]) -> str:
    """The result as a document."""
    place, settings = result["machine"], result["settings"]
    speeds = " and ".join(
        f"{speed:,.0f} GFLOP/s ({name})" for name, speed in settings["matmul_gflops_per_second"].items()
    )
    lines = [
        "# Training speed of tabular families",
        "",
        f"{place.get('gpu', place['processor'])}, {place['cores']} cores, {place['threads']} threads; torch {place['torch']}, "
        f"transformers {place['transformers']}. Batch {settings['batch_size']:,}, {settings['num_categorical']} categorical and "
        f"{settings['num_numeric']} numeric fields, {settings['vocabulary']:,} values, embedding {settings['embedding_dim']}. Medians of "
        f"{settings['steps'] * settings['rounds']} steps, the optimisers in turn. Matrix products of 2048 x 2048 run here at "
        f'{speeds}; "matmul" is the share of the step that the family\'s products would take at that speed.',
        "",
        *(f"- {arm}: {what}" for arm, what in result["arms"].items()),
        "",
        f"| family | optimiser | samples/s | against {next(iter(result['arms']))} | step ms | {' | '.join(PHASES)} | matmul | parameters |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for family, found in result["families"].items():
        for arm, values in found["arms"].items():
            phases = " | ".join(f"{values['milliseconds'][phase]:.1f}" for phase in PHASES)
            lines.append(
                f"| {family} | {arm} | {values['samples_per_second']:,.0f} | {values['ratio']:.2f} | {values['step_milliseconds']:.1f} | "
                f"{phases} | {values['matmul_share']:.0%} | {found['parameters']:,} |"
            )
    touched = [found["touched_rows"] for found in result["families"].values()]
    if touched:
        lines += ["", f"A batch touches {touched[0]:.1%} of the tables' rows."]
    for family, axes in result["growth"].items():
        lines += ["", f"## How {family} grows (lazy optimiser)"]
        for axis, rows in axes.items():
            lines += [
                "",
                f"| {axis} | batch | step ms | samples/s | parameters |",
                "| ---: | ---: | ---: | ---: | ---: |",
            ]
            for row in rows:
                if "note" in row:
                    lines.append(f"| {row['point']:,} | {row['batch_size']:,} | {row['note']} | - | - |")
                else:
                    lines.append(
                        f"| {row['point']:,} | {row['batch_size']:,} | {row['milliseconds']:.1f} | {row['samples_per_second']:,.0f} | "
                        f"{row['parameters']:,} |"
                    )
    if result.get("command"):
        lines += ["", "```", result["command"], "```"]
    return "\n".join(lines)
