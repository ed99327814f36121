"""Outputs that every CTR model of the library returns."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers.utils import ModelOutput

# Annotations, which may be texts.
_TENSORS = (torch.Tensor, torch.Tensor | None, "torch.Tensor", "torch.Tensor | None")


def tensors_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that refuses what is no tensor, or one without rows, for an argument that takes tensors only (or None). Raises `ValueError` that
    names it."""
    parameters = inspect.signature(function).parameters.values()
    names = [one.name if one.annotation in _TENSORS else None for one in parameters]
    wanted = frozenset(filter(None, names))

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        for name, value in (*zip(names, args), *kwargs.items()):
            if value is not None and name in wanted and not isinstance(value, torch.Tensor):
                raise ValueError(
                    f"{name}: expected a torch.Tensor, got {type(value).__name__} {value!r:.60}; processors give tensors with "
                    'return_tensors="pt", and torch.as_tensor makes one of an array'
                )
            if name in wanted and value is not None and value.dim() and not value.shape[0]:
                raise ValueError(f"{name}: shape {tuple(value.shape)} holds no row; give at least one")
        return function(*args, **kwargs)

    return wrapped


def or_tuple(forward: Callable[..., ModelOutput]) -> Callable[..., Any]:
    """A forward that also takes `return_dict`: False gives a tuple of what the output holds; what [`tensors_only`] refuses is refused."""
    checked = tensors_only(forward)

    @functools.wraps(forward)
    def wrapped(self: Any, *args: Any, return_dict: bool | None = None, **kwargs: Any) -> Any:
        output = checked(self, *args, **kwargs)
        return output.to_tuple() if return_dict is False else output

    return wrapped


@dataclass
class CTROutput(ModelOutput):
    """Output of an `XForCTR` model.

    Args:
        loss: () float, present when `labels` were given: binary cross-entropy with logits.
        logits: (B,) float, one logit per row; (B, C) for C candidates per row; a trailing task axis for several tasks. No
            view of another tensor, whose change in place would lose what FSDP2 hangs on a model's outputs.
        hidden_states: tuple of (B, N, H), when asked for.
        attentions: tuple of (B, heads, N, N), when asked for.
    """

    loss: torch.Tensor | None = None
    logits: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None


@dataclass
class TabularModelOutput(ModelOutput):
    """Output of a tabular `XModel`: what its head needs.

    Args:
        last_hidden_state: the representation before the head; (B, W) or (B, T, D), as the family's model says.
        partial_logit: (B,) float, the terms of the logit that go past the head (first order, factorisation machine).
        embedding_penalty: (B,) float32, each row's L2 penalty on the vectors it read; with `embedding_regularization`.
        hidden_states: the fields' vectors and every layer's output, (B, T, D) or (B, W), when asked for.
        attentions: tuple of (B, heads, T, T), when asked for.
    """

    last_hidden_state: torch.Tensor | None = None
    partial_logit: torch.Tensor | None = None
    embedding_penalty: torch.Tensor | None = None
    hidden_states: tuple[torch.Tensor, ...] | None = None
    attentions: tuple[torch.Tensor, ...] | None = None
