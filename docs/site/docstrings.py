"""Names in brackets, as transformers writes them in docstrings, become code."""

import re
from typing import Any

import griffe

_NAME = re.compile(r"\[(`~?[^`\n]+`)\](?:\[[^\]\n]*\])?(?!\()")


class PlainNames(griffe.Extension):
    """``[`~lmctr.runs.load`]`` -> `lmctr.runs.load`."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = _NAME.sub(lambda match: match.group(1).replace("~", ""), obj.docstring.value)
