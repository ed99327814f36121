"""What an exported graph takes: what its columns are called, and random batches to trace it and to compare it with."""

from __future__ import annotations

from typing import Any

import torch

from lmctr.models.common.configuration import CTRConfig
from lmctr.scaling.inputs import Axes, id_axis, id_tables, input_shapes


def graph_axes(config: CTRConfig, processor: Any) -> Axes:
    """The axes of each input of a graph, see [`input_shapes`]: with the weights of lists, where the processor reads some."""
    axes = dict(input_shapes(config))
    if any(getattr(field, "weight_separator", None) for field in getattr(processor, "fields", ())):
        axes["sequence_weights"] = axes["sequence_ids"]
    return axes


def names_of(processor: Any, name: str) -> list[str]:
    """What the columns of an input are called, in order; none where it has no columns, or its processor does not say."""
    side, _, own = name.partition("_")
    if side in ("user", "ad") and hasattr(processor, side):  # of impressions
        return names_of(getattr(processor, side), own)
    kind = {"input_ids": "id", "numeric_values": "value", "sequence_ids": "list", "sequence_weights": "list"}.get(name)
    if kind is not None:
        return [field.name for field in getattr(processor, "fields", ()) if getattr(field, "kind", None) == kind]
    if name == "statistics":
        reader = getattr(processor, "statistics_reader", None)
        return list(getattr(processor, "statistics", ()) if reader is None else reader.names)
    if not name.endswith("_features"):
        return []
    names = getattr(processor, f"{'user' if name == 'user_features' else 'item'}_feature_names", ())
    widths = processor.feature_widths(names) if names else ()
    return [own if width == 1 else f"{own}.{i}" for own, width in zip(names, widths) for i in range(width)]


def random_inputs(
    config: CTRConfig, batch: int, length: int, candidates: int, seed: int = 0, axes: Axes | None = None
) -> dict[str, torch.Tensor]:
    """A batch that fits a model: ids of all its tables, histories and texts of different lengths, padded on the right. `axes`: of
    [`graph_axes`]; default: of [`input_shapes`]."""
    generator = torch.Generator().manual_seed(seed)
    layout = getattr(config, "layout", "single")
    least = config.num_fields if layout == "fields" else 2  # tokens of a row
    length = length if layout != "fields" else max(length, least)
    sizes = {"batch": batch, "length": length, "candidates": candidates}

    def ids(shape: tuple[int, ...], high: int, low: int = 0) -> torch.Tensor:
        return torch.randint(low, max(high, low + 1), shape, generator=generator)

    axes = input_shapes(config) if axes is None else axes
    shapes = {name: tuple(sizes.get(axis, axis) for axis in own) for name, own in axes.items()}
    lengths = (length - torch.arange(batch) * 2).clamp_min(min(length, least))
    inside = torch.arange(length) < lengths[:, None]  # (B, L)
    found = {}
    for name, shape in shapes.items():
        tables = id_tables(config, name)
        if tables is not None:  # an id of its own table per column
            axis = id_axis(name)
            columns = [ids(shape[:axis] if axis == -1 else (shape[0], shape[2]), size) for size in tables]
            found[name] = torch.stack(columns, axis)
            if "sequence" in name:
                found[name] = found[name] * inside[:, None]
            if name.endswith(("input_ids", "sequence_ids")):  # as the processors make them
                found[name] = found[name].int()
        elif name in ("numeric_values", "statistics", "user_numeric_values", "ad_numeric_values"):
            found[name] = torch.randn(shape, generator=generator)
        elif name == "sequence_weights":
            found[name] = torch.rand(shape, generator=generator) * inside[:, None]
    if "attention_mask" in shapes:
        found["input_ids"] = ids(shapes["input_ids"], config.text_config.vocab_size)
        found["attention_mask"] = inside.long()
        places = torch.arange(length).expand(batch, -1)
        # Every other place inside is a sink; with several texts every third, and two tokens between them are a field.
        is_sink = (places % (2 if layout == "single" else 3) == 1) & (places < max(length - 2, 2)) & inside
        if layout == "fields":
            found["field_ids"] = (places * least // lengths[:, None]).masked_fill(~inside, -1)
            is_sink &= found["field_ids"] < config.num_history_fields
        elif layout == "split":
            opens = is_sink | is_sink.roll(1, 1) | (places == 0)
            found["field_ids"] = (opens.cumsum(1) - 1).masked_fill(~inside, -1)
        if getattr(config, "max_sinks", None) is not None:
            is_sink &= is_sink.cumsum(1) <= config.max_sinks
        if "sink_buckets" in shapes:
            found["sink_buckets"] = torch.full(shapes["sink_buckets"], -1)
            found["sink_buckets"][is_sink] = 0
        if "target_mask" in shapes:  # the last place
            found["target_mask"] = torch.arange(length) == lengths[:, None] - 1
    if "ad_mask" in shapes:
        found["ad_mask"] = torch.arange(candidates) < (candidates - torch.arange(batch)).clamp_min(1)[:, None]
    if "history_items" in shapes:
        times = ids((batch, length), 5000).cumsum(1) + 1_700_000_000
        found["history_items"] = ids((batch, length), config.item_vocab_size, 1) * inside
        found["history_behaviors"] = ids((batch, length), config.num_behaviors) * inside
        found["history_scenarios"] = ids((batch, length), config.num_scenarios) * inside
        found["history_times"] = times * inside
        shape = (batch, candidates)
        found["candidate_items"] = ids(shape, config.item_vocab_size, 1)
        found["candidate_scenarios"] = ids(shape, config.num_scenarios)
        found["candidate_times"] = times[:, -1:] + ids(shape, 90_000)
        found["dependence"] = lengths[:, None].expand(shape).clone()
    return {name: found[name] for name in shapes}
