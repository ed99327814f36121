"""`lmctr benchmark tabular`: training speed of the tabular families, with the step taken apart, and the time of requests."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lmctr.benchmarks.harness import in_turn, machine_text, now, reports, results, say, speedups, table
from lmctr.benchmarks.options import TABULAR_ARMS as ARMS
from lmctr.benchmarks.options import TabularBenchmark
from lmctr.data import TabularFeatureProcessor
from lmctr.data.synthetic.tables import rising_sizes, synthetic_table, zipf_values
from lmctr.models.families import families, family_of
from lmctr.serving import scorer_for
from lmctr.serving.registry import Request
from lmctr.training.optim import GroupedOptimizer, LazyAdamW, use_sparse_gradients
from lmctr.training.row_gradients import RowGradients
from lmctr.utils.files import parse_yaml

PHASES = ("forward", "backward", "optimiser")
_BF16, _COMPILED = "bf16", "compile"
_GROWTH = {
    "fields": (10, 39, 100, 300, 1000),
    "vocabulary": (10_000, 100_000, 1_000_000, 10_000_000),
    "width": (8, 16, 32, 64),
}
_QUICK_GROWTH = {"fields": (6, 12), "vocabulary": (200, 400), "width": (4, 8)}
_BATCHES = 8
_TURNS = 20  # requests of a round
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class Shape:
    """What is measured: rows of a batch, fields, distinct values of all categorical fields together, embedding width."""

    batch_size: int = 4096
    num_categorical: int = 26
    num_numeric: int = 13
    vocabulary: int = 1_010_000
    embedding_dim: int = 16

    def vocab_sizes(self) -> list[int]:
        """Sizes with padding and unknown values, which rise from field to field and add up to the vocabulary."""
        return [max(3, size) + 2 for size in rising_sizes(self.num_categorical, self.vocabulary)]


def benchmark_tabular(options: TabularBenchmark) -> dict[str, Any]:
    """Measure the training step of each family.

    Returns:
        `machine`, `settings`, `families` (by name: parameters, matrix-product FLOP of a step, and by arm the samples/s, milliseconds by
        phase and the share of matrix products), `growth`: by family and axis what each point takes, or why it cannot be made,
        `requests`: by family and number of candidates the milliseconds of reading and of the forward pass, as rows and with shared columns.

    Raises:
        ValueError: no tabular family of a name in `families`, or a `set` that is not FAMILY.KEY=VALUE.
    """
    options = options.sized()
    chosen = {name: _family_values(name, options) for name in options.families or _known()}
    shape = Shape(options.batch_size, vocabulary=options.vocabulary)
    if options.quick:
        shape = replace(shape, num_categorical=10, num_numeric=5, embedding_dim=4)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    size = 256 if options.quick else 2048
    bf16 = any(arm.endswith(_BF16) for arm in options.arms)
    peaks = {
        name: matmul_speed(options.device, size, dtype=getattr(torch, name))
        for name in ("float32", *(["bfloat16"] if bf16 else []))
    }
    speeds = {name: peak / 1e9 for name, peak in peaks.items()}
    result: dict[str, Any] = {
        **results(options, options.device, **vars(shape), matmul_size=size, matmul_gflops_per_second=speeds),
        "arms": {arm: ARMS[arm] for arm in options.arms},
        "families": {},
        "growth": {},
        "requests": {},
    }
    for family, values in chosen.items():
        found = result["families"][family] = _measure_family(family, values, shape, options, peaks)
        arms = (f"{arm} {measured['samples_per_second']:,.0f}/s" for arm, measured in found["arms"].items())
        say(f"{family}: {', '.join(arms)}")
    for family, values in chosen.items() if options.growth else ():
        result["growth"][family] = {}
        for axis, points in (_QUICK_GROWTH if options.quick else _GROWTH).items():
            rows = result["growth"][family][axis] = []
            for point in points:
                rows.append(_grown(family, values, shape, axis, point, options))
                say(f"{family}, {axis} {point:,}: {rows[-1].get('milliseconds') or rows[-1]['note']}")
    for family, values in chosen.items() if options.requests else ():
        result["requests"][family] = _requests(family, values, shape, options)
    return result


def _known() -> list[str]:
    return [family.model_type for family in families("tabular")]


def _family_values(name: str, options: TabularBenchmark) -> dict[str, Any]:
    """What a family is measured with: the values of its row, smaller ones for a test, and those of --set."""
    if name not in _known():
        raise ValueError(f"--families {name}: no tabular family; accepted: {', '.join(_known())}")
    values = dict(family_of(name).benchmark)
    if options.quick:  # 15 fields of 4 are 60 numbers: 6 tokens of 10
        if "hidden_units" in values:
            values["hidden_units"] = [8]
        if "num_tokens" in values:
            values |= {"embedding_dim": 4, "num_tokens": 6, "token_dim": 12}
        if name == "fat":
            values |= {"hidden_size": 16, "num_attention_heads": 2, "num_bases": 4, "meta_dim": 8}
    for word in options.set:
        key, equals, text = word.partition("=")
        family, dot, key = key.partition(".")
        if not equals or not dot or family not in _known():
            raise ValueError(f"--set {word}: give FAMILY.KEY=VALUE, such as deepfm.hidden_units='[64, 64]'")
        if family == name:
            values[key] = parse_yaml(text, f"--set {family}.{key}")
    return values


def make_model(family: str, values: Mapping[str, Any], shape: Shape) -> nn.Module:
    """A family's model for the shape, with seeded weights."""
    keys = {"vocab_sizes": shape.vocab_sizes(), "num_numeric": shape.num_numeric, "embedding_dim": shape.embedding_dim}
    torch.manual_seed(0)
    row = family_of(family)
    return row.load("ForCTR")(row.load("Config")(**{**keys, **values})).train()


def make_batches(shape: Shape, place: torch.device, count: int = _BATCHES) -> list[dict[str, torch.Tensor]]:
    """Batches whose values follow a Zipf-like law, P(rank k) ~ k^-1.05, and labels of both classes."""
    rng = np.random.default_rng(0)
    sizes = np.array(shape.vocab_sizes()) - 2
    batches = []
    for _ in range(count):
        ids = zipf_values(rng.random((shape.batch_size, len(sizes))), sizes, 1.05) + 2
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
    family: str, values: Mapping[str, Any], shape: Shape, options: TabularBenchmark, peaks: Mapping[str, float]
) -> dict[str, Any]:
    place = torch.device(options.device)
    batches = make_batches(shape, place)
    model = make_model(family, values, shape).to(place)
    with FlopCounterMode(display=False) as counter:
        model(**batches[0]).loss.backward()
    flop, parameters = counter.get_total_flops(), model.num_parameters()
    del model
    distinct = sum(len(torch.unique(column)) for column in batches[0]["input_ids"].T)
    runners = {arm: _steps(arm, make_model(family, values, shape).to(place), batches, place) for arm in options.arms}
    spent: dict[str, list[tuple[float, ...]]] = {arm: [] for arm in runners}

    def turn(arm: str) -> None:
        spent[arm].extend(itertools.islice(runners[arm], options.steps))

    for runner in runners.values():
        for _ in range(2):  # warm up
            next(runner)
    in_turn({arm: partial(turn, arm) for arm in runners}, options.rounds)
    medians = {arm: statistics.median(map(sum, steps)) for arm, steps in spent.items()}
    arms = {}
    for arm, median in medians.items():
        phases = dict(zip(PHASES, zip(*spent[arm])))
        arms[arm] = {
            "samples_per_second": shape.batch_size / median,
            "ratio": medians[options.arms[0]] / median,
            "milliseconds": {phase: 1e3 * statistics.median(seconds) for phase, seconds in phases.items()},
            "step_milliseconds": 1e3 * median,
            "matmul_share": flop / peaks["bfloat16" if arm.endswith(_BF16) else "float32"] / median,
            "all_steps_milliseconds": [round(1e3 * sum(step), 3) for step in spent[arm]],
        }
    return {
        "parameters": parameters,
        "matmul_gflop_per_step": flop / 1e9,
        "touched_rows": distinct / sum(shape.vocab_sizes()),
        "arms": arms,
    }


def _steps(
    arm: str, model: nn.Module, batches: Sequence[Mapping[str, torch.Tensor]], place: torch.device
) -> Iterator[tuple[float, ...]]:
    """Endless training; each `next` is one step and gives the seconds of its phases."""
    optimizer = make_optimizer(arm, model)
    model = torch.compile(model) if arm.endswith(_COMPILED) else model
    for batch in itertools.cycle(batches):
        times = [now(place)]
        with torch.autocast(place.type, torch.bfloat16, enabled=arm.endswith(_BF16)):
            loss = model(**batch).loss
        times.append(now(place))
        loss.backward()
        times.append(now(place))
        optimizer.step()
        optimizer.zero_grad()
        times.append(now(place))
        yield tuple(end - start for start, end in itertools.pairwise(times))


def make_optimizer(arm: str, model: nn.Module) -> torch.optim.Optimizer:
    """The optimiser of an arm, learning rate 1e-3; the lazy ones turn on COO gradients."""
    if arm == "dense":
        return torch.optim.Adam(model.parameters(), lr=1e-3)
    if arm.startswith("fused"):
        fused = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0, fused=True)
        if arm == "fused-rows":
            RowGradients().attach(model, fused)
        return fused
    tables = use_sparse_gradients(model)
    sparse = {id(table) for table in tables}
    rest = [parameter for parameter in model.parameters() if id(parameter) not in sparse]
    dense = torch.optim.AdamW(rest, lr=1e-3, weight_decay=0.0, fused=True)
    return GroupedOptimizer([dense, LazyAdamW(tables, lr=1e-3)])


def matmul_speed(device: str, size: int = 2048, dtype: torch.dtype = torch.float32) -> float:
    """FLOP/s of a product of two (size, size) matrices: the best of a few."""
    left, right = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    seconds = in_turn({"product": lambda: left @ right}, 5, device=device, warm_up=True)
    return 2 * size**3 / min(seconds["product"])


def _grown(
    family: str, values: Mapping[str, Any], shape: Shape, axis: str, point: int, options: TabularBenchmark
) -> dict[str, Any]:
    """One point of a table of growth, with the lazy optimiser; a model that cannot be made says why."""
    values, mixer, place = dict(values), "num_tokens" in values, torch.device(options.device)
    if axis == "fields":  # as many rows as keep the attention of 1,000 fields in memory
        vocabulary = max(shape.vocabulary // 10, 8 * point)
        grown = Shape(min(shape.batch_size, 64), point, 0, vocabulary, shape.embedding_dim)
        if mixer:
            values["tokenizer"] = "dense"
    elif axis == "vocabulary":
        grown = replace(shape, vocabulary=point)
    else:
        grown = replace(shape, embedding_dim=point)
        values.pop("embedding_dim", None)
        if mixer:
            values |= {"tokenizer": "dense", "token_dim": values["num_tokens"] * max(1, point // 8)}
        elif family == "fat":
            values["hidden_size"] = 4 * point
    row: dict[str, Any] = {"point": point, "batch_size": grown.batch_size}
    try:
        model = make_model(family, values, grown).to(place)
        runner = _steps("lazy", model, make_batches(grown, place, 2), place)
        next(runner)
        times = [sum(next(runner)) for _ in range(1 if options.quick else max(3, options.steps))]
    except (ValueError, RuntimeError, MemoryError) as error:  # refused, or out of memory
        return row | {"note": str(error).splitlines()[0]}
    seconds = statistics.median(times)
    return row | {
        "milliseconds": round(1e3 * seconds, 2),
        "samples_per_second": grown.batch_size / seconds,
        "parameters": model.num_parameters(),
    }


def _requests(family: str, values: Mapping[str, Any], shape: Shape, options: TabularBenchmark) -> list[dict[str, Any]]:
    """By number of candidates how long a request takes whose rows have half of the columns in common, the user's: as rows, each by itself,
    and by `lmctr.serving.score`, which reads the user's once. The two in turn, each time a request of other rows."""
    size = 20 * max(options.requests)
    source = synthetic_table(
        size, shape.num_categorical, shape.num_numeric, vocab_size=shape.vocabulary, num_pairs=0, seed=0
    )
    processor = TabularFeatureProcessor(source.fields, label=source.label).fit(source)
    keys = {"embedding_dim": shape.embedding_dim, **processor.model_config_values(), **values}
    torch.manual_seed(0)
    known = family_of(family)
    model = known.load("ForCTR")(known.load("Config")(**keys)).eval().bake().to(options.device)
    scorer, read = scorer_for(model, processor), []
    every = [row for rows in source.rows() for row in rows.table.drop_columns([source.label]).to_pylist()]
    users = list(every[0])[::2]

    def clocked(call: Callable[..., Any], *given: Any) -> Any:
        began = now(options.device)
        found = call(*given)
        read.append(now(options.device) - began)
        return found

    def as_rows(user: dict[str, Any], candidates: list[dict[str, Any]], rows: list[dict[str, Any]]) -> torch.Tensor:
        with torch.inference_mode():
            return model(**clocked(processor, rows).to(options.device)).logits.float().cpu()

    def shared(user: dict[str, Any], candidates: list[dict[str, Any]], rows: list[dict[str, Any]]) -> torch.Tensor:
        return scorer.score(Request([user], candidates, 0), None)[0]

    def turn(way: Callable[..., torch.Tensor], drawn: Iterator[Any], reading: list[float]) -> None:
        way(*next(drawn))
        reading.append(read.pop())

    processor.of_candidates = partial(clocked, processor.of_candidates)
    found, turns = [], (1 if options.quick else _TURNS) * options.rounds
    for count in options.requests:
        requests = []
        for start in range(0, size - count + 1, count)[: 2 * turns]:
            user = {name: every[start][name] for name in users}
            rows = [row | user for row in every[start : start + count]]
            candidates = [{name: value for name, value in row.items() if name not in user} for row in rows]
            requests.append((user, candidates, rows))
        drawn, reading = itertools.cycle(requests), {"rows": [], "shared": []}
        ways = {
            "rows": partial(turn, as_rows, drawn, reading["rows"]),
            "shared": partial(turn, shared, drawn, reading["shared"]),
        }
        seconds = in_turn(ways, turns, device=options.device, warm_up=True)
        difference = float((as_rows(*requests[0]) - shared(*requests[0])).abs().max())
        if difference > _TOLERANCE:
            raise ValueError(f"{family}: the logits of the two ways differ by {difference:.2g}; please report this")
        found.append({"candidates": count, "ratio": speedups(seconds, "rows")["shared"]})
        for name, whole in seconds.items():
            parts = list(zip(whole, reading[name][1:]))
            milliseconds = {"reading": statistics.median(own for _, own in parts)}
            milliseconds["forward"] = statistics.median(both - own for both, own in parts)
            found[-1][name] = {part: 1e3 * value for part, value in milliseconds.items()}
        say(f"{family}, requests of {count:,}: {found[-1]['ratio']:.2f}")
    return found


def as_markdown(result: Mapping[str, Any]) -> str:
    settings, measured = result["settings"], result["families"]
    speeds = " and ".join(
        f"{speed:,.0f} GFLOP/s ({name})" for name, speed in settings["matmul_gflops_per_second"].items()
    )
    rows = [
        values | {"family": family, "arm": arm, "parameters": found["parameters"]}
        for family, found in measured.items()
        for arm, values in found["arms"].items()
    ]
    arms = "\n".join(f"- {arm}: {what}" for arm, what in result["arms"].items())
    head = f"family | optimiser | samples/s | against {next(iter(result['arms']))} | step ms | {' | '.join(PHASES)} | matmul | parameters"
    phases = " | ".join(f"{{milliseconds[{phase}]:.1f}}" for phase in PHASES)
    form = f"{{family}} | {{arm}} | {{samples_per_second:,.0f}} | {{ratio:.2f}} | {{step_milliseconds:.1f}} | {phases} | {{matmul_share:.0%}} | {{parameters:,}}"
    blocks = [
        f"""# Training speed of tabular families

{machine_text(result)} Batch {settings["batch_size"]:,}, {settings["num_categorical"]} categorical and {settings["num_numeric"]} numeric fields, \
{settings["vocabulary"]:,} values, embedding {settings["embedding_dim"]}. Medians of {settings["steps"] * settings["rounds"]} steps, the \
optimisers in turn. Matrix products of {settings["matmul_size"]} x {settings["matmul_size"]} run here at {speeds}; "matmul" is the share \
of the step that the family's products would take at that speed.

{arms}

{table(head, form, rows, left=(0, 1))}

A batch touches {next(iter(measured.values()))["touched_rows"]:.1%} of the tables' rows."""
    ]
    for family, axes in result["growth"].items():
        blocks.append(f"## How {family} grows (lazy optimiser)")
        for axis, points in axes.items():
            form = "{milliseconds:,.1f} | {samples_per_second:,.0f} | {parameters:,}"
            rows = [
                one | {"cells": f"{one['note']} | - | -" if "note" in one else form.format_map(one)} for one in points
            ]
            head = f"{axis} | batch | step ms | samples/s | parameters"
            blocks.append(table(head, "{point:,} | {batch_size:,} | {cells}", rows, left=()))
    for family, rows in result["requests"].items():
        blocks.append(f"## Requests of {family}, milliseconds")
        head = "candidates | rows: reading | forward | half of the columns shared: reading | forward | times as fast"
        form = " | ".join(f"{{{name}[{part}]:.2f}}" for name in ("rows", "shared") for part in ("reading", "forward"))
        blocks.append(table(head, f"{{candidates:,}} | {form} | {{ratio:.2f}}", rows, left=()))
    if result.get("command"):
        blocks.append(f"```\n{result['command']}\n```")
    return "\n\n".join(blocks)


run = reports(benchmark_tabular, as_markdown)
