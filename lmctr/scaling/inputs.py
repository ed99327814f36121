"""Random inputs of fixed size for any model of the library: what FLOPs are counted on and load tests send.

Algorithm 1 of "Scaling Laws for Online Advertisement Retrieval" (arXiv 2411.13322) measures models on randomly initialised tensors of fixed
length. A kind of input is a row of `_KINDS`: the shared configuration class of its families, and a function.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from lmctr.utils.rows import is_whole

__all__ = ["RequestShape", "random_inputs", "request_shape"]

_TOKENS_PER_BEHAVIOUR = 12  # of a text: the last one is the sink
_FIRST_ID = 2  # ids below mean padding and unknown


@dataclass(frozen=True)
class RequestShape:
    """The size of a request.

    Args:
        candidates: ads or items that a request scores. Families that read one candidate per row (text, tables) get a row of the batch for each.
        length: tokens of a text (history and target), events of a user's history; not read where there are no sequences.
    """

    candidates: int = 1
    length: int = 100

    def __post_init__(self):
        for name in ("candidates", "length"):
            value = getattr(self, name)
            if not is_whole(value):
                raise ValueError(f"{name} must be a whole number of at least 1, got {value!r}")


def request_shape(config: Any, candidates: int | None = None, length: int | None = None) -> RequestShape:
    """The shape of a model's requests; what is None has its kind's default.

    Defaults: a text has 1 candidate and 256 tokens (fewer where the backbone takes fewer), a table's row 1 candidate and sequences of 50, a user's
    history 1 candidate and `sequence_length`, `max_history_length` or 100 events, an impression 100 ads and sequences of 50.
    """
    default = _kind(config)[1](config)
    if candidates is not None:
        default = dataclasses.replace(default, candidates=candidates)
    if length is not None:
        default = dataclasses.replace(default, length=length)
    return default


def random_inputs(
    config: Any, shape: RequestShape | None = None, num_requests: int = 1, seed: int = 0
) -> dict[str, torch.Tensor]:
    """What a model's `forward` takes, at random, without padding and without labels.

    Args:
        config: the configuration of a model of the library. shape: of each request; default: `request_shape(config)`.
        num_requests: requests in the batch. seed: of the values.

    Returns:
        The inputs; the model gives `num_requests * shape.candidates` logits (for each task).

    Raises:
        ValueError: a configuration of a kind that is not known, fewer than one request.
    """
    if num_requests < 1:
        raise ValueError(f"num_requests must be at least 1, got {num_requests}")
    generator = torch.Generator().manual_seed(seed)
    make, _ = _kind(config)
    return make(config, request_shape(config) if shape is None else shape, num_requests, generator)


def _kind(config: Any) -> tuple[Callable, Callable]:
    for base in type(config).__mro__:
        if base.__name__ in _KINDS:
            return _KINDS[base.__name__]
    raise ValueError(
        f"no random inputs are known for {type(config).__name__}; known are configurations of {', '.join(_KINDS)}"
    )


def _ids(size: int, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Ids of known values; of a vocabulary without any, the unknown one."""
    low = min(_FIRST_ID, size - 1)
    return torch.randint(low, size, shape, generator=generator)


def _columns(sizes: list[int], shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """(*shape, len(sizes)) ids, a vocabulary per column."""
    return torch.stack([_ids(size, shape, generator) for size in sizes], -1)


# ---- texts --------------------------------------------------------------------------------------------------------


def _text(config: Any, shape: RequestShape, requests: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows of behaviours of 12 tokens, each but the last (the target) followed by a sink."""
    rows, length = requests * shape.candidates, shape.length
    inputs = {
        "input_ids": torch.randint(
            min(5, config.text_config.vocab_size - 1),
            config.text_config.vocab_size,
            (rows, length),
            generator=generator,
        ),
        "attention_mask": torch.ones(rows, length, dtype=torch.long),
    }
    place = torch.arange(length)
    is_sink = (place % _TOKENS_PER_BEHAVIOUR == _TOKENS_PER_BEHAVIOUR - 1) & (place < length - 1)
    has_sinks = config.sink_kind != "none"
    if has_sinks:
        signals = config.signals
        buckets = torch.randint(config.num_sink_buckets, (rows, length, len(signals)), generator=generator)
        if config.sink_kind == "cls" or signals == ("none",):
            buckets = torch.zeros_like(buckets)
        buckets = buckets.masked_fill(~is_sink[None, :, None], -1)
        inputs["sink_buckets"] = buckets[..., 0] if len(signals) == 1 else buckets
    if config.encoder_prefix:
        inputs["target_mask"] = (
            (place >= _TOKENS_PER_BEHAVIOUR * ((length - 1) // _TOKENS_PER_BEHAVIOUR))
            .expand(rows, length)
            .contiguous()
        )
    if config.layout == "split":  # each behaviour, each sink and the target are an element
        behaviours = place // _TOKENS_PER_BEHAVIOUR
        fields = 2 * behaviours + is_sink.long() if has_sinks else behaviours
        inputs["field_ids"] = fields.expand(rows, length).contiguous()
    if config.layout == "fields":  # equal parts of the row, without sinks in the target's
        fields = place * config.num_fields // length
        inputs["field_ids"] = fields.expand(rows, length).contiguous()
        if has_sinks:
            inputs["sink_buckets"][:, fields >= config.num_history_fields] = -1
    if config.num_statistics:
        inputs["statistics"] = torch.randn(rows, config.num_statistics, generator=generator)
    return inputs


def _text_shape(config: Any) -> RequestShape:
    longest = getattr(config.text_config, "max_position_embeddings", None) or 256
    return RequestShape(1, min(256, longest - 2))  # RoBERTa counts positions from 2


# ---- rows of a table ----------------------------------------------------------------------------------------------


def _row(config: Any, shape: RequestShape, requests: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    rows = requests * shape.candidates
    inputs = {}
    if config.vocab_sizes:
        inputs["input_ids"] = _columns(config.vocab_sizes, (rows,), generator)
    if config.num_numeric:
        inputs["numeric_values"] = torch.randn(rows, config.num_numeric, generator=generator)
    if config.num_sequences:
        tables = [*config.vocab_sizes, *config.sequence_vocab_sizes]
        inputs["sequence_ids"] = torch.stack(
            [_ids(tables[table], (rows, shape.length), generator) for table in config.sequence_tables], 1
        )
    return inputs


# ---- histories of events ------------------------------------------------------------------------------------------


def _history(config: Any, shape: RequestShape, requests: int, generator: torch.Generator) -> dict[str, torch.Tensor]:
    events, candidates = (requests, shape.length), (requests, shape.candidates)
    day = 86_400
    inputs = {
        "history_items": _ids(config.item_vocab_size, events, generator),
        "history_behaviors": torch.randint(config.num_behaviors, events, generator=generator),
        "history_scenarios": torch.randint(config.num_scenarios, events, generator=generator),
        "history_times": torch.randint(90 * day, events, generator=generator).sort(1).values + 1_500_000_000,
        "candidate_items": _ids(config.item_vocab_size, candidates, generator),
        "candidate_scenarios": torch.randint(config.num_scenarios, candidates, generator=generator),
        "candidate_times": torch.full(candidates, 1_500_000_000 + 91 * day),
    }
    if config.item_feature_vocab_sizes:
        inputs["history_features"] = _columns(config.item_feature_vocab_sizes, events, generator)
        inputs["candidate_features"] = _columns(config.item_feature_vocab_sizes, candidates, generator)
    if config.user_feature_vocab_sizes:
        inputs["user_features"] = _columns(config.user_feature_vocab_sizes, (requests,), generator)
    if config.num_statistics:
        inputs["statistics"] = torch.randn(*candidates, config.num_statistics, generator=generator)
    return inputs


def _history_shape(config: Any) -> RequestShape:
    wanted = getattr(config, "sequence_length", None) or config.max_history_length or 100
    return RequestShape(1, wanted)


# ---- impressions --------------------------------------------------------------------------------------------------


def _impression(
    config: Any, shape: RequestShape, requests: int, generator: torch.Generator
) -> dict[str, torch.Tensor]:
    ads = (requests, shape.candidates)
    inputs = {"ad_mask": torch.ones(ads, dtype=torch.bool)}
    if config.user_vocab_sizes:
        inputs["user_input_ids"] = _columns(config.user_vocab_sizes, (requests,), generator)
    if config.ad_vocab_sizes:
        inputs["ad_input_ids"] = _columns(config.ad_vocab_sizes, ads, generator)
    if config.user_num_numeric:
        inputs["user_numeric_values"] = torch.randn(requests, config.user_num_numeric, generator=generator).abs()
    if config.ad_num_numeric:
        inputs["ad_numeric_values"] = torch.randn(*ads, config.ad_num_numeric, generator=generator).abs()
    if config.user_num_sequences:
        tables = [*config.user_vocab_sizes, *config.ad_vocab_sizes, *config.user_sequence_vocab_sizes]
        inputs["user_sequence_ids"] = torch.stack(
            [_ids(tables[table], (requests, shape.length), generator) for table in config.user_sequence_tables], 1
        )
    return inputs


_KINDS: dict[str, tuple[Callable, Callable[[Any], RequestShape]]] = {
    "CTRSinkConfig": (_text, _text_shape),
    "TabularCTRConfig": (_row, lambda config: RequestShape(1, 50)),
    "SequenceCTRConfig": (_history, _history_shape),
    "RetrievalConfig": (_impression, lambda config: RequestShape(100, 50)),
}
