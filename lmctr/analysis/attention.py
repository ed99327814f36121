"""Attention on sinks: Eq. 7 and Eq. 8 of CTR-Sink (arXiv 2508.03668), and attention maps (its Figs. 1, 3, 6).

Shapes: B batch, N tokens, A heads, L layers, S samples.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from lmctr.models.common.base import IGNORED_LABEL, evaluation_mode, plain_model
from lmctr.models.ctr_sink.configuration_ctr_sink import BACKBONES
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR, CTRSinkModel
from lmctr.models.ctr_sink.split_layout import cut_fields
from lmctr.utils.rows import each_batch

_INPUTS = ("input_ids", "attention_mask", "sink_buckets", "position_ids", "target_mask", "field_ids")


@dataclass(frozen=True, eq=False)
class SinkAttention:
    """Shares of attention that go to sinks, per sample and layer.

    Attributes:
        to_sinks: (S, L) float64, Eq. 7: attention mass on sinks, mean over heads and over the sample's real tokens as queries. 0 in a
            sample without sinks.
        between_sinks: (S, L) float64, Eq. 8: the same with the sample's sinks as queries only. NaN in a sample without sinks.
        uniform_to_sinks, uniform_between_sinks: (S,) float64, what the two would be if every query spread its attention evenly over
            the tokens that it may see (causal models: itself and earlier ones; those of a sliding window), mean over layers. The level to
            compare with; not in the paper.
        num_sinks, num_tokens: (S,) int64 of each sample, padding not counted; with `layout="split"` elements count as tokens.
        first_layer: number of the first of the L layers in the language model: above 0 with `layout="split"`.
    """

    to_sinks: np.ndarray
    between_sinks: np.ndarray
    uniform_to_sinks: np.ndarray
    uniform_between_sinks: np.ndarray
    num_sinks: np.ndarray
    num_tokens: np.ndarray
    first_layer: int = 0

    @property
    def num_samples(self) -> int:
        """Samples measured."""
        return len(self.num_sinks)

    @property
    def num_layers(self) -> int:
        """Layers L that were measured."""
        return self.to_sinks.shape[1]

    @property
    def num_without_sinks(self) -> int:
        """Samples without sinks (empty histories, `sink_kind="none"`): 0 in Eq. 7, left out of Eq. 8."""
        return int((self.num_sinks == 0).sum())

    @property
    def mean_to_sinks(self) -> np.ndarray:
        """(L,) Eq. 7 averaged over all samples, each sample counting once whatever its length."""
        return self.to_sinks.mean(0)

    @property
    def mean_between_sinks(self) -> np.ndarray:
        """(L,) Eq. 8 averaged over the samples with sinks; NaN when there is none."""
        return _mean_or_nan(self.between_sinks[self.num_sinks > 0])

    @property
    def mean_uniform_to_sinks(self) -> float:
        """`uniform_to_sinks` averaged as Eq. 7 is."""
        return float(self.uniform_to_sinks.mean())

    @property
    def mean_uniform_between_sinks(self) -> float:
        """`uniform_between_sinks` averaged as Eq. 8 is; NaN when no sample has sinks."""
        return float(_mean_or_nan(self.uniform_between_sinks[self.num_sinks > 0, None])[0])


@dataclass(frozen=True, eq=False)
class AttentionMap:
    """Attention inside one sample, without its padding. n is the sample's number of tokens; of elements with `layout="split"`.

    Attributes:
        weights: (n, n) float32; row = query, column = key; each row sums to 1.
        tokens: n labels (texts of the tokens or elements, or their ids when no tokenizer was given).
        is_sink, is_target: (n,) bool, the sinks and the target item's tokens.
        buckets: n tuples of sink buckets, one number per signal; empty where the token is no sink.
        layer, head: what the map shows: an index, or "mean" for the mean over all.
    """

    weights: np.ndarray
    tokens: list[str]
    is_sink: np.ndarray
    is_target: np.ndarray
    buckets: list[tuple[int, ...]]
    layer: int | str
    head: int | str

    @property
    def where(self) -> str:
        """Layer and head in words."""
        shown = (("layer", self.layer), ("head", self.head))
        return ", ".join(f"mean over {what}s" if one == "mean" else f"{what} {one}" for what, one in shown)


@torch.no_grad()
def sink_attention(model: nn.Module, batches: Iterable[Mapping[str, torch.Tensor]]) -> SinkAttention:
    """Measure how much attention goes to sinks (Eq. 7) and from sinks to sinks (Eq. 8) in every layer.

    The language model runs with eager attention and without dropout, whatever it was set to; both are put back afterwards. Each
    layer's attention is reduced to (B,) numbers before the next layer runs, so one (B, A, N, N) tensor is held at a time. (Types of
    language models without a known place of their attention return the layers of a batch together.) Sinks are the positions with a
    bucket >= 0; for `sink_kind="cls"` these are the inserted [CLS] tokens, not the one that opens the text. With `layout="fields"` the
    layers are those of the lower half, where a token sees its own field; with `"split"` those of the upper half, between elements.

    Args:
        model: `CTRSinkForCTR` or `CTRSinkModel`, or a PEFT model around one. It stays on its device.
        batches: batches as the model takes them: `input_ids`, `attention_mask`, `sink_buckets`, `field_ids` (others are ignored). Rows whose
            `labels` are -100 (filler rows) are left out.

    Returns:
        `SinkAttention` with the samples in the order of the batches.

    Raises:
        ValueError: another kind of model, no rows, or a language model that cannot run eager attention.

    Example:

    ```python
    >>> measured = sink_attention(model, [view.batch(events[:8]), view.batch(events[8:16])])
    >>> measured.mean_to_sinks  # one share per layer
    ```
    """
    base = _base_model(model)
    columns: dict[str, list[np.ndarray]] = {}
    with _eager_attention(base):
        for batch in each_batch(batches):
            inputs = _inputs(base, batch)
            keep = np.ones(len(inputs["input_ids"]), dtype=bool)
            if batch.get("labels") is not None:
                keep = (batch["labels"] != IGNORED_LABEL).cpu().numpy()
            for name, values in _measure(base, inputs).items():
                columns.setdefault(name, []).append(values[keep])
    if not sum(map(len, columns.get("num_sinks", ()))):
        raise ValueError("batches: no rows to measure; give at least one batch with a row that is no filler")
    measured = {name: np.concatenate(values) for name, values in columns.items()}
    return SinkAttention(**measured, first_layer=base.config.layers_with_sinks.start)


@torch.no_grad()
def attention_map(
    model: nn.Module,
    batch: Mapping[str, torch.Tensor],
    row: int,
    layer: int | None = None,
    head: int | str = "mean",
    tokenizer: Any = None,
) -> AttentionMap:
    """Attention from every token of a sample to every other one; with `layout="split"` from element to element (a text or a sink).

    Args:
        model: as in [`sink_attention`]; runs in the same way.
        batch: a batch as the model takes it.
        row: which row of the batch.
        layer: layer index, 0 = first, -1 = last; None: the mean over all layers (those of [`sink_attention`]).
        head: head index, or "mean".
        tokenizer: tokenizer or processor that made the batch, for the labels; None: token ids as labels.

    Returns:
        `AttentionMap` without padding.

    Raises:
        ValueError: `row`, `layer` or `head` out of range, another kind of model, no eager attention.
    """
    base = _base_model(model)
    inputs = _inputs(base, batch)
    size = len(inputs["input_ids"])
    row = _index("row", row, range(size), f"the batch has {size} rows")
    config = base.config.text_config
    if layer is not None:
        layers = base.config.layers_with_sinks
        layer = _index("layer", layer, layers, f"the language model has {len(layers)} layers that sinks pass")
    if head != "mean":
        count = config.num_attention_heads
        head = _index("head", head, range(count), f"the language model has {count} heads", ', or "mean"')
    # The row alone: a row's attention does not depend on its batch.
    inputs = {name: values[row : row + 1] for name, values in inputs.items()}
    real, buckets = (values[0] for values in _places(base, inputs))
    found: list[torch.Tensor] = []

    def visit(index: int, weights: torch.Tensor) -> None:
        if layer is None or index == layer:
            part = weights[0].mean(0, dtype=_wide(weights)) if head == "mean" else weights[0, head].to(_wide(weights))
            found.append(part[real][:, real])

    with _eager_attention(base):
        _each_layer(base, inputs, visit)
    weights = torch.stack(found).mean(0).float().cpu().numpy()
    buckets, ids = buckets[real].tolist(), inputs["input_ids"][0]
    if base.config.layout == "split":  # every element with its tokens; the target is the last one
        owner = inputs["field_ids"][0].masked_fill(~inputs["attention_mask"][0].bool(), -1)
        texts = [ids[owner == number].tolist() for number in range(len(buckets))]
        labels = [" ".join(map(str, text)) if tokenizer is None else _plain(tokenizer).decode(text) for text in texts]
        is_target = np.arange(len(texts)) == len(texts) - 1
    else:
        ids, is_target = ids[real].tolist(), np.zeros(len(buckets), dtype=bool)
        labels = [str(number) for number in ids] if tokenizer is None else token_labels(tokenizer, ids)
        if batch.get("target_mask") is not None:
            is_target = batch["target_mask"][row].bool().cpu()[real.cpu()].numpy()
    return AttentionMap(
        weights=weights,
        tokens=labels,
        is_sink=np.array([entry[0] >= 0 for entry in buckets], dtype=bool),
        is_target=is_target,
        buckets=[tuple(entry) if entry[0] >= 0 else () for entry in buckets],
        layer="mean" if layer is None else layer,
        head=head,
    )


def token_labels(tokenizer: Any, ids: list[int]) -> list[str]:
    """Readable texts of token ids, one per token; a blank that belongs to a token is kept.

    Byte-level tokenizers may cut a character into several tokens: the first of them gets the character, the others "·".

    Args:
        tokenizer: a tokenizer, or a processor that holds one.
        ids: token ids of one text.
    """
    tokenizer = _plain(tokenizer)
    special = set(tokenizer.all_special_ids) | set(tokenizer.added_tokens_decoder)
    labels: list[str] = []
    place = 0
    while place < len(ids):
        if ids[place] in special:
            labels.append(str(tokenizer.convert_ids_to_tokens(ids[place])))
            place += 1
            continue
        # A character of UTF-8 has at most four bytes, so at most four tokens.
        for count in range(1, min(4, len(ids) - place) + 1):
            text = tokenizer.decode(ids[place : place + count], clean_up_tokenization_spaces=False)
            if not text.endswith("\ufffd"):
                break
        else:
            count, text = 1, tokenizer.decode(ids[place : place + 1], clean_up_tokenization_spaces=False)
        labels += [text, *["·"] * (count - 1)]
        place += count
    return labels


def text_of(labels: Sequence[str]) -> str:
    """The text of some `token_labels` in a row."""
    labels = [label for label in labels if label != "·"]
    if any(label.startswith(" ") for label in labels):  # byte-level tokens bring their blanks along
        return "".join(labels).strip()
    text = re.sub(r" (?=[),.:;!?'’])|(?<=[('’]) ", "", " ".join(labels).replace(" ##", ""))
    return re.sub(r"(?<=[\u2e80-\uffef]) (?=[\u2e80-\uffef])", "", text)


def _plain(tokenizer: Any) -> Any:
    """The tokenizer itself, or that of a processor."""
    return getattr(tokenizer, "tokenizer", tokenizer)


def _places(base: CTRSinkModel, inputs: dict[str, torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """What attends: which tokens, or with `layout="split"` elements, are real, (B, N), and their buckets, (B, N, S)."""
    real, buckets = inputs["attention_mask"].bool(), inputs["sink_buckets"]
    buckets = buckets[..., None] if buckets.dim() == 2 else buckets
    if base.config.layout == "split":
        owner = inputs["field_ids"].masked_fill(~real, -1)
        fields = cut_fields(inputs["input_ids"], owner, buckets, sinks_are_text=False, unique=False)
        return fields.mask, fields.buckets
    return (real & (inputs["field_ids"] >= 0) if base.config.layout == "fields" else real), buckets


def _measure(base: CTRSinkModel, inputs: dict[str, torch.Tensor]) -> dict[str, np.ndarray]:
    """The columns of `SinkAttention` for one batch, a row per row of the batch."""
    real, buckets = _places(base, inputs)
    is_sink = (buckets[..., 0] >= 0) & real
    num_tokens, num_sinks = real.sum(1), is_sink.sum(1)

    def over_queries(share: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
        """(B, N) share of each query to its mean over the row's `queries`, NaN where there are none."""
        return share.double().masked_fill(~queries, 0.0).sum(1) / queries.sum(1)

    to_sinks: list[torch.Tensor] = []
    between_sinks: list[torch.Tensor] = []

    def visit(index: int, weights: torch.Tensor) -> None:
        mean = weights.mean(1, dtype=_wide(weights))  # (B, N, N)
        share = mean.masked_fill(~is_sink[:, None, :], 0.0).sum(-1)
        to_sinks.append(over_queries(share, real))
        between_sinks.append(over_queries(share, is_sink))

    _each_layer(base, inputs, visit)
    causal, same = _is_causal(base), real[:, None, :].expand(-1, real.shape[1], -1)
    if base.config.encoder_prefix:  # what stands before the target does not see it
        own = inputs["target_mask"].long().cumsum(1) > 0
        same = same & (own[:, :, None] | ~own[:, None, :])
    elif base.config.layout == "fields":  # a token sees its own field
        same = same & (inputs["field_ids"][:, :, None] == inputs["field_ids"][:, None, :])
    same = same.tril() if causal else same
    place = torch.arange(real.shape[1], device=real.device)
    back = place[:, None] - place
    uniform = torch.zeros(real.shape, dtype=torch.float64, device=real.device)
    for window, num_layers in Counter(_windows(base, len(to_sinks))).items():
        seen = same if window is None else same & (back < window if causal else back.abs() <= window)
        uniform += num_layers * (seen & is_sink[:, None, :]).sum(-1) / seen.sum(-1).clamp_min(1).double()
    uniform /= len(to_sinks)
    columns = {
        "to_sinks": torch.stack(to_sinks, 1),
        "between_sinks": torch.stack(between_sinks, 1),
        "uniform_to_sinks": over_queries(uniform, real),
        "uniform_between_sinks": over_queries(uniform, is_sink),
        "num_sinks": num_sinks,
        "num_tokens": num_tokens,
    }
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _windows(base: CTRSinkModel, num_layers: int) -> list[int | None]:
    """How far each of the measured layers sees, None where it sees all; transformers counts the token itself in causal windows only."""
    config = base.config.text_config
    window, kinds = getattr(config, "sliding_window", None), getattr(config, "layer_types", None)
    layers = range(num_layers) if base.config.backbone_spec is None else base.config.layers_with_sinks
    if not kinds:  # all layers are alike; those of elements have no windows then
        return [None if base.config.layout == "split" else window for _ in layers]
    return [window if kinds[layer] == "sliding_attention" else None for layer in layers]


def _is_causal(base: CTRSinkModel) -> bool:
    if base.config.backbone_spec is not None:
        return base.is_causal
    return any(getattr(module, "is_causal", False) for module in base.language_model.modules())


def _each_layer(
    base: CTRSinkModel, inputs: dict[str, torch.Tensor], visit: Callable[[int, torch.Tensor], None]
) -> None:
    """Run the model and call `visit(layer index, weights (B, A, N, N))` for each layer, first to last."""
    if base.config.backbone_spec is None:  # the place of the attention modules is not known
        attentions = base(**inputs, output_attentions=True).attentions
        if not attentions or any(weights is None for weights in attentions):
            raise ValueError(_no_weights(base))
        for index, weights in enumerate(attentions):
            visit(index, weights)
        return

    def hook_of(index: int) -> Callable:
        def hook(module: nn.Module, args: tuple, output: Any) -> None:
            if not isinstance(output, tuple) or len(output) < 2 or output[1] is None:
                raise ValueError(_no_weights(base))
            visit(index, output[1])

        return hook

    with ExitStack() as hooks:
        attentions = base.self_attentions()
        for index in base.config.layers_with_sinks:
            hooks.enter_context(attentions[index].register_forward_hook(hook_of(index)))
        # Types that do not pass keywords on compute no weights to give unless they are asked.
        base(**inputs, **({} if base.config.backbone_spec.passes_keywords else {"output_attentions": True}))


def _no_weights(base: CTRSinkModel) -> str:
    return (
        f"{type(base.language_model).__name__} returns no attention weights under eager attention; "
        f"attention can be analysed for {', '.join(sorted(BACKBONES))} and other types that return them"
    )


@contextmanager
def _eager_attention(base: CTRSinkModel) -> Iterator[None]:
    """Eager attention, or ValueError where the model has none, and evaluation mode inside the block; what was set before afterwards."""
    language_model = base.language_model
    before = language_model.config._attn_implementation
    try:
        if before != "eager":
            language_model.set_attn_implementation("eager")
        if language_model.config._attn_implementation != "eager":
            raise ValueError(
                f"{type(language_model).__name__} runs {before!r} attention and cannot switch to eager attention, which "
                'returns the weights; load the model with attn_implementation="eager"'
            )
        with evaluation_mode(base):
            yield
    finally:
        if language_model.config._attn_implementation != before:
            language_model.set_attn_implementation(before)


def _base_model(model: nn.Module) -> CTRSinkModel:
    model = plain_model(model)
    base = model.model if isinstance(model, CTRSinkForCTR) else model
    if not isinstance(base, CTRSinkModel):
        raise ValueError(
            f"model: attention on sinks is measured in CTRSinkForCTR or CTRSinkModel, got {type(model).__name__}"
        )
    return base


def _inputs(base: CTRSinkModel, batch: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What the model reads of a batch, on its device, with defaults filled in."""
    if "input_ids" not in batch:
        raise ValueError(f"batches: a batch needs input_ids, got the keys {', '.join(sorted(batch))}")
    device = base.get_input_embeddings().weight.device
    inputs = {name: batch[name].to(device) for name in _INPUTS if batch.get(name) is not None}
    inputs.setdefault("attention_mask", torch.ones_like(inputs["input_ids"]))
    inputs.setdefault("sink_buckets", torch.full_like(inputs["input_ids"], -1))
    return inputs


def _wide(weights: torch.Tensor) -> torch.dtype:
    """float32 at least: sums in half precision would lose the small weights."""
    return torch.promote_types(weights.dtype, torch.float32)


def _index(name: str, value: int, able: range, has: str, also: str = "") -> int:
    count = len(able)
    if isinstance(value, bool) or not isinstance(value, int) or not (value in able or -count <= value < 0):
        use = f"{-count} to {count - 1}" if able.start == 0 else f"{able.start} to {able.stop - 1}, or {-count} to -1"
        raise ValueError(f"{name}={value!r} is out of range: {has}; use {use}{also}")
    return able[value] if value < 0 else value


def _mean_or_nan(values: np.ndarray) -> np.ndarray:
    """Mean over the first axis; NaN when it is empty."""
    return values.mean(0) if len(values) else np.full(values.shape[1:], np.nan)
