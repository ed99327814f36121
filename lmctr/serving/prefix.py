"""Shared prefixes of decoders, and of encoders whose history does not see the target: a history encoded once, going on from what was encoded, and candidates packed behind it.

Shapes: P positions of the prefix, C candidates, S signals, H hidden size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from lmctr.models.ctr_sink.backbone import first_position
from lmctr.models.ctr_sink.sink_attention import SinkCache

from .packed_attention import PackedRow, behind
from .registry import EncodedHistory

_PASS = 2048  # positions of a forward pass


@dataclass(frozen=True, eq=False)
class EncodedPrefix(EncodedHistory):
    """The beginning of a row and what a language model computed of it.

    Args:
        ids: (P,) int64 token ids. buckets: (P, S) int64 sink buckets, -1 where the position is no sink.
        body: positions of the prompt's head and the behaviours; the target's prompt follows them.
        keys, values: per layer (1, key heads, P, d). hidden: (P, H) last hidden states.
        sink_keys: per enhanced layer (1, A, M, d), keys of the sink bias (Eq. 10) of the M sinks; none in encoders.
    """

    ids: np.ndarray
    buckets: np.ndarray
    body: int
    keys: list[torch.Tensor]
    values: list[torch.Tensor]
    hidden: torch.Tensor
    sink_keys: dict[int, torch.Tensor]

    @property
    def num_positions(self) -> int:
        return len(self.ids)

    def tensors(self) -> dict[str, torch.Tensor]:
        out = {"ids": torch.from_numpy(self.ids), "buckets": torch.from_numpy(self.buckets)}
        out |= {"body": torch.tensor(self.body), "hidden": self.hidden}
        for layer, (key, value) in enumerate(zip(self.keys, self.values, strict=True)):
            out |= {f"keys.{layer}": key, f"values.{layer}": value}
        return out | {f"sink_keys.{slot}": key for slot, key in self.sink_keys.items()}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, torch.Tensor]) -> EncodedPrefix:
        def numbered(name: str) -> dict[int, torch.Tensor]:
            found = {int(key.split(".")[1]): value for key, value in tensors.items() if key.startswith(f"{name}.")}
            return dict(sorted(found.items()))

        return cls(
            ids=tensors["ids"].cpu().numpy(),
            buckets=tensors["buckets"].cpu().numpy(),
            body=int(tensors["body"]),
            keys=list(numbered("keys").values()),
            values=list(numbered("values").values()),
            hidden=tensors["hidden"],
            sink_keys=numbered("sink_keys"),
        )


def encode_prefix(
    model: torch.nn.Module, ids: np.ndarray, buckets: np.ndarray, body: int, before: EncodedPrefix | None
) -> tuple[EncodedPrefix, int]:
    """Encode the beginning of a row; what it has in common with an encoded one is taken from there.

    Exact in causal models: a position depends on earlier tokens, positions and sinks only, and those of a common beginning
    are the same. A bias that looks ahead (`sink_bias_causal=False`) makes it depend on every sink of the prefix, and in encoders
    (`encoder_prefix`) every position of it depends on all others: it is then kept as a whole or not at all.

    Args:
        model: a [`CTRSinkForCTR`] with a decoder, or with `encoder_prefix`. ids, buckets, body: see [`EncodedPrefix`].
        before: an encoded prefix of the same user.

    Returns:
        The encoded prefix, and how many positions of the body of `before` could not be kept.
    """
    common = 0 if before is None else _common(before, ids, buckets)
    is_encoder = model.config.encoder_prefix
    looks_ahead = is_encoder or (bool(model.config.resolved_sink_bias_layers) and not model.config.sink_bias_causal)
    if before is not None and looks_ahead and not common == len(ids) == before.num_positions:
        common = 0
    lost = 0 if before is None else max(0, before.body - common)
    if before is not None and common == len(ids) == before.num_positions:
        return before, lost

    device = next(model.parameters()).device
    sinks = np.flatnonzero(buckets[:common, 0] >= 0)
    sink_cache = None if is_encoder else SinkCache()
    past = DynamicCache(config=model.config.text_config)
    if common:
        for layer, (key, value) in enumerate(zip(before.keys, before.values, strict=True)):
            past.update(key[:, :, :common], value[:, :, :common], layer)
        kept = {slot: key[:, :, : len(sinks)] for slot, key in before.sink_keys.items()}
        sink_cache = SinkCache(kept, torch.from_numpy(sinks)[None].to(device), common)
    if common == len(ids):  # shorter than before, or nothing at all
        empty = torch.zeros(0, model.config.text_config.hidden_size, device=device)
        hidden = empty if before is None else before.hidden[:common]
        return _prefix(ids, buckets, body, past, hidden, sink_cache), lost
    new_ids = torch.from_numpy(ids[common:])[None].to(device)
    position = torch.arange(common, len(ids), device=device)
    mask = torch.zeros(len(position), len(ids), dtype=_dtype(model), device=device)
    if not is_encoder:
        later = torch.arange(len(ids), device=device) > position[:, None]
        mask = mask.masked_fill(later, torch.finfo(_dtype(model)).min)
    hidden = model.model(
        input_ids=new_ids,
        attention_mask=mask[None, None],
        sink_buckets=torch.from_numpy(buckets[common:])[None].to(device),
        position_ids=position[None] + first_position(model.config.text_config),
        past_key_values=past,
        use_cache=True,
        sink_cache=sink_cache,
    ).last_hidden_state[0]
    if common:
        hidden = torch.cat([before.hidden[:common], hidden])
    return _prefix(ids, buckets, body, past, hidden, sink_cache), lost


def _prefix(
    ids: np.ndarray, buckets: np.ndarray, body: int, past: DynamicCache, hidden: torch.Tensor, sinks: SinkCache | None
) -> EncodedPrefix:
    keys, values = [layer.keys for layer in past.layers], [layer.values for layer in past.layers]
    return EncodedPrefix(ids.copy(), buckets.copy(), body, keys, values, hidden, {} if sinks is None else sinks.keys)


def _common(before: EncodedPrefix, ids: np.ndarray, buckets: np.ndarray) -> int:
    """Number of positions at the beginning whose tokens and buckets are the same."""
    length = min(before.num_positions, len(ids))
    same = (before.ids[:length] == ids[:length]) & (before.buckets[:length] == buckets[:length]).all(axis=1)
    return length if same.all() else int(np.argmin(same))


class Pack(NamedTuple):
    """Candidates behind one prefix.

    Args:
        prefix: what their rows begin with. own: C arrays of token ids, each of at least one. statistics: (C, Fs) float32 scaled
            statistics of the candidates, for a model that reads them.
    """

    prefix: EncodedPrefix
    own: Sequence[np.ndarray]
    statistics: torch.Tensor | None = None


def score_packs(model: torch.nn.Module, asked: Sequence[Pack], max_tokens: int) -> list[torch.Tensor]:
    """Logits of candidates that go on after a prefix: many of them, of several users, in one row, each seeing its user's prefix and itself.

    The candidates' positions all begin at P, as if each stood alone. They hold no sinks, so the sink bias, which joins sinks
    only, is zero in their rows: what it did to the prefix is in the cache.

    Args:
        model: as `encode_prefix` takes it. asked: candidates of each user.
        max_tokens: most positions of a pass (bounded by an own limit, above which they only get slower), the candidates taken as
            long as their longest.

    Returns:
        (C,) float32 on the CPU for each of `asked`.
    """
    logits = [torch.empty(len(one.own), dtype=torch.float32, device="cpu") for one in asked]
    lengths = [(len(ids), number, place) for number, one in enumerate(asked) for place, ids in enumerate(one.own)]
    lengths.sort(key=lambda one: -one[0])  # those of a pass are about equally long
    begin = 0
    while begin < len(lengths):
        count = max(1, min(max_tokens, _PASS) // lengths[begin][0])
        chosen = sorted((number, place) for _, number, place in lengths[begin : begin + count])
        begin += count
        for (number, place), value in zip(chosen, _score_row(model, asked, chosen).tolist()):
            logits[number][place] = value
    return logits


def _score_row(model: torch.nn.Module, asked: Sequence[Pack], chosen: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(C,) logits of some candidates: number of the user and of the candidate, in the order of the users."""
    device, language_model = next(model.parameters()).device, model.model.language_model
    users = sorted({number for number, _ in chosen})
    own = [asked[number].own[place] for number, place in chosen]
    size = np.array([len(ids) for ids in own])
    before = np.array([asked[number].prefix.num_positions for number, _ in chosen])
    starts = np.cumsum(size) - size
    owner = np.repeat(np.arange(len(own)), size)
    within = np.arange(len(owner)) - starts[owner]
    longest = int(size.max())
    real = np.arange(longest) < size[:, None]
    place = np.where(real, starts[:, None] + np.arange(longest), 0)
    bounds = np.searchsorted([number for number, _ in chosen], [*users, users[-1] + 1])
    bounds = np.append(starts, size.sum())[bounds].tolist()
    ids, position, place, real, at, owner, total = (
        torch.from_numpy(values).to(device)
        for values in (
            np.concatenate(own).astype(np.int64)[None],
            (before[owner] + within)[None] + first_position(model.config.text_config),
            place,
            real,
            owner * longest + within,
            owner,
            size + before,
        )
    )
    row = PackedRow(list(pairwise(bounds)), place, real, at, not model.config.encoder_prefix)
    prefixes = [asked[number].prefix for number in users]
    layers = [[(one.keys[layer], one.values[layer]) for one in prefixes] for layer in range(len(prefixes[0].keys))]
    # Not through CTRSinkModel: without sinks there is nothing to embed and no bias to add.
    hidden = behind(language_model, model.config.backbone_spec, row, layers)(
        inputs_embeds=language_model.get_input_embeddings()(ids),
        attention_mask=torch.zeros(1, 1, 1, 1, device=device),  # the row says who sees whom
        position_ids=position,
        use_cache=False,
    ).last_hidden_state[0]
    summed = torch.stack([asked[number].prefix.hidden.float().sum(0) for number in users])
    summed = summed[torch.from_numpy(np.searchsorted(users, [number for number, _ in chosen])).to(device)]
    summed = summed.index_add(0, owner, hidden.float())
    pooled = (summed / total[:, None]).to(hidden.dtype)
    one = torch.ones(len(pooled), 1, dtype=torch.bool, device=device)
    beside = None
    if asked[0].statistics is not None:
        beside = torch.stack([asked[number].statistics[place] for number, place in chosen])
    return model.head(pooled[:, None], one, beside).float().cpu()


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return model.model.language_model.get_input_embeddings().weight.dtype
