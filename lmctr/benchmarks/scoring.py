"""`lmctr benchmark scoring`: one user's candidates row by row, in batches of rows, and with the history encoded once."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch

from lmctr.benchmarks.harness import (
    Ways,
    in_turn,
    keeping,
    machine_text,
    rates,
    reports,
    results,
    say,
    speedups,
    table,
)
from lmctr.benchmarks.inputs import SEED, behaviors, catalogue_tokenizer, prompt_of, random_model, read_log
from lmctr.benchmarks.options import ScoringBenchmark
from lmctr.data.logs.log import InteractionLog
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.serving import UserState, score, scorer_for
from lmctr.serving.precision import in_precision
from lmctr.utils.ragged import blocks

_TOLERANCE = 1e-4
_DIFFERENT = 5e-2  # in lower precision
ARMS = {
    "row by row": "a forward pass per candidate",
    "batched": "rows of all candidates in batches",
    "shared": "lmctr.serving.score of the history: encoded once, candidates packed behind it",
    "kept": "lmctr.serving.score of a kept user state: only the candidates",
    "extended": "a new behaviour, then the candidates, with a kept user state",
    "float32": "kept (shared, where nothing can be kept) in float32",
}


def benchmark_scoring(options: ScoringBenchmark) -> dict[str, Any]:
    """Measure the arms of [`ARMS`] that the model has.

    Returns:
        `machine`, `settings`, `tokens`: of the row of the first candidate; `reason`: why the history is shared, or why not;
        `arms`: per arm `candidates_per_second` (`median`, `all`), `speedup` over row by row (the median of the repeats'
        ratios) and `positions` that the language model computes for the request, padding included; `largest_difference` of a logit from row by row; `spread`: standard deviation of
        the candidates' logits, to judge that by.

    Raises:
        ValueError: a log without a long enough history, logits that differ from row by row by more than 1e-4 (float32).
    """
    options = options.sized()
    full, processor, history, candidates, time = _request(options)
    model = in_precision(copy.deepcopy(full), options.dtype)
    scorer = scorer_for(model, processor)

    def rows(size: int, chosen: list[dict[str, str]] = candidates) -> torch.Tensor:
        parts = []
        with torch.inference_mode():
            for some in (chosen[part] for part in blocks(len(chosen), size)):
                batch = processor(histories=[history] * len(some), targets=some, times=[time] * len(some))
                parts.append(model(**batch.to(options.device)).logits.float().cpu())
        return torch.cat(parts)

    def extended() -> torch.Tensor:
        state = shorter.pop()
        state.extend(history[-1:])
        return score(model, processor, state, candidates, time)

    makers = {
        "row by row": lambda: rows(1),
        "batched": lambda: rows(options.batch_size),
        "shared": lambda: score(model, processor, history, candidates, time),
    }
    if scorer.encoded_class is not None:
        state = UserState(model, processor, history)
        shorter = [UserState(model, processor, history[:-1]) for _ in range(options.repeats)]
        makers |= {"kept": lambda: score(model, processor, state, candidates, time), "extended": extended}
    if options.dtype != "float32":
        asked = history if scorer.encoded_class is None else UserState(full, processor, history)
        makers["float32"] = lambda: score(full, processor, asked, candidates, time)
    for warm_up in (candidates[:1], candidates[:2]):
        score(model, processor, history, warm_up, time)
        rows(2, warm_up)
    say("warmed up")
    ways, found = keeping(makers)
    ways, positions = counting(ways, [one.model.language_model for one in (model, full)])
    seconds = in_turn(ways, options.repeats, device=options.device, about="")
    difference = max(float((values - found["row by row"]).abs().max()) for values in found.values())
    if difference > (_TOLERANCE if options.dtype == "float32" else _DIFFERENT):
        raise ValueError(f"the logits differ by {difference:.2g} from those of row by row; please report this")
    row = processor(histories=[history], targets=candidates[:1], times=[time])
    speedup = speedups(seconds, "row by row")
    return {
        **results(options, options.device, parameters=full.num_parameters()),
        "tokens": int(row["attention_mask"].sum()),
        "reason": scorer.reason,
        "arms": {
            name: {
                "candidates_per_second": rates(len(candidates), values),
                "speedup": speedup[name],
                "positions": positions[name],
            }
            for name, values in seconds.items()
        },
        "largest_difference": difference,
        "spread": float(found["row by row"].std()) if len(candidates) > 1 else 0.0,
    }


def counting(ways: Ways, language_models: Iterable[torch.nn.Module]) -> tuple[Ways, dict[str, int]]:
    """The ways, and a dictionary where each leaves how many positions (B x N) its last call had the language models compute."""
    seen: list[int] = []
    for one in language_models:
        one.register_forward_pre_hook(
            lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"].shape[:2].numel()), with_kwargs=True
        )
    positions: dict[str, int] = {}

    def counted(name: str) -> Callable[[], None]:
        def run() -> None:
            seen.clear()
            ways[name]()
            positions[name] = sum(seen)

        return run

    return {name: counted(name) for name in ways}, positions


def _request(
    options: ScoringBenchmark,
) -> tuple[CTRSinkForCTR, CTRSinkProcessor, list[dict[str, Any]], list[dict[str, str]], int]:
    """A model with random weights, its processor, and a user's history, candidates and time from the data."""
    log = read_log(
        options, num_users=20, num_items=max(500, options.candidates), events_per_user=2 * options.num_behaviors
    )
    prompt = prompt_of(log)
    texts = Prompt.load(prompt).item_texts(log.catalogue)
    processor = CTRSinkProcessor(
        catalogue_tokenizer(log, "bpe" if options.model_type.startswith("qwen") else "wordpiece"),
        prompt=prompt,
        feedback=options.feedback,
        sink_signal=options.sink_signal,
        num_behaviors=options.num_behaviors,
    )
    history, time = _history(log, texts, options.num_behaviors)
    chosen = np.random.default_rng(SEED).permutation(log.num_items)[: options.candidates]
    if len(chosen) < options.candidates:
        raise ValueError(f"--candidates {options.candidates}: the catalogue has {log.num_items} items")
    candidates = [{"text": texts[item]} for item in chosen]
    longest = max(
        processor(histories=[history], targets=[candidate], times=[time])["input_ids"].shape[1]
        for candidate in candidates
    )
    spread = {"initializer_range": options.hidden_size**-0.5}  # so that the candidates' logits differ
    kept = {"sink_signal": processor.sink_signal, "encoder_prefix": options.encoder_prefix}
    model = random_model(options, processor, longest, spread, **kept)
    return model.eval(), processor, history, candidates, time


def _history(log: InteractionLog, texts: list[str], length: int) -> tuple[list[dict[str, Any]], int]:
    """The history of the first sample that has `length` behaviours before it, and its time."""
    events = log.sample_events()
    start, end = log.history_bounds(events)
    long = end - start >= length
    if not long.any():
        raise ValueError(f"no sample of {log.info.name} has {length} behaviours before it; lower --num-behaviors")
    place = int(long.argmax())
    return behaviors(log, texts, int(end[place]) - length, int(end[place])), int(log.time[events[place]])


def as_markdown(result: Mapping[str, Any]) -> str:
    settings = result["settings"]
    rows = [one | {"name": name, "says": ARMS[name]} for name, one in result["arms"].items()]
    form = "{name}: {says} | {candidates_per_second[median]:,.1f} | {speedup:.1f}x | {positions:,}"
    return f"""## Scoring one user's candidates

{settings["model_type"]}, {settings["layers"]} layers of width {settings["hidden_size"]}, {settings["parameters"]:,} parameters, \
{settings["dtype"]}; {settings["num_behaviors"]} behaviours, {settings["candidates"]} candidates, {result["tokens"]} tokens in a row; \
sink signal {settings["sink_signal"]}; median of {settings["repeats"]} taken in turn.
{machine_text(result)}

{table("way | candidates/s | against row by row | positions", form, rows)}

Sharing: {result["reason"]}.
Largest difference of a logit: {result["largest_difference"]:.1e}; their standard deviation: {result["spread"]:.1e}."""


run = reports(benchmark_scoring, as_markdown)
