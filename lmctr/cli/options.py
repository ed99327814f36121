"""Flags from dataclasses of `lmctr.utils.options`, and verbs that are rows of a table."""

from __future__ import annotations

import argparse
import inspect
import types
import typing
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any

from lmctr.utils.lazy import load_target
from lmctr.utils.progress import showing


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
        options = load_target(self.options)
        description = " ".join((options.__doc__ or self.says).split("\n\n")[0].split())
        parser = subparsers.add_parser(self.name, help=self.says, description=description, epilog=self.epilog)
        parser.set_defaults(takes_overrides=self.takes_overrides)
        add_options(parser, options)
        if "quiet" not in {field.name for field in fields(options)}:
            parser.add_argument("--quiet", action="store_true", help="show no progress; results and warnings stay")

    def run(self, args: argparse.Namespace) -> int:
        """Do it."""
        options = read_options(load_target(self.options), args)  # checks them before what does the work is imported
        with showing(not args.quiet):
            done = load_target(self.does)(options)
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
        parser = subparsers.add_parser(self.name, help=self.says, description=self.description or self.says)
        chosen = parser.add_subparsers(dest="action", metavar=self.metavar, required=True)
        for action in self.actions:
            action.add_parser(chosen)

    def run(self, args: argparse.Namespace) -> int:
        """Do the chosen action."""
        return next(action for action in self.actions if action.name == args.action).run(args)


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """The flags of a dataclass, its own before those that it inherits; `--batch_size` works beside `--batch-size` for one release."""
    hints = typing.get_type_hints(options)
    place = {
        name: i for i, base in reversed(list(enumerate(options.__mro__))) for name in inspect.get_annotations(base)
    }
    for field in sorted(fields(options), key=lambda field: place[field.name]):
        if "says" not in field.metadata:
            continue
        about, kind, many = field.metadata, *_kind(hints[field.name])
        arguments: dict[str, Any] = {"help": _help(field), "metavar": about["metavar"]}
        required = field.default is MISSING and field.default_factory is MISSING
        if kind is bool:
            switch = "store_false" if field.default is True else "store_true"
            arguments = {"help": about["says"], "action": switch, "default": None}
        else:
            arguments |= {"type": kind, "choices": about["choices"]}
            if many:
                arguments |= {"action": "append"} if about["repeated"] else {"nargs": about["count"] or "+"}
        if about["positional"]:
            arguments.pop("action", None)
            if not required:
                arguments["nargs"] = "*" if many else "?"
            parser.add_argument(field.name, **arguments)
        else:
            start = "--no-" if field.default is True else "--"
            flag = start + field.name.replace("_", "-")
            flags = dict.fromkeys((flag, start + field.name))
            if not about["short"]:
                parser.add_argument(*flags, dest=field.name, required=required, **arguments)
                continue
            group = parser.add_mutually_exclusive_group(required=required)
            group.add_argument(*flags, dest=field.name, **arguments)
            for other in about["short"]:
                group.add_argument(other, dest=field.name, **{**arguments, "help": f"another spelling of {flag}"})


def _help(field: Field) -> str:
    """What an option says, and its default unless that is told or nothing."""
    says = field.metadata["says"]
    default = field.default if field.default_factory is MISSING else field.default_factory()
    if "default" in says or default is MISSING or default in (None, False, "", []):
        return says
    return f"{says} (default: {' '.join(map(str, default)) if isinstance(default, list) else default})"


def read_options(options: type, args: argparse.Namespace) -> Any:
    """The dataclass filled from parsed flags; what was not given keeps its default."""
    values = {}
    for field in fields(options):
        value = getattr(args, field.name, None)
        if value is not None and value != []:
            values[field.name] = value
    return options(**values)


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of one value, and whether there may be several."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        (hint,) = (part for part in typing.get_args(hint) if part is not type(None))
    if typing.get_origin(hint) in (list, tuple):
        return typing.get_args(hint)[0], True
    return hint, False
