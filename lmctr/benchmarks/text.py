"""`lmctr benchmark text`: how fast batches are made from cached token ids, next to tokenising the texts."""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lmctr.benchmarks.tools import check_counts, check_output, machine, write_result

if TYPE_CHECKING:
    import numpy as np

    from lmctr.data.batches.text import TextView
    from lmctr.data.logs.log import InteractionLog

METHODS = {
    "whole": "tokenise each sample's whole text",
    "pieces": "tokenise each sample's pieces",
    "cached": "assemble from cached token ids",
}
_SEED = 0
_VOCAB_SIZE = 8000  # of the WordPiece tokenizer made from the catalogue


def add_parser(actions: argparse._SubParsersAction) -> None:
    """Adds `benchmark text`."""
    text = actions.add_parser(
        "text",
        help="batches from cached token ids against tokenising the texts",
        description=(
            "Build the same batches in three ways, in turn, several times: a batched tokenizer call on each sample's whole "
            "text (strings are made beforehand, nothing is padded), the processor on raw texts (piece by piece, each different "
            "text of a batch once), and assembly from cached token ids to padded tensors. Prints medians and ratios."
        ),
        allow_abbrev=False,
    )
    text.add_argument("--data", default="synthetic", help="data set: a name, a prepared folder or a schema .yaml file")
    text.add_argument("--path", help="folder (or zip) with the raw files")
    text.add_argument(
        "--tokenizer", help="tokenizer: name, folder or package:NAME; default: WordPiece of the catalogue"
    )
    text.add_argument("--prompt", default="movielens/en", help="prompt (default: movielens/en)")
    text.add_argument("--feedback", default="none", help="how feedback is given: none, inline, groups (default: none)")
    text.add_argument("--num-behaviors", type=int, nargs="+", default=[30, 50], metavar="K", help="default: 30 50")
    text.add_argument("--max-length", type=int, help="most tokens of a sample (default: no limit)")
    text.add_argument("--samples", type=int, default=1024, help="samples, drawn at random (default: 1024)")
    text.add_argument("--batch-size", type=int, default=64, help="default: 64")
    text.add_argument("--repeats", type=int, default=7, help="measurements of each way, taken in turn (default: 7)")
    text.add_argument("--output", help="write the results to this .json or .md file")


def run(args: argparse.Namespace) -> int:
    """Runs `benchmark text`."""
    check_counts(args, ("samples", "batch_size", "repeats"))
    for k in args.num_behaviors:
        if k < 1:
            raise ValueError(f"--num-behaviors must be at least 1, got {k}")
    check_output(args.output)

    from lmctr.data.registry import load_log

    options = {} if args.path is None else {"path": args.path}
    result = benchmark_text(
        load_log(args.data, **options),
        tokenizer=args.tokenizer,
        prompt=args.prompt,
        feedback=args.feedback,
        num_behaviors=args.num_behaviors,
        max_length=args.max_length,
        num_samples=args.samples,
        batch_size=args.batch_size,
        repeats=args.repeats,
        say=lambda line: print(line, file=sys.stderr),
    )
    result["command"] = getattr(args, "command", None)
    table = as_markdown(result)
    print(table)
    write_result(args.output, result, table)
    return 0


def benchmark_text(
    log: InteractionLog,
    *,
    tokenizer: str | None = None,
    prompt: str = "movielens/en",
    feedback: str = "none",
    num_behaviors: Sequence[int] = (30, 50),
    max_length: int | None = None,
    num_samples: int = 1024,
    batch_size: int = 64,
    repeats: int = 7,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure the three ways of making text batches.

    Args:
        log: the data. tokenizer: name, folder or `package:NAME`; None trains WordPiece on the catalogue.
        prompt, feedback, max_length: as for `CTRSinkProcessor`. num_behaviors: behaviours per sample, each a measurement.
        num_samples: samples, drawn with a fixed seed. batch_size: rows. repeats: measurements of each way, taken in turn.
        say: prints progress.

    Returns:
        `data`, `machine`, `settings`, and `measurements`: per K the samples per second of each way (`median`, `all`), `ratio`
        of cached over the others, mean token counts, padding shares, seconds to prepare the view and samples per second of
        `lengths`.

    Raises:
        ValueError: a log without samples; a result of the cached way that differs from the raw texts' (never expected).
    """
    import numpy as np

    events = log.sample_events()
    if not len(events):
        raise ValueError("the log has no sample: no event has a label")
    events = np.random.default_rng(_SEED).permutation(events)[:num_samples]
    backend = _tokenizer(log, tokenizer, prompt)
    measurements = []
    for k in num_behaviors:
        say(f"K = {k}: {len(events)} samples, {repeats} repeats of {len(METHODS)} ways")
        measurements.append(
            _measure(log, backend, prompt, feedback, k, max_length, events, batch_size=batch_size, repeats=repeats)
        )
    return {
        "data": {"name": log.info.name, "users": log.num_users, "items": log.num_items, "events": log.num_events},
        "machine": machine(),
        "settings": {
            "tokenizer": tokenizer or f"WordPiece of the catalogue, {len(backend)} entries",
            "prompt": prompt,
            "feedback": feedback,
            "samples": len(events),
            "batch_size": batch_size,
            "max_length": max_length,
            "repeats": repeats,
        },
        "measurements": measurements,
    }


def _measure(
    log: InteractionLog,
    backend: Any,
    prompt: str,
    feedback: str,
    num_behaviors: int,
    max_length: int | None,
    events: np.ndarray,
    *,
    batch_size: int,
    repeats: int,
) -> dict[str, Any]:
    import numpy as np
    from tqdm.auto import tqdm

    from lmctr.data.batches.text import TextView
    from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

    limit = 10**9 if max_length is None else max_length
    processor = CTRSinkProcessor(
        backend, prompt=prompt, feedback=feedback, num_behaviors=num_behaviors, max_length=limit
    )
    began = time.perf_counter()
    view = TextView(log, processor)
    prepare = time.perf_counter() - began
    began = time.perf_counter()
    lengths = view.lengths(events)
    lengths_rate = len(events) / (time.perf_counter() - began)

    batches = [slice(first, first + batch_size) for first in range(0, len(events), batch_size)]
    rows = _raw_rows(log, processor, events, num_behaviors)
    texts = [_whole_text(processor, *row) for row in zip(*rows)]
    options = {"truncation": True, "max_length": max_length} if max_length is not None else {}

    def raw(part: slice) -> Any:
        return processor(*(column[part] for column in rows))

    ways: dict[str, Callable[[slice], Any]] = {
        "whole": lambda part: processor.tokenizer(texts[part], verbose=False, **options),
        "pieces": raw,
        "cached": lambda part: view.batch(events[part]),
    }
    cached, wanted = view.batch(events[batches[0]]), raw(batches[0])
    if any(not np.array_equal(cached[key].numpy(), wanted[key].numpy()) for key in wanted):
        raise ValueError("the cached batch differs from the one made from raw texts; please report this")
    whole_lengths = [len(ids) for part in batches for ids in ways["whole"](part)["input_ids"]]

    rates: dict[str, list[float]] = {name: [] for name in ways}
    with tqdm(total=repeats * len(ways), desc=f"K = {num_behaviors}", leave=False, file=sys.stderr) as bar:
        for _ in range(repeats):
            for name, way in ways.items():
                began = time.perf_counter()
                for part in batches:
                    way(part)
                rates[name].append(len(events) / (time.perf_counter() - began))
                bar.update()
    medians = {name: statistics.median(values) for name, values in rates.items()}
    return {
        "num_behaviors": num_behaviors,
        "samples_per_second": {name: {"median": medians[name], "all": rates[name]} for name in rates},
        "ratio": {name: medians["cached"] / medians[name] for name in ("whole", "pieces")},
        "tokens_per_sample": {"cached": float(lengths.mean()), "whole": float(np.mean(whole_lengths))},
        "padding_share": {
            "sorted by length": padding_share(np.sort(lengths), batch_size),
            "as drawn": padding_share(lengths, batch_size),
        },
        "prepare_seconds": prepare,
        "lengths_samples_per_second": lengths_rate,
        "view_bytes": _view_bytes(view),
    }


def padding_share(lengths: np.ndarray, batch_size: int) -> float:
    """Share of padding among all positions when rows of these lengths are batched in this order."""
    positions = sum(
        int(lengths[first : first + batch_size].max()) * len(lengths[first : first + batch_size])
        for first in range(0, len(lengths), batch_size)
    )
    return 1.0 - float(lengths.sum()) / positions


def as_markdown(result: dict[str, Any]) -> str:
    """The results as text with a table."""
    data, machine, settings = result["data"], result["machine"], result["settings"]
    lines = [
        f"## Text batches: {data['name']}",
        "",
        f"{data['events']:,} events of {data['users']:,} users on {data['items']:,} items; {settings['samples']:,} samples in "
        f"batches of {settings['batch_size']}; median of {settings['repeats']} repeats taken in turn.",
        f"Tokenizer: {settings['tokenizer']}. Prompt: {settings['prompt']}, feedback {settings['feedback']}.",
        f"{machine['cores']} cores, {machine['platform']}, Python {machine['python']}, tokenizers {machine['tokenizers']}, "
        f"transformers {machine['transformers']}, numpy {machine['numpy']}, torch {machine['torch']}.",
        "",
        "| K | way | samples/s | cached is faster by |",
        "|---:|---|---:|---:|",
    ]
    for one in result["measurements"]:
        for name, description in METHODS.items():
            ratio = f"{one['ratio'][name]:.1f}x" if name in one["ratio"] else ""
            rate = one["samples_per_second"][name]["median"]
            lines.append(f"| {one['num_behaviors']} | {description} | {rate:,.0f} | {ratio} |")
    lines += [
        "",
        "| K | tokens per sample | padding, sorted by length | padding, as drawn | lengths/s | view is made in | view holds |",
        "|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for one in result["measurements"]:
        padding = one["padding_share"]
        lines.append(
            f"| {one['num_behaviors']} | {one['tokens_per_sample']['cached']:.0f} | {padding['sorted by length']:.1%} | "
            f"{padding['as drawn']:.1%} | {one['lengths_samples_per_second']:,.0f} | {one['prepare_seconds']:.2f} s | "
            f"{one['view_bytes'] / 2**20:.1f} MiB |"
        )
    return "\n".join(lines)


def _tokenizer(log: InteractionLog, name: str | None, prompt: str) -> Any:
    from lmctr.models.ctr_sink.prompt import Prompt
    from lmctr.training.tokenizers import resolve_backbone, train_tokenizer

    if name is None:
        texts = Prompt.load(prompt).item_texts(log.catalogue)
        return train_tokenizer(texts, "wordpiece", _VOCAB_SIZE)
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(resolve_backbone(name))
    except (OSError, KeyError) as error:
        raise ValueError(f"--tokenizer: no tokenizer can be loaded from {name!r} ({error})") from error


def _raw_rows(
    log: InteractionLog, processor: Any, events: np.ndarray, num_behaviors: int
) -> tuple[list[list[dict[str, Any]]], list[dict[str, str]], list[int]]:
    """Histories, targets and times as the processor takes them. Of each history only what can be shown: the last K, or the
    last K of each feedback (recency counts from the end, so the rest changes nothing)."""
    import numpy as np

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
        histories.append(
            [
                {"text": texts[log.item[e]], "time": int(log.time[e]), "feedback": int(log.feedback[e])}
                for e in range(first, last)
            ]
        )
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
