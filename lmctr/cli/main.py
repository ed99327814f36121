"""The command line: one literal table of verbs, each verb a module with `add_parser(subparsers)` and `run(args)`."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shlex
import sys
from types import ModuleType

from lmctr import __version__
from lmctr.cli.parser import Parser
from lmctr.utils.errors import is_debugging, is_for_users, is_unread, let_first_speak, told
from lmctr.utils.stopping import stopped_by_term
from lmctr.utils.suggest import did_you_mean

# verb -> module. The modules import nothing heavy at their top, so that help and usage errors come at once.
VERBS = {
    "init": "lmctr.cli.init",
    "train": "lmctr.cli.train",
    "evaluate": "lmctr.cli.evaluate",
    "predict": "lmctr.cli.predict",
    "recommend": "lmctr.cli.recommend",
    "serve": "lmctr.cli.serve",
    "demo": "lmctr.cli.demo",
    "report": "lmctr.cli.report",
    "export": "lmctr.cli.export",
    "push": "lmctr.cli.push",
    "card": "lmctr.cli.card",
    "benchmark": "lmctr.cli.benchmark",
    "analyze": "lmctr.cli.analyze",
    "data": "lmctr.cli.data",
    "grid": "lmctr.cli.grid",
    "search": "lmctr.cli.search",
    "scaling": "lmctr.cli.scaling",
}

GROUPS = ("data", "model", "training")


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return its exit code.

    What a user can mend (bad input, files that are missing or cannot be read, packages or devices that are not there) ends with
    `error: ...` on stderr and code 2; set `LMCTR_DEBUG=1` to see the traceback instead. Other errors are raised.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    args = argparse.Namespace()
    try:
        words, overrides = split_overrides(argv)
        parser, modules = build_parser(words[0] if words else None)
        args = parser.parse_args(words)
        module = modules[args.verb]
        if overrides and not args.takes_overrides:
            verb = " ".join(filter(None, (args.verb, getattr(args, "action", None))))
            raise ValueError(f"{verb} takes no recipe overrides, got --{overrides[0][0]}")
        args.overrides = overrides
        args.command = shlex.join(["lmctr", *argv])
        # of a launch the launcher sends it, to processes that may wait for each other
        term = stopped_by_term() if _goes_on(argv) and "RANK" not in os.environ else contextlib.nullcontext()
        with term:
            return int(module.run(args) or 0)
    except BrokenPipeError:  # `lmctr predict ... | head`
        if not is_unread():
            raise
        sys.stderr.close()
        return 141
    except KeyboardInterrupt as interrupt:
        more = _goes_on(argv)
        if os.environ.get("RANK", "0") == "0":  # of a launch all are interrupted
            told_by = str(interrupt) if more is None else f"the same command {more}"
            print(f"interrupted; {told_by}" if told_by else "interrupted", file=sys.stderr)
        return getattr(interrupt, "exit_code", 130)
    except Exception as error:
        if is_debugging() or not is_for_users(error):
            raise
        if not getattr(error, "is_told", False):  # by another process
            let_first_speak()
            print(f"error: {told(error, _other_place(args))}", file=sys.stderr)
        return getattr(error, "exit_code", 2)


def _other_place(args: argparse.Namespace) -> str:
    """What a verb can do where a place may not be written."""
    verb = getattr(args, "verb", None)
    places = [flag for flag in ("output", "output-dir") if hasattr(args, flag.replace("-", "_"))]
    places += ["space"] if verb == "demo" else []
    if places:
        return f"name another place by {' or '.join(f'--{place}' for place in places)}"
    return "--print prints the card and writes nothing" if verb == "card" else ""


def _goes_on(argv: list[str]) -> str | None:
    """How a verb goes on where it was interrupted."""
    more = {"train": "with --resume goes on", "grid": "goes on", "search": "goes on"}
    return more.get(argv[0], "goes on" if argv[:2] == ["scaling", "ladder"] else None)


def build_parser(verb: str | None = None) -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    """Parser with all verbs, or with only `verb` when it is a known one (the other modules are not imported).

    Returns:
        The parser and the imported modules by verb.
    """
    parser = Parser(prog="lmctr", description="Train, evaluate and share click-through-rate models.")
    parser.add_argument("--version", action="version", version=f"lmctr {__version__}")
    subparsers = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    if verb is not None and not verb.startswith("-") and verb not in VERBS:
        hint = did_you_mean(verb, VERBS, "did you mean")
        raise ValueError(f"unknown verb {verb!r};{hint} verbs: {', '.join(VERBS)}")
    chosen = {verb: VERBS[verb]} if verb in VERBS else VERBS
    modules = {}
    for name, module_name in chosen.items():
        modules[name] = importlib.import_module(module_name)
        modules[name].add_parser(subparsers)
    return parser, modules


def split_overrides(argv: list[str]) -> tuple[list[str], list[tuple[str, str]]]:
    """Take the recipe overrides out of a command line.

    `--data.path X`, `--training.learning_rate=1e-3`: a word of two dashes, one of the groups data, model, training,
    a dot and a key. The value is the part after `=` or the next word.

    Returns:
        The other words, and the overrides as (dotted key, value text) in the order given.

    Raises:
        ValueError: an override without a value.
    """
    words: list[str] = []
    overrides: list[tuple[str, str]] = []
    position = 0
    while position < len(argv):
        word = argv[position]
        position += 1
        key, equals, value = word.removeprefix("--").partition("=")
        if not word.startswith("--") or key.split(".", 1)[0] not in GROUPS or "." not in key:
            words.append(word)
            continue
        if not equals:
            if position >= len(argv) or argv[position].startswith("--"):
                raise ValueError(f"--{key} needs a value: --{key} VALUE or --{key}=VALUE")
            value = argv[position]
            position += 1
        overrides.append((key, value))
    return words, overrides
