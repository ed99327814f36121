"""`lmctr benchmark train`: training speed and memory of CTR-Sink, what the sink bias costs, and what padding costs."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch

from lmctr.benchmarks.harness import (
    in_own_process,
    in_turn,
    machine_text,
    now,
    rates,
    reports,
    results,
    say,
    speedups,
    summary,
    table,
)
from lmctr.benchmarks.inputs import SEED, catalogue_tokenizer, prompt_of, random_model, read_log, shuffled_samples
from lmctr.benchmarks.options import TrainBenchmark
from lmctr.data.batches.text import TextView
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.training.sampler import GlobalBatchSampler
from lmctr.utils.measure import peak_memory
from lmctr.utils.ragged import blocks

_GROUP = 50  # batches that the trainer sorts by length together


@dataclass(frozen=True)
class Arm:
    """A way of training. `padded`: to `max_length` positions in batches drawn at random, else batches of like length.
    `attention_dropout` is switched off in some arms: where neither it nor a bias is in the way, torch takes a fused kernel."""

    text: str
    padded: bool = False
    bias: bool = True
    attention_dropout: bool = True


ARMS = {
    "padded": Arm("padded to the longest allowed, batches at random", padded=True),
    "off": Arm("batches of like length, no sink bias", bias=False),
    "on": Arm("batches of like length, sink bias"),
    "off, no attention dropout": Arm("batches of like length, no sink bias", bias=False, attention_dropout=False),
    "on, no attention dropout": Arm("batches of like length, sink bias", attention_dropout=False),
}
MEMORY_ARMS = ("padded", "on", "on, no attention dropout")
PHASES = ("forward", "forward_backward", "step")


def benchmark_train(options: TrainBenchmark) -> dict[str, Any]:
    """Measure the arms of [`ARMS`].

    Returns:
        `machine`, `settings`, `padding`: shares of an epoch's positions; `arms`: per arm, samples per second (`forward`,
        `forward_backward`, `step`: `median` and `all`), `tokens_per_second` of the step without padding;
        `bias_costs`: relative cost of the sink bias to `forward` and `forward_backward`, with and without attention dropout,
        as the median of the repeats' ratios; `speedup`: step of each arm over the padded one; `memory`: peak bytes.

    Raises:
        ValueError: a log without samples or feedback, values that the model refuses.
    """
    options = options.sized()
    view, events = _data(options)
    lengths = view.lengths(events)
    chosen = _batches(options, lengths)
    padded = _shuffled(chosen)
    arms = {
        name: _Training(options, arm, view, events, padded if arm.padded else chosen) for name, arm in ARMS.items()
    }
    for arm in arms.values():
        arm.measure(1)
        arm.spent.clear()
    say("warmed up")
    in_turn({name: partial(arm.measure, options.batches) for name, arm in arms.items()}, options.repeats, about="")
    seconds = {phase: {name: [spent[phase] for spent in arm.spent] for name, arm in arms.items()} for phase in PHASES}
    samples = sum(len(batch) for batch in chosen)
    tokens = int(sum(lengths[batch].sum() for batch in chosen))
    result = {
        **results(options, options.device, samples=samples, parameters=arms["on"].model.num_parameters()),
        "padding": _padding(options, lengths),
        "arms": {
            name: {
                **{phase: rates(samples, seconds[phase][name]) for phase in PHASES},
                "tokens_per_second": tokens / summary(seconds["step"][name])["median"],
            }
            for name in ARMS
        },
        "bias_costs": {
            which: {
                phase: speedups(seconds[phase], f"on{which}")[f"off{which}"] - 1
                for phase in ("forward", "forward_backward")
            }
            for which in ("", ", no attention dropout")
        },
        "speedup": speedups(seconds["step"], "padded"),
    }
    if options.peak_tflops is not None:
        for name, arm in arms.items():
            peak = options.peak_tflops * 1e12 * summary(seconds["step"][name])["median"]
            result["arms"][name]["share_of_peak"] = arm.flops(lengths, chosen) / peak
    if not options.no_memory:
        say("memory, each in a process of its own")
        result["memory"] = {name: in_own_process(peak_of_arm, options.settings(), name) for name in MEMORY_ARMS}
    return result


class _Training:
    def __init__(
        self, options: TrainBenchmark, arm: Arm, view: TextView, events: np.ndarray, rows: list[np.ndarray]
    ) -> None:
        self.options, self.view, self.events, self.rows = options, view, events, rows
        self.multiple = options.max_length if arm.padded else None
        self.model = _model(options, arm, view)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.call = torch.compile(self.model) if options.compile else self.model
        dtype = getattr(torch, options.dtype)
        device = torch.device(options.device).type
        self.precision = lambda: torch.autocast(device, dtype) if dtype != torch.float32 else nullcontext()
        self.spent: list[dict[str, float]] = []

    def batch(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        batch = self.view.batch(self.events[rows], pad_to_multiple_of=self.multiple)
        return {key: value.to(self.options.device) for key, value in batch.items()}

    def cut(self, rows: np.ndarray) -> list[np.ndarray]:
        return [rows[some] for some in blocks(len(rows), self.options.micro_batch_size)]

    def measure(self, batches: int) -> None:
        """Add to `spent` the seconds of `forward` (evaluation mode, no gradients), `forward_backward` and `step` over batches."""
        spent, device = dict.fromkeys(PHASES, 0.0), self.options.device
        for rows in self.rows[:batches]:
            self.model.eval()
            parts = [self.batch(part) for part in self.cut(rows)]
            began = now(device)
            with torch.no_grad(), self.precision():
                for part in parts:
                    self.call(**part)
            spent["forward"] += now(device) - began
            self.model.train()
            began = now(device)
            parts = [self.batch(part) for part in self.cut(rows)]
            made = now(device)
            for part in parts:
                with self.precision():
                    loss = self.call(**part, num_items_in_batch=float(len(rows))).loss
                loss.backward()
            differentiated = now(device)
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            spent["step"] += now(device) - began
            spent["forward_backward"] += differentiated - made
        self.spent.append(spent)

    def flops(self, lengths: np.ndarray, chosen: list[np.ndarray]) -> float:
        """Of a step over the chosen samples, padding left out: 6 per weight and token, 12 L H n per token for attention."""
        embeddings = self.model.get_input_embeddings().weight.numel()
        own = [lengths[batch].astype(float) for batch in chosen]
        tokens, squares = sum(part.sum() for part in own), sum((part**2).sum() for part in own)
        weights = self.model.num_parameters() - embeddings
        return 6 * weights * tokens + 12 * self.options.layers * self.options.hidden_size * squares


def _data(options: TrainBenchmark) -> tuple[TextView, np.ndarray]:
    """A text view with feedback in groups, and its samples in random order."""
    # the generated log is long enough for K behaviours of each kind
    log = read_log(options, num_users=200, num_items=2000, events_per_user=4 * options.num_behaviors)
    if not log.feedback.any():
        raise ValueError(f"{options.data} has no feedback; the histories of this benchmark come as two lists")
    processor = CTRSinkProcessor(
        catalogue_tokenizer(log),
        prompt=prompt_of(log),
        feedback="groups",
        num_behaviors=options.num_behaviors,
        max_length=options.max_length,
    )
    return TextView(log, processor), shuffled_samples(log)


def _model(options: TrainBenchmark, arm: Arm, view: TextView) -> torch.nn.Module:
    attention = options.dropout if arm.attention_dropout else 0.0
    if options.model_type.startswith("qwen"):
        dropout = {"attention_dropout": attention}
    else:
        dropout = {"hidden_dropout_prob": options.dropout, "attention_probs_dropout_prob": attention}
    bias = {"sink_bias_layers": None if arm.bias else [], "sink_bias_dropout": options.dropout}
    return random_model(options, view.processor, options.max_length, dropout, **bias)


def _sampler(options: TrainBenchmark, lengths: np.ndarray, strategy: str = "group_by_length") -> GlobalBatchSampler:
    return GlobalBatchSampler(
        len(lengths), options.batch_size, lengths=lengths, group_batches=_GROUP, strategy=strategy, seed=SEED
    )


def _batches(options: TrainBenchmark, lengths: np.ndarray, longest: bool = False) -> list[np.ndarray]:
    """Batches of an epoch as the trainer makes them, spread evenly over their lengths; or the longest one."""
    full = [batch for batch in _sampler(options, lengths).global_batches(0) if len(batch) == options.batch_size]
    if len(full) < options.batches:
        raise ValueError(
            f"--batches {options.batches}: the data has {len(full)} batches of {options.batch_size}; ask for fewer"
        )
    full = [batch[np.argsort(lengths[batch], kind="stable")] for batch in full]  # so that micro-batches are alike, too
    full.sort(key=lambda batch: lengths[batch].mean())
    if longest:
        return full[-1:]
    places = (np.arange(options.batches) + 0.5) / options.batches * len(full)
    return [full[int(place)] for place in places]


def _shuffled(batches: list[np.ndarray]) -> list[np.ndarray]:
    together = np.random.default_rng(SEED).permutation(np.concatenate(batches))
    return np.array_split(together, len(batches))


def _padding(options: TrainBenchmark, lengths: np.ndarray) -> dict[str, float]:
    """Shares of padding among the positions of an epoch."""

    def share(strategy: str) -> float:
        batches = _sampler(options, lengths, strategy).global_batches(0)
        return 1.0 - float(lengths.sum()) / sum(int(lengths[batch].max()) * len(batch) for batch in batches)

    return {
        "batches of like length": share("group_by_length"),
        "random batches, padded to their longest": share("random"),
        "padded to the longest allowed": 1.0 - float(lengths.mean()) / options.max_length,
        "tokens_per_sample": float(lengths.mean()),
    }


def peak_of_arm(values: Mapping[str, Any], name: str) -> dict[str, int | None]:
    """Peak bytes of this process (on a GPU: of the device) after a step of an arm on the longest batch, and before it."""
    options = TrainBenchmark(**values)
    view, events = _data(options)
    rows = _batches(options, view.lengths(events), longest=True)
    training = _Training(options, ARMS[name], view, events, rows)
    before = _peak_bytes(options.device)
    if options.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(options.device)
    training.measure(1)
    return {"before": before, "peak": _peak_bytes(options.device)}


def _peak_bytes(device: str) -> int | None:
    return int(torch.cuda.max_memory_allocated(device)) if device.startswith("cuda") else peak_memory()


def as_markdown(result: Mapping[str, Any]) -> str:
    settings, padding = result["settings"], result["padding"]
    rows = [
        result["arms"][name]
        | {"text": arm.text, "dropout": settings["dropout"] if arm.attention_dropout else 0}
        | {"speedup": result["speedup"][name]}
        for name, arm in ARMS.items()
    ]
    speed = table(
        "samples/s | attention dropout | forward | forward + backward | whole step | tokens/s | step against padded",
        "{text} | {dropout} | {forward[median]:.2f} | {forward_backward[median]:.2f} | {step[median]:.2f} | {tokens_per_second:,.0f} | {speedup:.2f}x",
        rows,
        left=(0, 1),
    )
    like, random, longest = list(padding.values())[:3]
    lines = [
        f"""## Training CTR-Sink

{settings["model_type"]}, {settings["layers"]} layers of width {settings["hidden_size"]}, {settings["parameters"]:,} parameters, two lists \
of {settings["num_behaviors"]} behaviours, {padding["tokens_per_sample"]:.0f} tokens per sample on average, batch {settings["batch_size"]} \
in parts of {settings["micro_batch_size"]}, {settings["dtype"]}, dropout {settings["dropout"]}{", torch.compile" if settings["compile"] else ""}; \
{settings["samples"]} samples of {settings["data"]} per measurement, median of {settings["repeats"]} taken in turn.
{machine_text(result)}

{speed}
""",
        *(
            f"The sink bias adds {costs['forward']:.1%} to the forward pass and {costs['forward_backward']:.1%} to forward + "
            f"backward{which}."
            for which, costs in result["bias_costs"].items()
        ),
        f"Padding: {like:.1%} of positions in batches of like length, {random:.1%} in random ones, {longest:.1%} at {settings['max_length']}.",
    ]
    for name, one in result.get("memory", {}).items():
        shown = "not told by this system"
        if one["peak"] is not None:
            shown = f"{one['peak'] / 1e9:.2f} GB ({one['before'] / 1e9:.2f} GB before the step)"
        lines.append(f"Peak memory, {name}: {shown}.")
    for name, one in result["arms"].items():
        if "share_of_peak" in one:
            lines.append(f"Share of the device's peak, {name}: {one['share_of_peak']:.1%}.")
    return "\n".join(lines)


run = reports(benchmark_train, as_markdown)
