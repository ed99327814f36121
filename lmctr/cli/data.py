"""`lmctr data prepare` and `lmctr data inspect`: read a data set once, check it, and see what is in it."""

from __future__ import annotations

import argparse
import json
import sys
import textwrap
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from lmctr.data.logs.log import InteractionLog
    from lmctr.data.logs.splits import Splits
    from lmctr.data.logs.validation import LeakageReport

REPORT_FILE = "report.json"
_LENGTH_STEPS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


def add_parser(subparsers: argparse._SubParsersAction) -> None:
    """Adds the verb `data`."""
    parser = subparsers.add_parser(
        "data",
        help="prepare a data set, or inspect one",
        description="Read a data set, check it for leakage, and write or describe it.",
        allow_abbrev=False,
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    prepare = actions.add_parser(
        "prepare",
        help="read raw files once and write a log that loads at once (memory-mapped)",
        description="Read raw files, check them and write a log folder; use the folder as `data.name` of a recipe.",
        allow_abbrev=False,
    )
    inspect = actions.add_parser(
        "inspect",
        help="counts, split dates, label rates, leakage report, history lengths",
        description="Describe a data set: counts, split dates, label rate of each part, leakage report, history lengths.",
        allow_abbrev=False,
    )
    for action in (prepare, inspect):
        action.add_argument(
            "name", help="movielens, synthetic, a schema .yaml file, or a folder of `lmctr data prepare`"
        )
        action.add_argument("--path", help="folder (or zip) with the raw files")
        action.add_argument(
            "--option",
            action="append",
            default=[],
            metavar="KEY=VALUE",
            help="option of the data set, such as last_years=5 (may be repeated)",
        )
        action.add_argument("--split", default="time", help="split rule: time (default) or user")
        action.add_argument(
            "--fractions", type=float, nargs=3, default=(0.8, 0.1, 0.1), metavar=("TRAIN", "VALIDATION", "TEST")
        )
        action.add_argument("--seed", type=int, default=0, help="seed of the split by user")
        action.add_argument(
            "--num-behaviors",
            type=int,
            default=50,
            metavar="K",
            help="behaviours that a model would read (default 50)",
        )
        action.add_argument("--quiet", action="store_true", help="no progress bars")
    prepare.add_argument("--output", required=True, metavar="DIR", help="folder to write the log to")
    prepare.add_argument("--overwrite", action="store_true", help="replace a log that DIR holds already")
    inspect.add_argument(
        "--prompt", help="prompt name or YAML file, such as movielens/en: show samples as a model reads them"
    )
    inspect.add_argument("--tokenizer", help="with --prompt: tokenizer name or folder, for exact token counts")
    inspect.add_argument("--max-length", type=int, help="with --tokenizer: token limit of a sample")
    inspect.add_argument(
        "--feedback", default="inline", choices=("none", "groups", "inline", "sink"), help="with --prompt"
    )
    inspect.add_argument("--samples", type=int, default=2, help="with --prompt: samples to show (default 2)")
    inspect.add_argument("--json", action="store_true", help="print the figures as JSON")


def run(args: argparse.Namespace) -> int:
    """Runs `prepare` or `inspect`."""
    if args.num_behaviors < 1:
        raise ValueError(f"--num-behaviors: got {args.num_behaviors}, accepted: an integer from 1.")
    return _prepare(args) if args.action == "prepare" else _inspect(args)


def _prepare(args: argparse.Namespace) -> int:
    from lmctr.data.logs.log import LOG_FILE

    output = Path(args.output)
    if output.exists() and not output.is_dir():
        raise ValueError(f"--output {output}: a file of this name exists.")
    if output.is_dir() and any(output.iterdir()):
        if not (output / LOG_FILE).is_file():
            raise ValueError(f"--output {output}: the folder is not empty and holds no log; name another one.")
        if not args.overwrite:
            raise ValueError(
                f"--output {output}: the folder holds a log already; name another one, or pass --overwrite."
            )
    with _Steps(("read", "check", "write"), args.quiet) as step:
        step("read")
        log = _load(args)
        step("check")
        figures = describe(log, *_split_and_check(log, args), args.num_behaviors)
        step("write")
        log.save(output)
        report = output / REPORT_FILE
        report.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    print("\n".join(lines_of(figures)))
    size = sum(file.stat().st_size for file in output.iterdir())
    print(f"\nwritten to {output}: {size / 1e6:,.1f} MB, {size / max(log.num_events, 1):.0f} bytes per event")
    return 0


def _inspect(args: argparse.Namespace) -> int:
    with _Steps(("read", "check"), args.quiet) as step:
        step("read")
        log = _load(args)
        step("check")
        splits, report, problem = _split_and_check(log, args)
        figures = describe(log, splits, report, problem, args.num_behaviors)
    shown: list[str] = []
    if args.prompt:
        shown, figures["text"] = _show_prompt(log, splits, args)
    elif args.tokenizer or args.max_length:
        raise ValueError("--tokenizer and --max-length go with --prompt: token counts depend on the prompt.")
    print(json.dumps(figures, indent=2, ensure_ascii=False) if args.json else "\n".join([*lines_of(figures), *shown]))
    return 0


class _Steps:
    """A progress bar over the steps of a command."""

    def __init__(self, names: Sequence[str], quiet: bool) -> None:
        from tqdm.auto import tqdm

        self._bar = tqdm(total=len(names), unit="step", disable=quiet, leave=False, position=0, file=sys.stderr)
        self._started = False

    def __enter__(self) -> _Steps:
        return self

    def __call__(self, name: str) -> None:
        if self._started:
            self._bar.update()
        self._started = True
        self._bar.set_description(name)

    def __exit__(self, *_: object) -> None:
        self._bar.update()
        self._bar.close()


def _load(args: argparse.Namespace) -> InteractionLog:
    import yaml

    from lmctr.data.registry import find

    options: dict[str, Any] = {}
    for text in args.option:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise ValueError(f"--option {text!r}: expected KEY=VALUE, such as last_years=5.")
        try:
            options[key] = yaml.safe_load(value)
        except yaml.YAMLError:
            options[key] = value
    if args.path is not None:
        options["path"] = args.path
    loader = find(args.name, "log")
    if "progress" in loader.options:
        options.setdefault("progress", not args.quiet)
    return loader(**options)


def _split_and_check(log: InteractionLog, args: argparse.Namespace) -> tuple[Splits | None, LeakageReport, str | None]:
    """The splits, or None and the reason why the log cannot be split; the leakage report of what there is."""
    from lmctr.data.logs.splits import RULES, split_log
    from lmctr.data.logs.validation import validate_log

    if args.split not in RULES[:2]:
        raise ValueError(f"--split: got {args.split!r}, accepted: {', '.join(RULES[:2])}.")
    splits, problem = None, None
    if len(log.sample_events()) >= 3 and log.num_events >= 3:
        try:
            splits = split_log(log, args.split, args.fractions, args.seed)
        except ValueError as error:
            if "fractions:" in str(error):
                raise
            problem = str(error)
    else:
        problem = f"{len(log.sample_events())} samples are too few for three parts"
    return splits, validate_log(log, splits), problem


def describe(
    log: InteractionLog, splits: Splits | None, report: LeakageReport, problem: str | None, num_behaviors: int
) -> dict[str, Any]:
    """Figures of a log: counts, parts, history lengths, leakage report.

    Args:
        splits: its parts, or None when it cannot be split, which `problem` explains.
        report: what the validator saw.
        num_behaviors: K; histories longer than K are counted as truncated.
    """
    import dataclasses

    import numpy as np

    samples = log.sample_events()
    parts = splits.items() if splits is not None else []
    return {
        "info": log.info.to_dict(),
        "counts": {
            "users": log.num_users,
            "items": log.num_items,
            "items_with_events": len(np.unique(log.item)),
            "events": log.num_events,
            "samples": len(samples),
            "events_without_label": log.num_events - len(samples),
        },
        "columns": {
            "catalogue": {
                name: str(kind) for name, kind in zip(log.catalogue.column_names, log.catalogue.schema.types)
            },
            "feedback": {
                name: int(count)
                for name, count in zip(
                    log.feedback_names, np.bincount(log.feedback, minlength=len(log.feedback_names))
                )
            },
            "empty_texts": _empty_texts(log),
        },
        "time": {"first": int(log.time.min()), "last": int(log.time.max())},
        "split": {
            "rule": None if splits is None else splits.rule,
            "problem": problem,
            "parts": {name: _part(log, events, num_behaviors) for name, events in parts if len(events)},
        },
        "all_samples": _part(log, samples, num_behaviors),
        "history_lengths": _histogram(log.history_lengths(samples)),
        "leakage": dataclasses.asdict(report),
        "leakage_lines": report.lines(),
    }


def _part(log: InteractionLog, events: np.ndarray, num_behaviors: int) -> dict[str, Any]:
    import numpy as np

    lengths, times = log.history_lengths(events), log.time[events]
    total = int(lengths.sum())
    return {
        "samples": len(events),
        "users": len(np.unique(log.user[events])),
        "label_rate": float(np.mean(log.label[events])),
        "first": int(times.min()),
        "last": int(times.max()),
        "history": {
            "mean": float(lengths.mean()),
            "median": float(np.median(lengths)),
            "p90": float(np.quantile(lengths, 0.9)),
            "max": int(lengths.max()),
            "share_empty": float((lengths == 0).mean()),
            "num_behaviors": num_behaviors,
            "share_truncated": float((lengths > num_behaviors).mean()),
            "share_of_behaviors_cut": float(np.maximum(lengths - num_behaviors, 0).sum() / total) if total else 0.0,
        },
    }


def _empty_texts(log: InteractionLog) -> dict[str, int]:
    """Items whose text column is null or empty."""
    import pyarrow as pa
    import pyarrow.compute as pc

    counts = {}
    for name in log.catalogue.column_names:
        column = log.catalogue[name]
        if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
            counts[name] = pc.sum(pc.equal(pc.fill_null(column, ""), "")).as_py() or 0
    return counts


def _histogram(lengths: np.ndarray) -> list[dict[str, int]]:
    """Counts of samples by history length: 0, 1, 2, 3-5, 6-10, ..."""
    import numpy as np

    edges = [step for step in _LENGTH_STEPS if step < lengths.max()]
    edges.append(int(next((step for step in _LENGTH_STEPS if step >= lengths.max()), lengths.max())))
    which = np.searchsorted(edges, lengths, side="left")
    counts = np.bincount(which, minlength=len(edges))
    starts = [0] + [edge + 1 for edge in edges[:-1]]
    return [{"from": start, "to": end, "samples": int(count)} for start, end, count in zip(starts, edges, counts)]


def lines_of(figures: dict[str, Any]) -> list[str]:
    """The figures as text."""
    info, counts = figures["info"], figures["counts"]
    lines = [f"{info['name']}"]
    for key, label in (("url", "source"), ("licence", "licence"), ("label_rule", "label"), ("notes", "notes")):
        if info[key]:
            lines += textwrap.wrap(info[key], 110, initial_indent=f"  {label:<9}", subsequent_indent=" " * 11)
    if info["best_auc"] is not None:
        lines.append(f"  best reachable AUC: {info['best_auc']:.4f}")
    lines += ["", "counts"]
    lines += [f"  {name.replace('_', ' '):<22}{count:>14,}" for name, count in counts.items()]
    lines.append(f"  {'time':<22}  {_date(figures['time']['first'])} to {_date(figures['time']['last'])} UTC")
    lines.append(
        "  feedback in histories   " + ", ".join(f"{n}: {c:,}" for n, c in figures["columns"]["feedback"].items())
    )
    empty = ", ".join(f"{name}: {count:,}" for name, count in figures["columns"]["empty_texts"].items())
    if empty:
        lines.append(f"  items with empty text   {empty}")
    split = figures["split"]
    parts = split["parts"]
    lines += ["", f"split by {split['rule']}" if split["rule"] else f"no split: {split['problem']}"]
    if parts:
        lines.append(f"  {'part':<11}{'samples':>12}{'users':>10}{'label rate':>12}  {'first':<18}{'last':<16}")
    for name, part in parts.items():
        lines.append(
            f"  {name:<11}{part['samples']:>12,}{part['users']:>10,}{part['label_rate']:>12.4f}  "
            f"{_date(part['first']):<18}{_date(part['last'])}"
        )
    everything = figures["all_samples"]
    lines.append(
        f"  {'all':<11}{everything['samples']:>12,}{everything['users']:>10,}{everything['label_rate']:>12.4f}"
    )
    k = everything["history"]["num_behaviors"]
    lines += ["", "behaviours before a sample"]
    lines.append(
        f"  {'part':<11}{'mean':>9}{'median':>9}{'90 %':>9}{'max':>9}{'empty':>9}{f'longer than {k}':>18}{'behaviours cut':>17}"
    )
    for name, part in (*parts.items(), ("all", everything)):
        history = part["history"]
        lines.append(
            f"  {name:<11}{history['mean']:>9.1f}{history['median']:>9.0f}{history['p90']:>9.0f}{history['max']:>9,}"
            f"{history['share_empty']:>9.1%}{history['share_truncated']:>18.1%}{history['share_of_behaviors_cut']:>17.1%}"
        )
    lines += ["", "distribution of history lengths (samples)"]
    most = max(step["samples"] for step in figures["history_lengths"])
    for step in figures["history_lengths"]:
        span = f"{step['from']:,}" if step["from"] == step["to"] else f"{step['from']:,} - {step['to']:,}"
        bar = "#" * round(40 * step["samples"] / most)
        lines.append(f"  {span:>16}{step['samples']:>12,}  {bar}".rstrip())
    lines += ["", "leakage report", *(f"  {line}" for line in figures["leakage_lines"])]
    return lines


def _show_prompt(
    log: InteractionLog, splits: Splits | None, args: argparse.Namespace
) -> tuple[list[str], dict[str, Any]]:
    """Samples written by a prompt and, with a tokenizer, the token counts of the parts."""
    import numpy as np

    from lmctr.models.ctr_sink.prompt import Prompt

    prompt = Prompt.load(args.prompt)
    parts = splits.items() if splits is not None else [("all", log.sample_events())]
    events = parts[-1][1]
    chosen = events[np.linspace(0, len(events) - 1, min(args.samples, len(events))).astype(np.int64)]
    lines, texts = ["", f"samples as the prompt {prompt.name!r} writes them (K = {args.num_behaviors})"], []
    for event in chosen:
        text = _sample_text(log, prompt, int(event), args)
        texts.append({"event": int(event), "label": int(log.label[event]), "text": text})
        lines.append(f"  event {event}, label {log.label[event]}:")
        lines += textwrap.wrap(text, 112, initial_indent="    ", subsequent_indent="    ", break_on_hyphens=False)
    figures: dict[str, Any] = {"prompt": prompt.name, "num_behaviors": args.num_behaviors, "samples": texts}
    if args.tokenizer:
        from transformers import AutoTokenizer

        from lmctr.data.batches.text import TextView
        from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

        processor = CTRSinkProcessor(
            AutoTokenizer.from_pretrained(args.tokenizer),
            prompt=prompt,
            num_behaviors=args.num_behaviors,
            sink_kind="sink",
            feedback=args.feedback,
            max_length=args.max_length,
        )
        view = TextView(log, processor)
        figures["tokens"] = {name: view.truncation(events) for name, events in parts if len(events)}
        lines += ["", "token counts (with a sink after each behaviour)"]
        for name, counts in figures["tokens"].items():
            lines.append(f"  {name}: " + ", ".join(f"{key} {_number(value)}" for key, value in counts.items()))
    elif args.max_length:
        raise ValueError("--max-length goes with --tokenizer.")
    return lines, figures


def _sample_text(log: InteractionLog, prompt: Any, event: int, args: argparse.Namespace) -> str:
    import numpy as np

    start, end = (int(bound[0]) for bound in log.history_bounds([event]))
    behaviors = np.arange(start, end)
    words = {code + 1: entry for code, entry in enumerate(prompt.feedback)}
    if args.feedback == "groups":
        groups = [(entry.header, behaviors[log.feedback[behaviors] == code]) for code, entry in words.items()]
    else:
        groups = [("", behaviors)]
    text = prompt.head
    for header, members in groups:
        members = members[-args.num_behaviors :]
        titles = prompt.behavior_texts(log.catalogue.take(log.item[members].astype(np.int64))) if len(members) else []
        text += header if len(members) else ""
        for member, title in zip(members, titles):
            word = words.get(int(log.feedback[member])) if args.feedback == "inline" else None
            text += (word.word if word else "") + title + prompt.separator
    if not len(behaviors):
        text += prompt.empty_history
    target = prompt.item_texts(log.catalogue.take([int(log.item[event])]))[0]
    return text + prompt.target_prefix + target + prompt.target_suffix


def _number(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else str(value)


def _date(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, tz=timezone.utc).strftime("%Y-%m-%d %H:%M")
