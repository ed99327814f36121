"""`lmctr benchmark text`: how fast batches are made from cached token ids, next to tokenising the texts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from lmctr.benchmarks.harness import in_turn, machine_text, now, rates, reports, results, say, speedups, table
from lmctr.benchmarks.inputs import behaviors, catalogue_tokenizer, prompt_of, read_log, shuffled_samples
from lmctr.benchmarks.options import TextBenchmark
from lmctr.data.batches.text import TextView
from lmctr.data.logs.log import InteractionLog
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.training.tokenizers import resolve_backbone
from lmctr.utils.ragged import blocks

METHODS = {
    "whole": "tokenise each sample's whole text",
    "pieces": "tokenise each sample's pieces",
    "cached": "assemble from cached token ids",
}


def benchmark_text(options: TextBenchmark, log: InteractionLog | None = None) -> dict[str, Any]:
    """Measure the three ways of making text batches.

    Args:
        options: what is measured. log: the data, where they are loaded already.

    Returns:
        `data`, `machine`, `settings`, and `measurements`: per K the samples per second of each way (`median`, `all`), `ratio`
        of cached over the others, mean token counts, padding shares, seconds to prepare the view and samples per second of
        `lengths`.

    Raises:
        ValueError: a log without samples; a result of the cached way that differs from the raw texts' (never expected).
    """
    log = read_log(options) if log is None else log
    options = replace(options, prompt=options.prompt or prompt_of(log))
    events = shuffled_samples(log)[: options.samples]
    backend = _tokenizer(log, options)
    name = options.tokenizer or f"WordPiece of the catalogue, {len(backend)} entries"
    return {
        "data": {"name": log.info.name, "users": log.num_users, "items": log.num_items, "events": log.num_events},
        **results(options, tokenizer=name, samples=len(events)),
        "measurements": [_measure(log, backend, options, k, events) for k in options.num_behaviors],
    }


def _measure(
    log: InteractionLog, backend: Any, options: TextBenchmark, num_behaviors: int, events: np.ndarray
) -> dict[str, Any]:
    limit = 10**9 if options.max_length is None else options.max_length
    processor = CTRSinkProcessor(
        backend, prompt=options.prompt, feedback=options.feedback, num_behaviors=num_behaviors, max_length=limit
    )
    began = now()
    view = TextView(log, processor)
    prepare = now() - began
    began = now()
    lengths = view.lengths(events)
    lengths_rate = len(events) / (now() - began)

    batches = list(blocks(len(events), options.batch_size))
    rows = _raw_rows(log, processor, events, num_behaviors)
    texts = [_whole_text(processor, *row) for row in zip(*rows)]
    cut = {} if options.max_length is None else {"truncation": True, "max_length": options.max_length}
    makers = {
        "whole": lambda part: processor.tokenizer(texts[part], verbose=False, **cut),
        "pieces": lambda part: processor(*(column[part] for column in rows)),
        "cached": lambda part: view.batch(events[part]),
    }
    cached, wanted = makers["cached"](batches[0]), makers["pieces"](batches[0])
    if any(not np.array_equal(cached[key].numpy(), wanted[key].numpy()) for key in wanted):
        raise ValueError("the cached batch differs from the one made from raw texts; please report this")
    whole_lengths = [len(ids) for part in batches for ids in makers["whole"](part)["input_ids"]]

    def all_batches(make: Any) -> None:
        for part in batches:
            make(part)

    say(f"K = {num_behaviors}: {len(events)} samples, {options.repeats} repeats of {len(makers)} ways")
    ways = {name: partial(all_batches, make) for name, make in makers.items()}
    seconds = in_turn(ways, options.repeats, about=f"K = {num_behaviors}, ")
    against = speedups(seconds, "cached", pairs=False)
    return {
        "num_behaviors": num_behaviors,
        "samples_per_second": {name: rates(len(events), values) for name, values in seconds.items()},
        "ratio": {name: 1 / against[name] for name in ("whole", "pieces")},
        "tokens_per_sample": {"cached": float(lengths.mean()), "whole": float(np.mean(whole_lengths))},
        "padding_share": {
            "sorted by length": padding_share(np.sort(lengths), options.batch_size),
            "as drawn": padding_share(lengths, options.batch_size),
        },
        "prepare_seconds": prepare,
        "lengths_samples_per_second": lengths_rate,
        "view_bytes": _view_bytes(view),
    }


def padding_share(lengths: np.ndarray, batch_size: int) -> float:
    """Share of padding among all positions when rows of these lengths are batched in this order."""
    batches = (lengths[some] for some in blocks(len(lengths), batch_size))
    return 1.0 - float(lengths.sum()) / sum(int(batch.max()) * len(batch) for batch in batches)


def _tokenizer(log: InteractionLog, options: TextBenchmark) -> Any:
    name = options.tokenizer
    if name is None:
        return catalogue_tokenizer(log, prompt=options.prompt)
    try:
        return AutoTokenizer.from_pretrained(resolve_backbone(name))
    except (OSError, KeyError) as error:
        raise ValueError(f"--tokenizer: no tokenizer can be loaded from {name!r} ({error})") from error


def _raw_rows(
    log: InteractionLog, processor: Any, events: np.ndarray, num_behaviors: int
) -> tuple[list[list[dict[str, Any]]], list[dict[str, str]], list[int]]:
    """Histories, targets and times as the processor takes them. Of each history only what can be shown: the last K, or the
    last K of each feedback (recency counts from the end, so the rest changes nothing)."""
    texts = processor.item_texts(log.catalogue)
    start, end = log.history_bounds(events)
    histories = []
    for first, last in zip(start, end):
        if processor.feedback == "groups":
            codes = log.feedback[first:last]
            shown = [np.flatnonzero(codes == code)[-num_behaviors:] for code in range(1, len(log.feedback_names))]
            first += min((int(own[0]) for own in shown if len(own)), default=0)
        else:
            first = max(first, last - num_behaviors)
        histories.append(behaviors(log, texts, first, last))
    targets = [{"text": texts[item]} for item in log.item[events]]
    return histories, targets, [int(value) for value in log.time[events]]


def _whole_text(processor: Any, history: list[dict[str, Any]], target: dict[str, str], when: int) -> str:
    """A sample as one text with the sink token written out: what a pipeline without a cache would tokenise."""
    prompt, sink = processor.prompt, processor.sink_token
    codes = range(1, len(prompt.feedback_names)) if processor.feedback == "groups" else [None]
    words = [prompt.head]
    for code in codes:
        own = [b for b in history if code is None or b["feedback"] == code][-processor.num_behaviors :]
        if code is not None and own:
            words.append(prompt.feedback[code - 1].header)
        for behaviour in own:
            inline = processor.feedback == "inline" and behaviour["feedback"]
            word = prompt.feedback[behaviour["feedback"] - 1].word if inline else ""
            words.append(f"{word}{behaviour['text']}{prompt.separator}{sink} ")
    if not history:
        words.append(prompt.empty_history)
    return "".join(words) + prompt.target.replace("{item}", target["text"])


def _view_bytes(view: TextView) -> int:
    """Bytes that a view holds beside the log's own arrays."""
    arrays = [view.pieces.values, view.pieces.item_start, view.pieces.item_length, view.events.by_code]
    return sum(array.nbytes for array in arrays if array is not None)


def as_markdown(result: dict[str, Any]) -> str:
    data, settings = result["data"], result["settings"]
    rows = [
        {"k": one["num_behaviors"], "says": says, "rate": one["samples_per_second"][name]["median"]}
        | {"ratio": f"{one['ratio'][name]:.1f}x" if name in one["ratio"] else ""}
        for one in result["measurements"]
        for name, says in METHODS.items()
    ]
    speed = table("K | way | samples/s | cached is faster by", "{k} | {says} | {rate:,.0f} | {ratio}", rows, left=(1,))
    sizes = table(
        "K | tokens per sample | padding, sorted by length | padding, as drawn | lengths/s | view is made in | view holds",
        "{num_behaviors} | {tokens_per_sample[cached]:.0f} | {padding_share[sorted by length]:.1%} | {padding_share[as drawn]:.1%} | "
        "{lengths_samples_per_second:,.0f} | {prepare_seconds:.2f} s | {mib:.1f} MiB",
        (one | {"mib": one["view_bytes"] / 2**20} for one in result["measurements"]),
        left=(),
    )
    return f"""## Text batches: {data["name"]}

{data["events"]:,} events of {data["users"]:,} users on {data["items"]:,} items; {settings["samples"]:,} samples in batches of \
{settings["batch_size"]}; median of {settings["repeats"]} repeats taken in turn.
Tokenizer: {settings["tokenizer"]}. Prompt: {settings["prompt"]}, feedback {settings["feedback"]}.
{machine_text(result)}

{speed}

{sizes}"""


run = reports(benchmark_text, as_markdown)
