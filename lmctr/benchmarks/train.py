"""`lmctr benchmark train`: training speed and memory of CTR-Sink, what the sink bias costs, and what padding costs."""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, machine, summary, synchronize, write_result

if TYPE_CHECKING:
    import numpy as np
    import torch

    from lmctr.data.batches.text import TextView
    from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR

_SEED = 0
_VOCAB_SIZE = 8000  # of the WordPiece tokenizer made from the catalogue
_GROUP = 50  # batches that the trainer sorts by length together
# What is reported of the authors' research code, on two cores, for these settings (4-layer BERT of width 256, 30 + 30
# behaviours, batch 32, half of 1,024 positions padding). Not measured here.
REPORTED = {"samples_per_second": [4.0, 4.6], "memory_gb": 4.6, "positions": 1024}


@dataclass(frozen=True)
class Arm:
    """A way of training. `padded`: to `Settings.max_length` positions in batches drawn at random, else batches of like length.
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


@dataclass(frozen=True)
class Settings:
    """What is measured; defaults are the reported shape. `dtype` other than float32: autocast."""

    data: str = "synthetic"
    path: str | None = None
    model_type: str = "bert"
    hidden_size: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int | None = None
    intermediate_size: int = 1024
    num_behaviors: int = 30
    max_length: int = 1024
    batch_size: int = 32
    micro_batch_size: int = 8
    batches: int = 1
    dropout: float = 0.1
    device: str = "cpu"
    dtype: str = "float32"
    compile: bool = False


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `benchmark train`."""
    parser = actions.add_parser(
        "train",
        help="training speed and memory of CTR-Sink, with and without sink bias and padding",
        description=(
            "Train CTR-Sink on the same samples in several ways, in turn: padded to the longest allowed text in random batches, "
            "and in batches of like length, these with and without the sink bias. Histories come as two lists (disliked, liked) "
            "of K behaviours each. Prints medians of samples per second for the forward pass without gradients, forward and "
            "backward, and the whole step (making the batch included), tokens per second, the share of padding, ratios, and the "
            "peak memory of a process that trains one step on the longest batch."
        ),
        allow_abbrev=False,
    )
    default = Settings()
    parser.add_argument("--data", default="synthetic", help="data set with feedback: a name or a prepared folder")
    parser.add_argument("--path", help="folder (or zip) with the raw files")
    parser.add_argument("--model-type", default="bert", help="bert, roberta, qwen2 or qwen3 (default: bert)")
    for name, text in (
        ("hidden_size", "width"),
        ("layers", "layers"),
        ("heads", "attention heads"),
        ("key_value_heads", "key and value heads of Qwen (default: as many as heads)"),
        ("intermediate_size", "width of the feed-forward layers"),
        ("num_behaviors", "behaviours per list, K"),
        ("max_length", "most tokens of a sample, and the padded length"),
        ("batch_size", "rows of a batch"),
        ("micro_batch_size", "rows of a forward pass; gradients of a batch are added up"),
        ("batches", "batches per measurement"),
    ):
        value = getattr(default, name)
        more = "" if value is None else f" (default: {value})"
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=text + more)
    parser.add_argument("--dropout", type=float, default=0.1, help="dropout of states and attention (default: 0.1)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="bfloat16 means autocast")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--peak-tflops", type=float, help="the device's peak for the dtype, to state the share of it")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each way, taken in turn (default: 3)")
    parser.add_argument("--no-memory", action="store_true", help="do not measure the memory")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one repeat, to see that it runs")
    parser.add_argument("--output", help="write the results to this .json or .md file")
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)  # in the process whose memory is measured


def run(args: argparse.Namespace) -> int:
    """Runs `benchmark train`."""
    settings = Settings(**{name: getattr(args, name) for name in asdict(Settings())})
    check_counts(
        settings,
        (
            "hidden_size",
            "layers",
            "heads",
            "intermediate_size",
            "num_behaviors",
            "max_length",
            "batch_size",
            "micro_batch_size",
            "batches",
        ),
    )
    check_counts(args, ("repeats",))
    check_output(args.output)
    repeats = args.repeats
    if args.quick:
        small = {"hidden_size": 32, "layers": 2, "heads": 2, "intermediate_size": 64, "num_behaviors": 4}
        settings, repeats = replace(settings, **small, max_length=128, batch_size=4, batches=1), 1
    if args.memory_of is not None:
        print(json.dumps(peak_memory(settings, args.memory_of)))
        return 0
    result = benchmark_train(
        settings,
        repeats=repeats,
        memory=not args.no_memory,
        peak_tflops=args.peak_tflops,
        say=lambda line: print(line, file=sys.stderr),
    )
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output, result, table)
    return 0


def benchmark_train(
    settings: Settings,
    *,
    repeats: int = 3,
    memory: bool = True,
    peak_tflops: float | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the arms of [`ARMS`].

    Returns:
        `machine`, `settings`, `padding`: shares of an epoch's positions; `arms`: per arm, samples per second (`forward`,
        `forward_backward`, `step`: `median` and `all`), `tokens_per_second` of the step without padding, `positions` of a row;
        `bias_costs`: relative cost of the sink bias to `forward` and `forward_backward`, with and without attention dropout,
        as the median of the repeats' ratios; `speedup`: step of each arm over the padded one; `memory`: peak bytes.

    Raises:
        ValueError: a log without samples or feedback, values that the model refuses.
    """
    view, events = _data(settings)
    lengths = view.lengths(events)
    chosen = _batches(settings, lengths)
    rows = {"padded": _shuffled(chosen), "like": chosen}
    arms = {
        name: _Training(settings, arm, view, events, rows["padded" if arm.padded else "like"])
        for name, arm in ARMS.items()
    }
    seconds: dict[str, dict[str, list[float]]] = {name: {} for name in ARMS}
    for repeat in range(repeats + 1):  # the first round warms up, on one batch
        names = list(ARMS) if repeat % 2 == 0 else list(reversed(ARMS))
        for name in names:
            measured = arms[name].measure(1 if repeat == 0 else settings.batches)
            if repeat:
                for phase, value in measured.items():
                    seconds[name].setdefault(phase, []).append(value)
        say(f"repeat {repeat} of {repeats}" if repeat else "warmed up")
    samples = sum(len(batch) for batch in chosen)
    tokens = int(sum(lengths[batch].sum() for batch in chosen))
    result: dict[str, Any] = {
        "machine": machine(settings.device),
        "settings": asdict(settings)
        | {"repeats": repeats, "samples": samples, "parameters": arms["on"].num_parameters},
        "reported": REPORTED if _is_reported_shape(settings) else None,
        "padding": _padding(settings, lengths),
        "arms": {},
    }
    for name, phases in seconds.items():
        result["arms"][name] = {
            **{phase: summary([samples / value for value in values]) for phase, values in phases.items()},
            "tokens_per_second": tokens / summary(phases["step"])["median"],
        }
        if peak_tflops is not None:
            flops = arms[name].flops(lengths, chosen)
            result["arms"][name]["share_of_peak"] = flops / summary(phases["step"])["median"] / (peak_tflops * 1e12)
    result["bias_costs"] = {
        which: {
            phase: summary(
                [on / off - 1 for on, off in zip(seconds[f"on{which}"][phase], seconds[f"off{which}"][phase])]
            )["median"]
            for phase in ("forward", "forward_backward")
        }
        for which in ("", ", no attention dropout")
    }
    result["speedup"] = {
        name: summary([slow / own for slow, own in zip(seconds["padded"]["step"], seconds[name]["step"])])["median"]
        for name in ARMS
    }
    if memory:
        say("memory, each in a process of its own")
        result["memory"] = {name: _memory_of(settings, name) for name in MEMORY_ARMS}
    return result


class _Training:
    """A model, its optimiser and its batches."""

    def __init__(self, settings: Settings, arm: Arm, view: TextView, events: np.ndarray, rows: list[np.ndarray]):
        import torch

        self.settings, self.view, self.events, self.rows = settings, view, events, rows
        self.multiple = settings.max_length if arm.padded else None
        self.model = _model(settings, arm, view)
        self.num_parameters = sum(parameter.numel() for parameter in self.model.parameters())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, fused=True)
        self.call = torch.compile(self.model) if settings.compile else self.model
        dtype = getattr(torch, settings.dtype)
        device = torch.device(settings.device).type
        self.precision = lambda: torch.autocast(device, dtype) if dtype != torch.float32 else nullcontext()

    def batch(self, rows: np.ndarray) -> dict[str, torch.Tensor]:
        batch = self.view.batch(self.events[rows], pad_to_multiple_of=self.multiple)
        return {key: value.to(self.settings.device) for key, value in batch.items()}

    def cut(self, rows: np.ndarray) -> list[np.ndarray]:
        """A batch as micro-batches."""
        size = self.settings.micro_batch_size
        return [rows[begin : begin + size] for begin in range(0, len(rows), size)]

    def measure(self, batches: int) -> dict[str, float]:
        """Seconds of `forward` (evaluation mode, no gradients), `forward_backward` and `step` over some batches."""
        import torch

        spent = {"forward": 0.0, "forward_backward": 0.0, "step": 0.0}
        for rows in self.rows[:batches]:
            self.model.eval()
            parts = [self.batch(part) for part in self.cut(rows)]
            began = self._now()
            with torch.no_grad(), self.precision():
                for part in parts:
                    self.call(**part)
            spent["forward"] += self._now() - began
            self.model.train()
            began = self._now()
            parts = [self.batch(part) for part in self.cut(rows)]
            made = self._now()
            for part in parts:
                with self.precision():
                    loss = self.call(**part, num_items_in_batch=float(len(rows))).loss
                loss.backward()
            differentiated = self._now()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            spent["step"] += self._now() - began
            spent["forward_backward"] += differentiated - made
        return spent

    def flops(self, lengths: np.ndarray, chosen: list[np.ndarray]) -> float:
        """Of a step over the chosen samples, padding left out: 6 per weight and token, 12 L H n per token for attention."""
        embeddings = self.model.get_input_embeddings().weight.numel()
        own = [lengths[batch].astype(float) for batch in chosen]
        tokens, squares = sum(part.sum() for part in own), sum((part**2).sum() for part in own)
        return (
            6 * (self.num_parameters - embeddings) * tokens
            + 12 * self.settings.layers * self.settings.hidden_size * squares
        )

    def _now(self) -> float:
        synchronize(self.settings.device)
        return time.perf_counter()


def _data(settings: Settings) -> tuple[TextView, np.ndarray]:
    """A text view with feedback in groups, and its samples in random order."""
    import numpy as np

    from lmctr.data.batches.text import TextView
    from lmctr.data.registry import load_log
    from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
    from lmctr.models.ctr_sink.prompt import Prompt
    from lmctr.training.tokenizers import train_tokenizer

    options: dict[str, Any] = {} if settings.path is None else {"path": settings.path}
    if settings.data == "synthetic":  # long enough for K behaviours of each kind
        options |= {"num_users": 200, "num_items": 2000, "events_per_user": 4 * settings.num_behaviors}
    log = load_log(settings.data, **options)
    if log.feedback is None:
        raise ValueError(f"{settings.data} has no feedback; the histories of this benchmark come as two lists")
    events = log.sample_events()
    if not len(events):
        raise ValueError(f"{settings.data} has no sample: no event has a label")
    tokenizer = train_tokenizer(Prompt.load("movielens/en").item_texts(log.catalogue), "wordpiece", _VOCAB_SIZE)
    processor = CTRSinkProcessor(
        tokenizer,
        prompt="movielens/en",
        feedback="groups",
        num_behaviors=settings.num_behaviors,
        max_length=settings.max_length,
    )
    return TextView(log, processor), np.random.default_rng(_SEED).permutation(events)


def _model(settings: Settings, arm: Arm, view: TextView) -> CTRSinkForCTR:
    import torch

    from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
    from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR

    attention = settings.dropout if arm.attention_dropout else 0.0
    text = {
        "model_type": settings.model_type,
        "vocab_size": len(view.processor.tokenizer),
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.intermediate_size,
        "max_position_embeddings": settings.max_length + 8,  # RoBERTa counts from its padding id
    }
    if settings.model_type.startswith("qwen"):
        text |= {"num_key_value_heads": settings.key_value_heads or settings.heads, "attention_dropout": attention}
    else:
        text |= {"hidden_dropout_prob": settings.dropout, "attention_probs_dropout_prob": attention}
    torch.manual_seed(_SEED)
    config = CTRSinkConfig(
        text_config=text,
        feedback="groups",
        sink_bias_layers=None if arm.bias else [],
        sink_bias_dropout=settings.dropout,
    )
    return CTRSinkForCTR(config).to(settings.device)


def _batches(settings: Settings, lengths: np.ndarray, longest: bool = False) -> list[np.ndarray]:
    """Batches of an epoch as the trainer makes them, spread evenly over their lengths; or the longest one."""
    import numpy as np

    from lmctr.training.sampler import GlobalBatchSampler

    sampler = GlobalBatchSampler(len(lengths), settings.batch_size, lengths=lengths, group_batches=_GROUP, seed=_SEED)
    full = [batch for batch in sampler.global_batches(0) if len(batch) == settings.batch_size]
    if len(full) < settings.batches:
        raise ValueError(
            f"--batches {settings.batches}: the data has {len(full)} batches of {settings.batch_size}; ask for fewer"
        )
    full = [batch[np.argsort(lengths[batch], kind="stable")] for batch in full]  # so that micro-batches are alike, too
    full.sort(key=lambda batch: lengths[batch].mean())
    if longest:
        return full[-1:]
    places = (np.arange(settings.batches) + 0.5) / settings.batches * len(full)
    return [full[int(place)] for place in places]


def _shuffled(batches: list[np.ndarray]) -> list[np.ndarray]:
    """The same samples in random batches."""
    import numpy as np

    together = np.random.default_rng(_SEED).permutation(np.concatenate(batches))
    return np.array_split(together, len(batches))


def _padding(settings: Settings, lengths: np.ndarray) -> dict[str, float]:
    """Shares of padding among the positions of an epoch."""
    from lmctr.training.sampler import GlobalBatchSampler

    def share(strategy: str) -> float:
        sampler = GlobalBatchSampler(
            len(lengths), settings.batch_size, lengths=lengths, group_batches=_GROUP, strategy=strategy, seed=_SEED
        )
        positions = sum(int(lengths[batch].max()) * len(batch) for batch in sampler.global_batches(0))
        return 1.0 - float(lengths.sum()) / positions

    return {
        "batches of like length": share("group_by_length"),
        "random batches, padded to their longest": share("random"),
        "padded to the longest allowed": 1.0 - float(lengths.mean()) / settings.max_length,
        "tokens_per_sample": float(lengths.mean()),
    }


def peak_memory(settings: Settings, name: str) -> dict[str, int]:
    """Peak bytes of this process (on a GPU: of the device) after a step of an arm on the longest batch, and before it."""
    import torch

    view, events = _data(settings)
    rows = _batches(settings, view.lengths(events), longest=True)
    training = _Training(settings, ARMS[name], view, events, rows)
    before = _peak_bytes(settings.device)
    if settings.device.startswith("cuda"):
        torch.cuda.reset_peak_memory_stats(settings.device)
    training.measure(1)
    return {"before": before, "peak": _peak_bytes(settings.device)}


def _peak_bytes(device: str) -> int:
    if device.startswith("cuda"):
        import torch

        return int(torch.cuda.max_memory_allocated(device))
    status = Path(
        "/proc/self/status"
    )  # on Linux; getrusage would begin with the peak of the process that started this one
    if status.is_file():
        return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status.read_text())[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak if sys.platform == "darwin" else peak * 1024)


def _memory_of(settings: Settings, name: str) -> dict[str, int]:
    words = [sys.executable, "-m", "lmctr", "benchmark", "train", "--memory-of", name]
    for key, value in asdict(settings).items():
        if value is True:
            words.append(f"--{key}")
        elif value not in (None, False):
            words += [f"--{key.replace('_', '-')}", str(value)]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    if process.returncode != 0:
        raise ValueError(
            f"the process that measures the memory of {name!r} failed ({process.returncode}): {process.stderr[-500:]}"
        )
    return json.loads(process.stdout.splitlines()[-1])


def _is_reported_shape(settings: Settings) -> bool:
    default = Settings()
    same = ("model_type", "hidden_size", "layers", "num_behaviors", "max_length", "batch_size", "device", "dtype")
    return all(getattr(settings, name) == getattr(default, name) for name in same)


def as_markdown(result: Mapping[str, Any]) -> str:
    """The results as text with tables."""
    machine_, settings, padding = result["machine"], result["settings"], result["padding"]
    device = machine_.get("gpu") or f"{machine_['cores']} cores, {machine_['threads']} threads"
    lines = [
        "## Training CTR-Sink",
        "",
        f"{settings['model_type']}, {settings['layers']} layers of width {settings['hidden_size']}, {settings['parameters']:,} "
        f"parameters, two lists of {settings['num_behaviors']} behaviours, {padding['tokens_per_sample']:.0f} tokens per sample on "
        f"average, batch {settings['batch_size']} in parts of {settings['micro_batch_size']}, {settings['dtype']}, dropout {settings['dropout']}"
        f"{', torch.compile' if settings['compile'] else ''}; {settings['samples']} samples of {settings['data']} per measurement, "
        f"median of {settings['repeats']} taken in turn.",
        f"{device}, {machine_['platform']}, torch {machine_['torch']}, transformers {machine_['transformers']}.",
        "",
        "| samples/s | attention dropout | forward | forward + backward | whole step | tokens/s | step against padded |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    for name, arm in ARMS.items():
        one = result["arms"][name]
        rates = " | ".join(f"{one[phase]['median']:.2f}" for phase in ("forward", "forward_backward", "step"))
        dropout = settings["dropout"] if arm.attention_dropout else 0
        lines.append(
            f"| {arm.text} | {dropout} | {rates} | {one['tokens_per_second']:,.0f} | {result['speedup'][name]:.2f}x |"
        )
    lines.append("")
    for which, costs in result["bias_costs"].items():
        lines.append(
            f"The sink bias adds {costs['forward']:.1%} to the forward pass and {costs['forward_backward']:.1%} to forward + "
            f"backward{which}."
        )
    like, random, longest = list(padding.values())[:3]
    lines.append(
        f"Padding: {like:.1%} of positions in batches of like length, {random:.1%} in random ones, {longest:.1%} at {settings['max_length']}."
    )
    for name, one in result.get("memory", {}).items():
        lines.append(
            f"Peak memory, {name}: {one['peak'] / 1e9:.2f} GB ({one['before'] / 1e9:.2f} GB before the step)."
        )
    for name in ARMS:
        if "share_of_peak" in result["arms"][name]:
            lines.append(f"Share of the device's peak, {name}: {result['arms'][name]['share_of_peak']:.1%}.")
    if result["reported"]:
        low, high = result["reported"]["samples_per_second"]
        lines.append(
            f"Reported of the authors' research code on two cores, not measured here: {low}-{high} samples/s, "
            f"{result['reported']['memory_gb']} GB."
        )
    return "\n".join(lines)
