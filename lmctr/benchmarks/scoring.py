"""`lmctr benchmark scoring`: one user's candidates row by row, in batches of rows, and with the history encoded once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, in_turn, machine, summary, write_result

if TYPE_CHECKING:
    import torch

    from lmctr.data.logs.log import InteractionLog
    from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
    from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

_SEED = 0
_VOCAB_SIZE = 8000  # of the tokenizer made from the catalogue
_TOLERANCE = 1e-4
_DIFFERENT = 5e-2  # in half precision
ARMS = {
    "row by row": "a forward pass per candidate",
    "batched": "rows of all candidates in batches",
    "shared": "lmctr.serving.score of the history: encoded once, candidates packed behind it",
    "kept": "lmctr.serving.score of a kept user state: only the candidates",
    "extended": "a new behaviour, then the candidates, with a kept user state",
}


@dataclass(frozen=True)
class Settings:
    """What is measured. `dtype`: of the weights."""

    data: str = "synthetic"
    path: str | None = None
    model_type: str = "qwen2"
    hidden_size: int = 256
    layers: int = 4
    heads: int = 4
    key_value_heads: int = 2
    intermediate_size: int = 768
    num_behaviors: int = 50
    candidates: int = 100
    batch_size: int = 32
    sink_signal: str = "feedback"
    feedback: str = "inline"
    device: str = "cpu"
    dtype: str = "float32"


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `benchmark scoring`."""
    parser = actions.add_parser(
        "scoring",
        help="scoring one user's candidates row by row, batched, and with the history encoded once",
        description=(
            "Score the same candidates of one user in several ways, in turn, from texts to logits: row by row, in batches of "
            "rows, by lmctr.serving.score, and with a kept user state. The logits are compared. Prints medians of candidates per "
            "second and ratios to row by row. Models that share nothing among candidates (encoders) have no kept states."
        ),
        allow_abbrev=False,
    )
    default = Settings()
    parser.add_argument(
        "--data", default="synthetic", help="data set: a name or a prepared folder (default: synthetic)"
    )
    parser.add_argument("--path", help="folder (or zip) with the raw files")
    parser.add_argument(
        "--model-type", default=default.model_type, help="qwen2, qwen3, bert or roberta (default: qwen2)"
    )
    for name, text in (
        ("hidden_size", "width"),
        ("layers", "layers"),
        ("heads", "attention heads"),
        ("key_value_heads", "key and value heads of Qwen"),
        ("intermediate_size", "width of the feed-forward layers"),
        ("num_behaviors", "behaviours of the history, K"),
        ("candidates", "candidates of the request"),
        ("batch_size", "rows of a batch, where rows are batched"),
    ):
        value = getattr(default, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=value, help=f"{text} (default: {value})")
    parser.add_argument("--sink-signal", default=default.sink_signal, help="sink signal (default: feedback)")
    parser.add_argument("--feedback", default=default.feedback, help="how feedback is given (default: inline)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"], help="default: float32")
    parser.add_argument("--repeats", type=int, default=3, help="measurements of each way, taken in turn (default: 3)")
    parser.add_argument("--quick", action="store_true", help="a tiny model and one repeat, to see that it runs")
    parser.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Runs `benchmark scoring`."""
    settings = Settings(**{name: getattr(args, name) for name in asdict(Settings())})
    check_counts(
        settings,
        (
            "hidden_size",
            "layers",
            "heads",
            "key_value_heads",
            "intermediate_size",
            "num_behaviors",
            "candidates",
            "batch_size",
        ),
    )
    check_counts(args, ("repeats",))
    check_output(args.output)
    repeats = args.repeats
    if args.quick:
        small = {"hidden_size": 32, "layers": 2, "heads": 2, "key_value_heads": 1, "intermediate_size": 64}
        settings, repeats = replace(settings, **small, num_behaviors=6, candidates=5, batch_size=2), 1
    result = benchmark_scoring(settings, repeats=repeats, say=lambda line: print(line, file=sys.stderr))
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output, result, table)
    return 0


def benchmark_scoring(
    settings: Settings, *, repeats: int = 3, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """Measure the arms of [`ARMS`] that the model has.

    Returns:
        `machine`, `settings`, `tokens`: of the row of the first candidate; `reason`: why the history is shared, or why not;
        `arms`: per arm `candidates_per_second` (`median`, `all`) and `speedup` over row by row (the median of the repeats'
        ratios); `largest_difference` of a logit from row by row; `spread`: standard deviation of
        the candidates' logits, to judge that by.

    Raises:
        ValueError: a log without a long enough history, logits that differ from row by row by more than 1e-4 (float32).
    """
    import torch

    from lmctr.serving import UserState, score, scorer_for

    model, processor, history, candidates, time = _request(settings)
    scorer = scorer_for(model, processor)

    def rows(size: int) -> torch.Tensor:
        parts = []
        with torch.inference_mode():
            for begin in range(0, len(candidates), size):
                some = candidates[begin : begin + size]
                batch = processor(histories=[history] * len(some), targets=some, times=[time] * len(some))
                parts.append(model(**batch.to(settings.device)).logits.float().cpu())
        return torch.cat(parts)

    def extended() -> torch.Tensor:
        state = shorter.pop()
        state.extend(history[-1:])
        return score(model, processor, state, candidates, time)

    found: dict[str, torch.Tensor] = {}

    def keep(name: str, way: Callable[[], torch.Tensor]) -> Callable[[], None]:
        def run_it() -> None:
            found[name] = way()

        return run_it

    ways = {
        "row by row": keep("row by row", lambda: rows(1)),
        "batched": keep("batched", lambda: rows(settings.batch_size)),
        "shared": keep("shared", lambda: score(model, processor, history, candidates, time)),
    }
    shorter: list[UserState] = []
    if scorer.encoded_class is not None:
        state = UserState(model, processor, history)
        shorter += [UserState(model, processor, history[:-1]) for _ in range(repeats)]
        ways["kept"] = keep("kept", lambda: score(model, processor, state, candidates, time))
        ways["extended"] = keep("extended", extended)
    for warm_up in (candidates[:1], candidates[:2]):
        score(model, processor, history, warm_up, time)
        batch = processor(histories=[history] * len(warm_up), targets=warm_up, times=[time] * len(warm_up))
        model(**batch.to(settings.device))
    say("warmed up")
    seconds = in_turn(ways, repeats, device=settings.device, say=say)
    difference = max(float((values - found["row by row"]).abs().max()) for values in found.values())
    if difference > (_TOLERANCE if settings.dtype == "float32" else _DIFFERENT):
        raise ValueError(f"the logits differ by {difference:.2g} from those of row by row; please report this")
    row = processor(histories=[history], targets=candidates[:1], times=[time])
    return {
        "machine": machine(settings.device),
        "settings": asdict(settings) | {"repeats": repeats, "parameters": sum(p.numel() for p in model.parameters())},
        "tokens": int(row["attention_mask"].sum()),
        "reason": scorer.reason,
        "arms": {
            name: {
                "candidates_per_second": summary([len(candidates) / value for value in values]),
                "speedup": summary([slow / own for slow, own in zip(seconds["row by row"], values)])["median"],
            }
            for name, values in seconds.items()
        },
        "largest_difference": difference,
        "spread": float(found["row by row"].std()) if len(candidates) > 1 else 0.0,
    }


def _request(
    settings: Settings,
) -> tuple[CTRSinkForCTR, CTRSinkProcessor, list[dict[str, Any]], list[dict[str, str]], int]:
    """A model with random weights, its processor, and a user's history, candidates and time from the data."""
    import numpy as np
    import torch

    from lmctr.data.registry import load_log
    from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
    from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
    from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
    from lmctr.models.ctr_sink.prompt import Prompt
    from lmctr.training.tokenizers import train_tokenizer

    options: dict[str, Any] = {} if settings.path is None else {"path": settings.path}
    if settings.data == "synthetic":
        options |= {
            "num_users": 20,
            "num_items": max(500, settings.candidates),
            "events_per_user": 2 * settings.num_behaviors,
        }
    log = load_log(settings.data, **options)
    decoder = settings.model_type.startswith("qwen")
    texts = Prompt.load("movielens/en").item_texts(log.catalogue)
    processor = CTRSinkProcessor(
        train_tokenizer(texts, "bpe" if decoder else "wordpiece", _VOCAB_SIZE),
        prompt="movielens/en",
        feedback=settings.feedback,
        sink_signal=settings.sink_signal,
        num_behaviors=settings.num_behaviors,
    )
    history, time = _history(log, texts, settings.num_behaviors)
    chosen = np.random.default_rng(_SEED).permutation(log.num_items)[: settings.candidates]
    if len(chosen) < settings.candidates:
        raise ValueError(f"--candidates {settings.candidates}: the catalogue has {log.num_items} items")
    candidates = [{"text": texts[item]} for item in chosen]
    longest = max(
        processor(histories=[history], targets=[candidate], times=[time])["input_ids"].shape[1]
        for candidate in candidates
    )
    text = {
        "model_type": settings.model_type,
        "vocab_size": len(processor.tokenizer),
        "hidden_size": settings.hidden_size,
        "num_hidden_layers": settings.layers,
        "num_attention_heads": settings.heads,
        "intermediate_size": settings.intermediate_size,
        "max_position_embeddings": longest + 8,  # RoBERTa counts from its padding id
        "initializer_range": settings.hidden_size**-0.5,  # so that the candidates' logits differ
    }
    if decoder:
        text["num_key_value_heads"] = settings.key_value_heads
    torch.manual_seed(_SEED)
    config = CTRSinkConfig(text_config=text, feedback=processor.feedback, sink_signal=processor.sink_signal)
    model = CTRSinkForCTR(config).to(settings.device, getattr(torch, settings.dtype)).eval()
    return model, processor, history, candidates, time


def _history(log: InteractionLog, texts: list[str], length: int) -> tuple[list[dict[str, Any]], int]:
    """The history of the first sample that has `length` behaviours before it, and its time."""
    events = log.sample_events()
    start, end = log.history_bounds(events)
    long = end - start >= length
    if not long.any():
        raise ValueError(f"no sample of {log.info.name} has {length} behaviours before it; lower --num-behaviors")
    place = int(long.argmax())
    own = range(int(end[place]) - length, int(end[place]))
    history = [
        {
            "text": texts[log.item[event]],
            "time": int(log.time[event]),
            **({} if log.feedback is None else {"feedback": int(log.feedback[event])}),
        }
        for event in own
    ]
    return history, int(log.time[events[place]])


def as_markdown(result: Mapping[str, Any]) -> str:
    """The results as text with a table."""
    machine_, settings = result["machine"], result["settings"]
    device = machine_.get("gpu") or f"{machine_['cores']} cores, {machine_['threads']} threads"
    lines = [
        "## Scoring one user's candidates",
        "",
        f"{settings['model_type']}, {settings['layers']} layers of width {settings['hidden_size']}, {settings['parameters']:,} "
        f"parameters, {settings['dtype']}; {settings['num_behaviors']} behaviours, {settings['candidates']} candidates, "
        f"{result['tokens']} tokens in a row; sink signal {settings['sink_signal']}; median of {settings['repeats']} taken in turn.",
        f"{device}, {machine_['platform']}, torch {machine_['torch']}, transformers {machine_['transformers']}.",
        "",
        "| way | candidates/s | against row by row |",
        "|---|---:|---:|",
    ]
    for name, one in result["arms"].items():
        rate = one["candidates_per_second"]["median"]
        lines.append(f"| {name}: {ARMS[name]} | {rate:,.1f} | {one['speedup']:.1f}x |")
    lines += [
        "",
        f"Sharing: {result['reason']}.",
        f"Largest difference of a logit: {result['largest_difference']:.1e}; their standard deviation: {result['spread']:.1e}.",
    ]
    return "\n".join(lines)
