"""Bringing the cached keys and values of histories up to date when new events arrive.

Which events a block holds follows from the history alone. A block whose cached events are a beginning of those that it should hold
now is extended by the rest, which gives exactly what encoding all of it would. A block that has to give up an event (its window of
n_k is full) is encoded again, because every later state had seen that event.
"""

from __future__ import annotations

import torch

from lmctr.models.common.sequence import SequenceInputs

from .modeling_astro import ASTROCache, ASTROModel
from .partition import Slots


def event_identity(inputs: SequenceInputs, slots: Slots) -> torch.Tensor:
    """(K, B, S, 4 + Fi) int64: all that the model reads of the event in each slot; -1 in unused slots."""
    table, blocks = inputs.event_table(), len(slots.index)
    index = slots.index[..., None].expand(-1, -1, -1, table.shape[-1])
    found = table.expand(blocks, -1, -1, -1).gather(2, index)
    return torch.where(slots.valid[..., None], found, -1)


def update_cache(
    model: ASTROModel,
    inputs: SequenceInputs,
    slots: Slots,
    cache: ASTROCache | None = None,
    identity: torch.Tensor | None = None,
) -> tuple[ASTROCache, int]:
    """The cache of one row's history, from an earlier cache of the same user.

    Args:
        model: the base model.
        inputs: B = 1; the history is read. slots: what each block should hold.
        cache, identity: the earlier cache, and the `event_identity` of its events; None encodes all.

    Returns:
        The cache of `slots`, and how many cached events were given up or encoded again.
    """
    if len(inputs.history_items) != 1:
        raise ValueError(f"inputs: one row at a time, got {len(inputs.history_items)}")
    if cache is None or identity is None:
        return model.encode_history(inputs, slots), 0
    known, wanted = cache.slots.valid.sum(-1)[:, 0], slots.valid.sum(-1)[:, 0]  # (K,)
    now = event_identity(inputs, slots)
    width = min(identity.shape[2], now.shape[2])
    same = ((identity[:, 0, :width] == now[:, 0, :width]).all(-1) | ~cache.slots.valid[:, 0, :width]).all(-1)
    extends = same & (known <= wanted)
    given_up = int(known[~extends].sum())
    if not extends.any():
        return model.encode_history(inputs, slots), given_up
    if extends.all():
        return _extend(model, inputs, slots, cache, known, slice(None)), 0
    parts = []
    for block in range(len(known)):  # some windows are full and others not: each block as it needs
        own = slice(block, block + 1)
        if extends[block]:
            past = ASTROCache(
                cache.slots.blocks(own), *(tuple(x[own] for x in kind) for kind in (cache.keys, cache.values))
            )
            parts.append(_extend(model, inputs, slots.blocks(own), past, known[own], own))
        else:
            parts.append(model.encode_history(inputs, slots.blocks(own), None, own))
    keys, values = (
        tuple(torch.cat([getattr(part, kind)[layer] for part in parts]) for layer in range(len(model.layers)))
        for kind in ("keys", "values")
    )
    return ASTROCache(slots, keys, values), given_up


def _extend(
    model: ASTROModel, inputs: SequenceInputs, slots: Slots, cache: ASTROCache, known: torch.Tensor, blocks: slice
) -> ASTROCache:
    """`cache` holds the first `known` (K,) events of each block of `slots`; the others are encoded and put behind them."""
    count, _, width = slots.index.shape
    rest = slots.valid.sum(-1)[:, 0] - known
    most = int(rest.max())
    before = cache.keys[0].shape[3]
    if most:
        place = torch.arange(most, device=known.device)
        new = _pick(slots, (known[:, None] + place).clamp_max(width - 1), place < rest[:, None])
        place = torch.arange(before, device=known.device)
        past = _pick(slots, place.clamp_max(width - 1).expand(count, -1), place < known[:, None])
        cache = model.encode_history(inputs, new, cache._replace(slots=past), blocks)
    # Keys lie as [earlier, padding, new, padding]; put them in the order of the slots.
    place = torch.arange(width, device=known.device).expand(count, -1)
    source = torch.where(place < known[:, None], place, before + place - known[:, None])
    source = source.clamp_max(cache.keys[0].shape[3] - 1)

    def ordered(states: torch.Tensor) -> torch.Tensor:
        index = source[:, None, None, :, None].expand(-1, *states.shape[1:3], -1, states.shape[4])
        return states.gather(3, index)

    keys, values = (tuple(ordered(x) for x in kind) for kind in (cache.keys, cache.values))
    return ASTROCache(slots, keys, values)


def _pick(slots: Slots, place: torch.Tensor, valid: torch.Tensor) -> Slots:
    """Slots at (K, M) places of one row's blocks."""
    index, position, time, scenario, _ = (tensor.gather(2, place[:, None]) for tensor in slots)
    return Slots(index, position, time, scenario, valid[:, None])
