"""The parser of the command line: what argparse gives, with errors that name the fix."""

from __future__ import annotations

import argparse
import copy
import re
from typing import Any, NoReturn

from lmctr.runs.words import meant_key
from lmctr.utils.errors import let_first_speak
from lmctr.utils.suggest import nearest


class Help(argparse.HelpFormatter):
    """Shows the spelling of a flag with hyphens only, and keeps the lines of a text that has several."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        shown = copy.copy(action)
        shown.option_strings = [word for word in action.option_strings if "_" not in word] or action.option_strings
        return super()._format_action_invocation(shown)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if "\n" in text else super()._fill_text(text, width, indent)


class Parser(argparse.ArgumentParser):
    """A parser of argparse to which an unknown flag is an error of the verb that it was given to, with the nearest known flag.

    `takes_overrides` among its defaults says whether recipe keys may be given, which are then offered too.
    """

    def __init__(self, **settings: Any):
        super().__init__(**{"allow_abbrev": False, "formatter_class": Help, **settings})
        # argparse's own knows no exponents
        self._negative_number_matcher = re.compile(r"-(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$", re.IGNORECASE)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[argparse.Namespace, list[str]]:
        namespace, unknown = super().parse_known_args(args, namespace)
        if unknown:
            flag = next((word for word in unknown if word.startswith("-")), None)
            self.error(f"unexpected words: {' '.join(unknown)}" if flag is None else self._unknown_flag(flag))
        return namespace, unknown

    def error(self, message: str) -> NoReturn:
        let_first_speak()
        super().error(message)

    def _unknown_flag(self, flag: str) -> str:
        word = flag.lstrip("-").partition("=")[0]
        own = [name for action in self._actions for name in action.option_strings if name.startswith("--")]
        guess = nearest(word, [name.removeprefix("--") for name in own if "_" not in name])
        if guess is None and self.get_default("takes_overrides"):
            guess = meant_key(word)
        hint = f"; did you mean --{guess}?" if guess is not None else f"; {self.prog} --help lists what there is"
        return f"unknown option {flag.partition('=')[0]}{hint}"
