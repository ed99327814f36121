"""Flags from dataclasses of `lmctr.utils.options`, and verbs that are rows of a table."""

from __future__ import annotations

import argparse
import importlib
import textwrap
import types
import typing
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Action:
    """A verb, or an action of a verb, that one function does.

    Attributes:
        name: the word of the command line. says: its line in the list of verbs.
        options: "module:Class" of its options; the docstring is the description, the module imports nothing heavy.
        does: "module:function", called with the options; returns the exit code, or a result (of a piece of work that Python users call
            too), which is success.
        epilog: what the help ends with.
        takes_overrides: whether `--data.KEY`, `--model.KEY` and `--training.KEY` may be given.
    """

    name: str
    says: str
    options: str
    does: str
    epilog: str | None = None
    takes_overrides: bool = False

    def add_parser(self, subparsers: Any) -> None:
        """Add the action to a parser."""
        options = load(self.options)
        description = " ".join((options.__doc__ or self.says).split("\n\n")[0].split())
        words: dict[str, Any] = {"description": description, "epilog": self.epilog}
        if "\n" in (self.epilog or ""):  # examples, which keep their lines
            words["formatter_class"] = argparse.RawDescriptionHelpFormatter
            words["description"] = textwrap.fill(description, 100)
        parser = subparsers.add_parser(self.name, help=self.says, allow_abbrev=False, **words)
        add_options(parser, options)

    def run(self, args: argparse.Namespace) -> int:
        """Do it."""
        if args.overrides and not self.takes_overrides:
            raise ValueError(f"{args.verb} {self.name} takes no recipe overrides, got --{args.overrides[0][0]}")
        done = load(self.does)(read_options(load(self.options), args))
        return done if isinstance(done, int) else 0


@dataclass(frozen=True)
class Actions:
    """A verb whose first word chooses an action.

    Attributes:
        name: the word of the command line. says: its line in the list of verbs.
        actions: what there is to choose from.
        description: what the verb's help begins with (default: `says`). metavar: what the help calls the choice.
    """

    name: str
    says: str
    actions: tuple[Action, ...]
    description: str | None = None
    metavar: str = "WHAT"

    def add_parser(self, subparsers: Any) -> None:
        """Add the verb to a parser."""
        parser = subparsers.add_parser(
            self.name, help=self.says, description=self.description or self.says, allow_abbrev=False
        )
        chosen = parser.add_subparsers(dest="action", metavar=self.metavar, required=True)
        for action in self.actions:
            action.add_parser(chosen)

    def run(self, args: argparse.Namespace) -> int:
        """Do the chosen action."""
        return next(action for action in self.actions if action.name == args.action).run(args)


def load(target: str) -> Any:
    """What "module:name" names."""
    module, name = target.split(":")
    return getattr(importlib.import_module(module), name)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """The flags of a dataclass; `--batch_size` works beside `--batch-size` for one release."""
    hints = typing.get_type_hints(options)
    for field in fields(options):
        if "says" not in field.metadata:
            continue
        about, kind, many = field.metadata, *_kind(hints[field.name])
        arguments: dict[str, Any] = {"help": about["says"], "metavar": about["metavar"]}
        required = field.default is MISSING and field.default_factory is MISSING
        if kind is bool:
            arguments = {"help": about["says"], "action": "store_true"}
        else:
            arguments |= {"type": kind, "choices": about["choices"]}
            if many:
                arguments |= {"action": "append"} if about["repeated"] else {"nargs": "+"}
        if about["positional"]:
            arguments.pop("action", None)
            if not required:
                arguments["nargs"] = "*" if many else "?"
            parser.add_argument(field.name, **arguments)
        else:
            # One of the spellings may be given, and must be where the option is required.
            group = parser.add_mutually_exclusive_group(required=required)
            flag = "--" + field.name.replace("_", "-")
            group.add_argument(flag, dest=field.name, **arguments)
            for other in about["short"]:
                words = {"help": f"another spelling of {flag}"}
                group.add_argument(other, dest=field.name, **{**arguments, **words})
            if "_" in field.name:
                hidden = {"help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
                group.add_argument("--" + field.name, dest=field.name, **{**arguments, **hidden})


def read_options(options: type, args: argparse.Namespace) -> Any:
    """The dataclass filled from parsed flags; what was not given keeps its default."""
    values = {}
    for field in fields(options):
        value = getattr(args, field.name, None)
        if value is not None and not (value is False or value == []):
            values[field.name] = value
    return options(**values)


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) in (list, tuple):
        return typing.get_args(hint)[0], True
    return {Path: Path}.get(hint, hint), False
