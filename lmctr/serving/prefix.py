"""Shared prefixes of decoders, and of encoders whose history does not see the target: a history encoded once, going on from what was encoded, and candidates packed behind it.

Shapes: P positions of the prefix, N positions of a pack of candidates, C candidates, S signals, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from transformers import DynamicCache

from lmctr.models.ctr_sink.backbone import position_ids_from_mask
from lmctr.models.ctr_sink.sink_attention import SinkCache

from .registry import EncodedHistory

__all__ = ["EncodedPrefix", "Pack", "encode_prefix", "score_packs"]

_PACK = 256  # positions of one pack; each of them is also compared with the pack's other candidates, in vain
_PASS = 2048  # positions of the packs of a forward pass


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
        position_ids=position[None] + _first_position(model),
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
    """Logits of candidates that go on after a prefix: several of them in one row, each seeing the prefix and itself; rows of
    several users in one forward pass, shorter prefixes padded in front.

    The candidates' positions all begin at P, as if each stood alone. They hold no sinks, so the sink bias, which joins sinks
    only, is zero in their rows: what it did to the prefix is in the cache.

    Args:
        model: as `encode_prefix` takes it. asked: candidates of each user.
        max_tokens: most positions of a pass (bounded by an own limit, above which they only get slower).

    Returns:
        (C,) float32 on the CPU for each of `asked`.
    """
    logits = [torch.empty(len(one.own)) for one in asked]
    rows = []
    for number, one in enumerate(asked):
        lengths = np.array([len(ids) for ids in one.own], dtype=np.int64)
        rows += [(int(lengths[chosen].sum()), number, chosen) for chosen in packs(lengths, min(max_tokens, _PACK))]
    rows.sort(key=lambda row: -row[0])
    begin = 0
    while begin < len(rows):
        # The first row is the longest: no other has more than half of its length as padding.
        end = begin + 1
        while (
            end < len(rows)
            and 2 * rows[end][0] >= rows[begin][0]
            and (end + 1 - begin) * rows[begin][0] <= min(max_tokens, _PASS)
        ):
            end += 1
        found = _score_rows(model, [(asked[number], chosen) for _, number, chosen in rows[begin:end]])
        for (_, number, chosen), values in zip(rows[begin:end], found):
            logits[number][torch.from_numpy(chosen)] = values
        begin = end
    return logits


def _score_rows(model: torch.nn.Module, rows: Sequence[tuple[Pack, np.ndarray]]) -> tuple[torch.Tensor, ...]:
    """Logits of some candidates of each of B packs, a row each."""
    device, dtype = next(model.parameters()).device, _dtype(model)
    language_model = model.model.language_model
    lengths = [np.array([len(pack.own[number]) for number in chosen]) for pack, chosen in rows]
    before = [pack.prefix.num_positions for pack, _ in rows]
    first, width = max(before), max(int(own.sum()) for own in lengths)
    ids = np.zeros((len(rows), width), dtype=np.int64)
    segment = np.full((len(rows), width), -1, dtype=np.int64)  # padding sees padding only, and nobody sees it
    position = np.zeros((len(rows), width), dtype=np.int64)
    for row, (pack, chosen) in enumerate(rows):
        own, size = lengths[row], int(lengths[row].sum())
        ids[row, :size] = np.concatenate([pack.own[number] for number in chosen])
        segment[row, :size] = np.repeat(np.arange(len(own)), own)
        position[row, :size] = before[row] + np.arange(size) - np.repeat(np.cumsum(own) - own, own)
    ids, segment, position = (torch.from_numpy(values).to(device) for values in (ids, segment, position))
    hidden_keys = torch.zeros(len(rows), 1, width, first + width, dtype=torch.bool, device=device)
    alike = segment[:, :, None] == segment[:, None, :]
    hidden_keys[:, 0, :, first:] = ~(alike if model.config.encoder_prefix else alike.tril())
    for row, count in enumerate(before):
        hidden_keys[row, :, :, : first - count] = True
    mask = torch.zeros(hidden_keys.shape, dtype=dtype, device=device)
    mask.masked_fill_(hidden_keys, torch.finfo(dtype).min)
    past = DynamicCache(config=model.config.text_config)
    for layer in range(len(rows[0][0].prefix.keys)):
        key = _behind_each_other([pack.prefix.keys[layer] for pack, _ in rows], first)
        past.update(key, _behind_each_other([pack.prefix.values[layer] for pack, _ in rows], first), layer)
    # Not through CTRSinkModel: without sinks there is nothing to embed and no bias to add.
    hidden = language_model(
        inputs_embeds=language_model.get_input_embeddings()(ids),
        attention_mask=mask,
        position_ids=position + _first_position(model),
        past_key_values=past,
        use_cache=True,
    ).last_hidden_state
    counts = [len(own) for own in lengths]
    offset = torch.tensor(np.cumsum([0, *counts[:-1]]), device=device)
    real = segment >= 0
    total = torch.cat([pack.prefix.hidden.float().sum(0).expand(count, -1) for (pack, _), count in zip(rows, counts)])
    total = total.index_add(0, (segment + offset[:, None])[real], hidden[real].float())
    sizes = torch.from_numpy(np.concatenate([own + count for own, count in zip(lengths, before)])).to(device)
    pooled = (total / sizes[:, None]).to(hidden.dtype)
    one = torch.ones(len(pooled), 1, dtype=torch.bool, device=device)
    beside = None
    if rows[0][0].statistics is not None:
        beside = torch.cat([pack.statistics[torch.from_numpy(chosen).to(device)] for pack, chosen in rows])
    return model.head(pooled[:, None], one, beside).float().cpu().split(counts)


def _behind_each_other(parts: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """(1, h, P, d) of each row as (B, h, width, d), with zeros in front of the shorter ones."""
    if all(part.shape[2] == width for part in parts):
        return parts[0] if len(parts) == 1 else torch.cat(list(parts))
    whole = parts[0].new_zeros(len(parts), parts[0].shape[1], width, parts[0].shape[3])
    for row, part in enumerate(parts):
        whole[row, :, width - part.shape[2] :] = part[0]
    return whole


def packs(lengths: np.ndarray, most: int) -> Iterator[np.ndarray]:
    """Consecutive numbers of candidates whose lengths add up to `most` at most; a longer one comes alone."""
    begin, total = 0, 0
    for number, length in enumerate(lengths):
        if number > begin and total + length > most:
            yield np.arange(begin, number)
            begin, total = number, 0
        total += int(length)
    if begin < len(lengths):
        yield np.arange(begin, len(lengths))


def _first_position(model: torch.nn.Module) -> int:
    """Number of a row's first position; RoBERTa counts from its padding id on."""
    return int(position_ids_from_mask(torch.ones(1, 1), model.config.text_config))


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return model.model.language_model.get_input_embeddings().weight.dtype
