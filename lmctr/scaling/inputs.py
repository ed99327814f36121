"""Random inputs of fixed size for any model of the library: what FLOPs are counted on and load tests send.

Algorithm 1 of arXiv 2411.13322 measures models on randomly initialised tensors of fixed
length. A kind of input is a row of `_KINDS`: the shared configuration class of its families, the axes of what they take, and functions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from lmctr.utils.rows import is_whole

__all__ = ["RequestShape", "id_tables", "input_shapes", "random_inputs", "request_shape"]

Axes = dict[str, tuple[str | int, ...]]

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
    default = _kind(config).shape(config)
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
    generator, kind = torch.Generator().manual_seed(seed), _kind(config)
    shape = kind.shape(config) if shape is None else shape
    rows = num_requests * (1 if kind.has_candidates else shape.candidates)
    sizes = {"batch": rows, "length": shape.length, "candidates": shape.candidates}
    shapes = {name: tuple(sizes.get(axis, axis) for axis in axes) for name, axes in input_shapes(config).items()}
    found = kind.own(config, shapes, generator)
    for name in sorted(shapes, key=_drawn_as):
        if (tables := id_tables(config, name)) is not None:
            axis = id_axis(name)
            own = shapes[name][:axis] if axis == -1 else (rows, shape.length)
            found[name] = torch.stack([_ids(size, own, generator) for size in tables], axis)
        elif _drawn_as(name) == 1:
            values = torch.randn(shapes[name], generator=generator)
            found[name] = values.abs() if name.startswith(("user", "ad")) else values
    return {name: found[name] for name in shapes if name in found}


def _drawn_as(name: str) -> int:
    """Ids are drawn first, then numbers, then sequences."""
    return 2 if "sequence" in name else 1 if name.endswith("numeric_values") or name == "statistics" else 0


def input_shapes(config: Any) -> Axes:
    """The axes of each input of a model by its name: "batch", "length" or "candidates" where it varies, else its size; without inputs that
    have no column. Raises `ValueError` for a configuration of a kind that is not known."""
    return {name: shape for name, shape in _kind(config).axes(config).items() if 0 not in shape}


def id_tables(config: Any, name: str) -> list[int] | None:
    """The number of ids of each column of an input, None where it holds none of tables."""
    if name == "input_ids":
        return getattr(config, "vocab_sizes", None)
    if name in ("history_features", "candidate_features"):
        return config.feature_sizes("item")
    if name == "user_features":
        return config.feature_sizes("user")
    if name in ("user_input_ids", "ad_input_ids"):
        return getattr(config, name.replace("input_ids", "vocab_sizes"))
    if name == "sequence_ids":
        sizes = config.vocab_sizes + config.sequence_vocab_sizes
        return [sizes[table] for table in config.sequence_tables]
    if name == "user_sequence_ids":
        sizes = config.user_vocab_sizes + config.ad_vocab_sizes + config.user_sequence_vocab_sizes
        return [sizes[table] for table in config.user_sequence_tables]
    return None


def id_axis(name: str) -> int:
    """The axis of the columns of ids: 1 of sequences, else the last."""
    return 1 if "sequence" in name else -1


class _Kind(NamedTuple):
    """A kind of input. axes: see [`input_shapes`]. own: its inputs that are no ids of tables and no plain numbers. has_candidates: whether a
    row holds all candidates of a request."""

    axes: Callable[[Any], Axes]
    own: Callable[[Any, dict[str, tuple[int, ...]], torch.Generator], dict[str, torch.Tensor]]
    shape: Callable[[Any], RequestShape]
    has_candidates: bool


def _kind(config: Any) -> _Kind:
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


# ---- texts ----


def _text_axes(config: Any) -> Axes:
    tokens = ("batch", "length")
    axes: Axes = {"input_ids": tokens, "attention_mask": tokens}
    if config.sink_kind != "none":
        axes["sink_buckets"] = tokens if len(config.signals) == 1 else (*tokens, len(config.signals))
    if config.layout != "single":
        axes["field_ids"] = tokens
    if config.encoder_prefix:
        axes["target_mask"] = tokens
    return axes | {"statistics": ("batch", config.num_statistics)}


def _text(config: Any, shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Rows of behaviours, each but the last (the target) with a sink at its end, of 12 tokens or as many as make no more than the model reads."""
    rows, length = shapes["input_ids"]
    width = max(_TOKENS_PER_BEHAVIOUR, (length - 1) // (_most_behaviours(config, length) + 1) + 1)
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
    is_sink = (place % width == width - 1) & (place < length - 1)
    has_sinks = config.sink_kind != "none"
    if has_sinks:
        signals = config.signals
        buckets = torch.randint(config.num_sink_buckets, (rows, length, len(signals)), generator=generator)
        if config.sink_kind == "cls" or signals == ("none",):
            buckets = torch.zeros_like(buckets)
        buckets = buckets.masked_fill(~is_sink[None, :, None], -1)
        inputs["sink_buckets"] = buckets[..., 0] if len(signals) == 1 else buckets
    if config.encoder_prefix:
        inputs["target_mask"] = (place >= width * ((length - 1) // width)).expand(rows, length).contiguous()
    if config.layout == "split":  # each behaviour, each sink and the target are an element
        behaviours = place // width
        fields = 2 * behaviours + is_sink.long() if has_sinks else behaviours
        inputs["field_ids"] = fields.expand(rows, length).contiguous()
    if config.layout == "fields":  # equal parts of the row, without sinks in the target's
        fields = place * config.num_fields // length
        inputs["field_ids"] = fields.expand(rows, length).contiguous()
        if has_sinks:
            inputs["sink_buckets"][:, fields >= config.num_history_fields] = -1
    return inputs


def _most_behaviours(config: Any, length: int) -> int:
    """Behaviours of a history that a model's bounds on sinks and elements allow, at most `length`."""
    bounds = [length]
    if config.max_sinks is not None:
        bounds.append(config.max_sinks)
    if config.max_elements is not None:  # the target is one too, and so is each sink
        bounds.append((config.max_elements - 1) // (1 if config.sink_kind == "none" else 2))
    return min(bounds)


def _text_shape(config: Any) -> RequestShape:
    longest = getattr(config.text_config, "max_position_embeddings", None) or 256
    return RequestShape(1, min(256, longest - 2))  # RoBERTa counts positions from 2


# ---- rows of a table ----


def _row_axes(config: Any) -> Axes:
    sequences = ("batch", config.num_sequences, "length")
    return {
        "input_ids": ("batch", len(config.vocab_sizes)),
        "numeric_values": ("batch", config.num_numeric),
        "sequence_ids": sequences,
    }


# ---- histories of events ----


def _history_axes(config: Any) -> Axes:
    history, candidates = ("batch", "length"), ("batch", "candidates")
    of_items = len(config.feature_sizes("item"))
    return {
        **{f"history_{name}": history for name in ("items", "behaviors", "scenarios", "times")},
        **{f"candidate_{name}": candidates for name in ("items", "scenarios", "times")},
        "dependence": candidates,
        "history_features": (*history, of_items),
        "candidate_features": (*candidates, of_items),
        "user_features": ("batch", len(config.feature_sizes("user"))),
        "statistics": (*candidates, config.num_statistics),
    }


def _history(config: Any, shapes: dict[str, tuple[int, ...]], generator: torch.Generator) -> dict[str, torch.Tensor]:
    events, candidates, day = shapes["history_items"], shapes["candidate_items"], 86_400
    return {
        "history_items": _ids(config.item_vocab_size, events, generator),
        "history_behaviors": torch.randint(config.num_behaviors, events, generator=generator),
        "history_scenarios": torch.randint(config.num_scenarios, events, generator=generator),
        "history_times": torch.randint(90 * day, events, generator=generator).sort(1).values + 1_500_000_000,
        "candidate_items": _ids(config.item_vocab_size, candidates, generator),
        "candidate_scenarios": torch.randint(config.num_scenarios, candidates, generator=generator),
        "candidate_times": torch.full(candidates, 1_500_000_000 + 91 * day),
    }


def _history_shape(config: Any) -> RequestShape:
    wanted = getattr(config, "sequence_length", None) or config.max_history_length or 100
    return RequestShape(1, wanted)


# ---- impressions ----


def _impression_axes(config: Any) -> Axes:
    ads = ("batch", "candidates")
    return {
        "user_input_ids": ("batch", len(config.user_vocab_sizes)),
        "user_numeric_values": ("batch", config.user_num_numeric),
        "user_sequence_ids": ("batch", config.user_num_sequences, "length"),
        "ad_input_ids": (*ads, len(config.ad_vocab_sizes)),
        "ad_numeric_values": (*ads, config.ad_num_numeric),
        "ad_mask": ads,
    }


_KINDS = {
    "CTRSinkConfig": _Kind(_text_axes, _text, _text_shape, False),
    "TabularCTRConfig": _Kind(_row_axes, lambda *given: {}, lambda config: RequestShape(1, 50), False),
    "SequenceCTRConfig": _Kind(_history_axes, _history, _history_shape, True),
    "RetrievalConfig": _Kind(
        _impression_axes,
        lambda config, shapes, generator: {"ad_mask": torch.ones(shapes["ad_mask"], dtype=torch.bool)},
        lambda config: RequestShape(100, 50),
        True,
    ),
}
