"""Attention of packed candidates: each token attends the prefix of its user and its own candidate, and nothing else is computed.

The tokens of all candidates stand in one row. What a token sees has two parts, the encoded prefix, which needs no mask, and the
candidate's own tokens, which are few; the softmax over both follows exactly from the two and the logarithms of their sums. So
nothing is spent on the other candidates of the row, no key of the prefix is copied, and no mask is made.

Shapes: T tokens of a row, C candidates, L tokens of the longest, A heads, h key heads, P positions of a prefix, d width of a head.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface, PreTrainedModel

from lmctr.models.ctr_sink.configuration_ctr_sink import BackboneSpec
from lmctr.utils.measure import has_bf16_units

_NAME = "lmctr_packed"
_FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
_QUERIES = 512  # whose scores are held at once


class PackedRow(NamedTuple):
    """Where the candidates of a row stand; the same for all layers.

    users: begin and end of the tokens of each user; place (C, L): the row's token at each place of a candidate; real (C, L): whether
    there is one; own (T,): the place of each token among the C * L; is_causal: whether a token sees what follows it.
    """

    users: list[tuple[int, int]]
    place: torch.Tensor
    real: torch.Tensor
    own: torch.Tensor
    is_causal: bool


def behind(
    language_model: PreTrainedModel,
    spec: BackboneSpec,
    row: PackedRow,
    prefixes: Sequence[Sequence[tuple[torch.Tensor, torch.Tensor]]],
) -> PreTrainedModel:
    """A language model whose rows go on behind encoded prefixes, for one call. It shares all weights with the given one, of which
    nothing changes: the modules on the way to the attention are copied, without what they hold.

    Args:
        prefixes: per layer, per user keys and values (1, h, P, d).
    """
    config = copy.copy(language_model.config)
    config._attn_implementation = _NAME
    top = owner = _copied(language_model)
    top.config = config
    for name in spec.layers_path.split("."):
        owner = _replaced(owner, name)
    for number, prefix in enumerate(prefixes):
        part = _replaced(owner, str(number))
        for name in spec.attention_path.split("."):
            part = _replaced(part, name)
        part.config, part.behind = config, (row, prefix)
    return top


def _copied(module: nn.Module) -> nn.Module:
    made = copy.copy(module)
    made.__dict__["_modules"] = dict(module._modules)
    return made


def _replaced(owner: nn.Module, name: str) -> nn.Module:
    """A copy of a part of a module, in the place of that part."""
    owner._modules[name] = _copied(owner._modules[name])
    return owner._modules[name]


def _attend(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """(1, A, T, d) queries, (1, h, T, d) keys and values of a row to (1, T, A, d)."""
    row, prefix = module.behind
    how = {"scale": query.shape[-1] ** -0.5 if scaling is None else scaling, "softcap": softcap}
    heads, key_heads = query.shape[1], key.shape[1]
    groups = heads // key_heads

    def by_candidate(states: torch.Tensor) -> torch.Tensor:
        states = states[0].transpose(0, 1)[row.place].transpose(1, 2)  # (C, A or h, L, d)
        return states if states.shape[1] == heads else states.repeat_interleave(groups, dim=1)

    mask = None
    if not row.is_causal:  # causal tokens do not see the padding behind them
        lowest = torch.finfo(query.dtype).min
        mask = torch.zeros_like(row.real, dtype=query.dtype).masked_fill(~row.real, lowest)[:, None, None]
    parts = _attention(*map(by_candidate, (query, key, value)), is_causal=row.is_causal, mask=mask, **how)
    out, total = (part.transpose(1, 2).flatten(0, 1)[row.own] for part in parts)  # (T, A, d), (T, A)
    for (begin, end), (keys, values) in zip(row.users, prefix):
        if not keys.shape[2]:
            continue
        own = query[:, :, begin:end].reshape(1, key_heads, groups * (end - begin), -1)
        seen, of_prefix = _attention(own, keys, values, **how)
        seen, of_prefix = (
            part.reshape(heads, end - begin, *part.shape[3:]).transpose(0, 1) for part in (seen, of_prefix)
        )
        share = (of_prefix - total[begin:end]).sigmoid()[..., None]
        out[begin:end] += share.to(out.dtype) * (seen - out[begin:end])
    return out[None], None


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    softcap: float | None,
    is_causal: bool = False,
    mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What queries (B, A, n, d) gather of m keys, (B, A, n, d), and the logarithm of the sum below it, (B, A, n) float32."""
    if torch.is_autocast_enabled(query.device.type):  # which this kernel does not know of
        kind = torch.get_autocast_dtype(query.device.type)
        query, key, value = query.to(kind), key.to(kind), value.to(kind)
        mask = None if mask is None else mask.to(kind)
    if _FLASH is not None and query.is_cpu and softcap is None:
        if query.dtype == torch.bfloat16 and not is_causal and mask is None and has_bf16_units("cpu"):
            return _by_products(query, key, value, scale)
        return _FLASH(query, key, value, 0.0, is_causal, attn_mask=mask, scale=scale)
    scores = (query @ key.transpose(-1, -2)).float() * scale
    if softcap is not None:
        scores = (scores / softcap).tanh() * softcap
    if is_causal:
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(later, torch.finfo(torch.float32).min)
    elif mask is not None:
        scores = scores + mask
    total = scores.logsumexp(-1)
    return (scores - total[..., None]).exp().to(value.dtype) @ value, total


def _by_products(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """The same by products of matrices, for which processors with units for bfloat16 take less time than the kernel. Scores are rounded to it."""
    keys, found = (key * scale).transpose(-1, -2), []
    for some in query.split(_QUERIES, dim=-2):
        scores = some @ keys
        top = scores.amax(-1, keepdim=True)
        weights = scores.sub_(top).exp_()
        total = weights.sum(-1, keepdim=True, dtype=torch.float32)
        found.append((((weights @ value) / total).to(value.dtype), (total.log() + top)[..., 0]))
    out, totals = zip(*found)
    return torch.cat(out, dim=-2), torch.cat(totals, dim=-1)


AttentionInterface.register(_NAME, _attend)
