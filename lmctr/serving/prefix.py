"""Shared prefixes of decoders: a history encoded once, going on from what was encoded, and candidates packed behind it.

Shapes: P positions of the prefix, N positions of a pack of candidates, C candidates, S signals, H hidden size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from transformers import DynamicCache

from lmctr.models.ctr_sink.sink_attention import SinkCache

from .registry import EncodedHistory

__all__ = ["EncodedPrefix", "encode_prefix", "score_packed"]

_PACK = 512  # positions of one pack; each of them is also compared with the pack's other candidates, in vain


@dataclass(frozen=True, eq=False)
class EncodedPrefix(EncodedHistory):
    """The beginning of a row and what a decoder computed of it.

    Args:
        ids: (P,) int64 token ids. buckets: (P, S) int64 sink buckets, -1 where the position is no sink.
        body: positions of the prompt's head and the behaviours; the target's prompt follows them.
        keys, values: per layer (1, key heads, P, d). hidden: (P, H) last hidden states.
        sink_keys: per enhanced layer (1, A, M, d), keys of the sink bias (Eq. 10) of the M sinks.
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
    are the same. A bias that looks ahead (`sink_bias_causal=False`) makes it depend on every sink of the prefix.

    Args:
        model: a [`CTRSinkForCTR`] with a decoder. ids, buckets, body: see [`EncodedPrefix`].
        before: an encoded prefix of the same user.

    Returns:
        The encoded prefix, and how many positions of the body of `before` could not be kept.
    """
    common = 0 if before is None else _common(before, ids, buckets)
    looks_ahead = bool(model.config.resolved_sink_bias_layers) and not model.config.sink_bias_causal
    if before is not None and looks_ahead and not common == len(ids) == before.num_positions:
        common = 0
    lost = 0 if before is None else max(0, before.body - common)
    if before is not None and common == len(ids) == before.num_positions:
        return before, lost

    device = next(model.parameters()).device
    sinks = np.flatnonzero(buckets[:common, 0] >= 0)
    sink_cache = SinkCache()
    past = DynamicCache(config=model.config.text_config)
    if common:
        for layer, (key, value) in enumerate(zip(before.keys, before.values, strict=True)):
            past.update(key[:, :, :common], value[:, :, :common], layer)
        kept = {slot: key[:, :, : len(sinks)] for slot, key in before.sink_keys.items()}
        sink_cache = SinkCache(kept, torch.from_numpy(sinks)[None].to(device), common)
    if common == len(ids):  # shorter than before
        return _prefix(ids, buckets, body, past, before.hidden[:common], sink_cache), lost
    new_ids = torch.from_numpy(ids[common:])[None].to(device)
    position = torch.arange(common, len(ids), device=device)
    later = torch.arange(len(ids), device=device) > position[:, None]
    mask = torch.zeros(later.shape, dtype=_dtype(model), device=device).masked_fill(
        later, torch.finfo(_dtype(model)).min
    )
    hidden = model.model(
        input_ids=new_ids,
        attention_mask=mask[None, None],
        sink_buckets=torch.from_numpy(buckets[common:])[None].to(device),
        position_ids=position[None],
        past_key_values=past,
        use_cache=True,
        sink_cache=sink_cache,
    ).last_hidden_state[0]
    if common:
        hidden = torch.cat([before.hidden[:common], hidden])
    return _prefix(ids, buckets, body, past, hidden, sink_cache), lost


def _prefix(
    ids: np.ndarray, buckets: np.ndarray, body: int, past: DynamicCache, hidden: torch.Tensor, sinks: SinkCache
) -> EncodedPrefix:
    keys, values = [layer.keys for layer in past.layers], [layer.values for layer in past.layers]
    return EncodedPrefix(ids.copy(), buckets.copy(), body, keys, values, hidden, sinks.keys)


def _common(before: EncodedPrefix, ids: np.ndarray, buckets: np.ndarray) -> int:
    """Number of positions at the beginning whose tokens and buckets are the same."""
    length = min(before.num_positions, len(ids))
    same = (before.ids[:length] == ids[:length]) & (before.buckets[:length] == buckets[:length]).all(axis=1)
    return length if same.all() else int(np.argmin(same))


def score_packed(
    model: torch.nn.Module,
    prefix: EncodedPrefix,
    own: Sequence[np.ndarray],
    max_tokens: int,
    statistics: torch.Tensor | None = None,
) -> torch.Tensor:
    """Logits of candidates that go on after a prefix: several of them in one row, each seeing the prefix and itself.

    The candidates' positions all begin at P, as if each stood alone. They hold no sinks, so the sink bias, which joins sinks
    only, is zero in their rows: what it did to the prefix is in the cache.

    Args:
        model: a [`CTRSinkForCTR`] with a decoder. own: C arrays of token ids, each of at least one.
        max_tokens: most positions of a pack (bounded by an own limit, above which packs only get slower).
        statistics: (C, Fs) float32 scaled statistics of the candidates, for a model that reads them.

    Returns:
        (C,) float32 on the CPU.
    """
    device, dtype = next(model.parameters()).device, _dtype(model)
    language_model = model.model.language_model
    lengths = np.array([len(ids) for ids in own])
    begin = prefix.hidden.float().sum(0)
    logits = torch.empty(len(own))
    for chosen in packs(lengths, min(max_tokens, _PACK)):
        ids = torch.from_numpy(np.concatenate([own[i] for i in chosen]).astype(np.int64)).to(device)
        sizes = torch.from_numpy(lengths[chosen]).to(device)
        segment = torch.repeat_interleave(torch.arange(len(chosen), device=device), sizes)
        start = sizes.cumsum(0) - sizes
        place = torch.arange(len(ids), device=device) - start[segment]
        alone = (segment[:, None] == segment).tril()
        mask = torch.zeros(len(ids), prefix.num_positions + len(ids), dtype=dtype, device=device)
        mask[:, prefix.num_positions :].masked_fill_(~alone, torch.finfo(dtype).min)
        past = DynamicCache(config=model.config.text_config)
        for layer, (key, value) in enumerate(zip(prefix.keys, prefix.values, strict=True)):
            past.update(key, value, layer)
        # Not through CTRSinkModel: without sinks there is nothing to embed and no bias to add.
        hidden = language_model(
            inputs_embeds=language_model.get_input_embeddings()(ids)[None],
            attention_mask=mask[None, None],
            position_ids=prefix.num_positions + place[None],
            past_key_values=past,
            use_cache=True,
        ).last_hidden_state[0]
        total = begin.expand(len(chosen), -1).index_add(0, segment, hidden.float())
        pooled = (total / (prefix.num_positions + sizes[:, None])).to(hidden.dtype)
        one = torch.ones(len(chosen), 1, dtype=torch.bool, device=device)
        places = torch.from_numpy(chosen)
        beside = None if statistics is None else statistics[places]
        logits[places] = model.head(pooled[:, None], one, beside).float().cpu()
    return logits


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


def _dtype(model: torch.nn.Module) -> torch.dtype:
    return model.model.language_model.get_input_embeddings().weight.dtype
