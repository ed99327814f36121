"""What the retrieval families share: from the users and ads of impressions to vectors, and the losses of whole impressions.

A family's `XModel` is `(RetrievalModelMixin, XPreTrainedModel)` with `run`; its `XForCTR` is `(RetrievalForCTRMixin, XPreTrainedModel)` with the
model as `base_class`, `new_head` and `score`.

Paper: arXiv 2411.13322, section 3.

Shapes: B impressions, n ads of the longest one, R ads that are there (rows), Fu and Fa categorical fields of user and ad, Nu and Na numeric fields,
S sequences, L longest sequence, d embedding width, U and A width of the user's and the ad's input.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import nn

from .base import IGNORED_LABEL, CTRPreTrainedModel, WithHeadMixin, check_weights, refuse_labels, without_values
from .configuration import RetrievalConfig
from .embeddings import DerivedBuffers, MeanPooling, check_finite, check_given, check_ids, check_shape
from .outputs import CTROutput, or_tuple
from .ranking_losses import ARFLoss, list_softmax_loss, pairwise_logistic_loss, pointwise_loss
from .table_bank import TableBank


class PackedRows(NamedTuple):
    """Where the rows of a tensor without padding stand: the places (R,) int64 in a flat tensor of this shape."""

    places: torch.Tensor
    shape: tuple[int, ...]

    @classmethod
    def of(cls, mask: torch.Tensor) -> PackedRows:
        """The places where `mask` is true; all of them where no shape may follow from it, see `RetrievalModelMixin.forward`."""
        if without_values(mask):
            return cls(torch.arange(mask.numel(), device=mask.device), tuple(mask.shape))
        return cls(mask.flatten().nonzero().squeeze(1), tuple(mask.shape))

    def gather(self, values: torch.Tensor) -> torch.Tensor:
        """(*shape, ...) to (R, ...)."""
        return values.flatten(0, len(self.shape) - 1).index_select(0, self.places)

    def scatter(self, rows: torch.Tensor) -> torch.Tensor:
        """(R, ...) to (*shape, ...), zeros elsewhere."""
        result = rows.new_zeros(math.prod(self.shape), *rows.shape[1:])
        return result.index_copy(0, self.places, rows).unflatten(0, self.shape)


class ImpressionInputs(NamedTuple):
    """What a family's `run` works on.

    Args:
        users: (B', U), the inputs of the users that have an ad. ads: (R, A), the inputs of the ads that are there, impression by impression.
        owner: (R,) int64, the row of `users` that each ad belongs to.
        user_rows, ad_rows: where users and ads stand in (B,) and (B, n).
    """

    users: torch.Tensor
    ads: torch.Tensor
    owner: torch.Tensor
    user_rows: PackedRows
    ad_rows: PackedRows


class ImpressionEmbedding(DerivedBuffers):
    """The inputs of both sides of the foundation model: vectors of ids, means of sequences, numbers, side by side.

    One fused table holds the rows of all vocabularies: the user's fields, the ad's, the sequences' own. A sequence of clicked ads that
    reads the ad's field has the ad's vectors.

    `user` and `ad` need each other in nothing, so that serving computes them apart.

    Raises:
        ValueError: a configuration without fields of the user or of the ad.
    """

    def __init__(self, config: RetrievalConfig):
        super().__init__()
        for side, size in (("user", config.user_size), ("ad", config.ad_size)):
            if not size:
                raise ValueError(
                    f"{type(config).__name__}: no fields of the {side}; set {side}_vocab_sizes (categorical) or {side}_num_numeric"
                )
        self.config_values = {
            "user": (list(config.user_vocab_sizes), config.user_num_numeric, list(config.user_field_names)),
            "ad": (list(config.ad_vocab_sizes), config.ad_num_numeric, list(config.ad_field_names)),
        }
        sizes = config.user_vocab_sizes + config.ad_vocab_sizes + config.user_sequence_vocab_sizes
        starts = [sum(sizes[:field]) for field in range(len(sizes))]
        count = len(config.user_vocab_sizes)
        tables = config.user_sequence_tables
        self.starts = {
            "user": starts[:count],
            "ad": starts[count : count + len(config.ad_vocab_sizes)],
            "sequence": [starts[table] for table in tables],
        }
        self.sequence_sizes = [sizes[table] for table in tables]
        self.dim, self.user_size, self.ad_size = config.embedding_dim, config.user_size, config.ad_size
        self.table = (
            TableBank(sum(sizes), config.embedding_dim, sparse=config.sparse_embedding_grad) if sizes else None
        )
        self.pooling = MeanPooling()
        self.register_derived()

    def derived(self) -> dict[str, torch.Tensor]:
        buffers = {f"{side}_starts": torch.tensor(starts) for side, starts in self.starts.items() if starts}
        for side, (sizes, _, _) in self.config_values.items():
            if sizes:
                buffers[f"{side}_limits"] = torch.tensor(sizes)
        if self.sequence_sizes:
            buffers["sequence_limits"] = torch.tensor(self.sequence_sizes)
        return buffers

    @property
    def dtype(self) -> torch.dtype:
        """Of the vectors."""
        return torch.get_default_dtype() if self.table is None else self.table.weight.dtype

    def user(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """(B, Fu) ids, (B, Nu) numbers, (B, S, L) ids to (B, U): the fields' vectors, the sequences', the numbers.

        Args:
            dtype: of the result; default: the table's.

        Raises:
            ValueError: an input is missing, has another shape or type, or holds an id outside its field's table or a number that is not finite as a
                `dtype`.
                On accelerators values (not shapes) are checked by an assertion on the device.
        """
        dtype = self.dtype if dtype is None else dtype
        parts = self._fields("user", input_ids, numeric_values, dtype)
        count = len(self.sequence_sizes)
        check_given("user_sequence_ids", sequence_ids, count)
        if count:
            check_shape("user_sequence_ids", sequence_ids, count, 3)
            check_ids("user_sequence_ids", sequence_ids, self.sequence_limits, self.config_values["user"][2][-count:])
            pooled = self.pooling(*self.table.sequence_vectors(sequence_ids, self.sequence_starts.unsqueeze(-1)))
            parts.insert(bool(self.config_values["user"][0]), pooled.flatten(1))
        return torch.cat([part.to(dtype) for part in parts], dim=1)

    def ad(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        """(R, Fa) ids and (R, Na) numbers to (R, A). As `user`."""
        dtype = self.dtype if dtype is None else dtype
        return torch.cat([part.to(dtype) for part in self._fields("ad", input_ids, numeric_values, dtype)], dim=1)

    def _fields(
        self, side: str, input_ids: torch.Tensor | None, numeric_values: torch.Tensor | None, dtype: torch.dtype
    ) -> list[torch.Tensor]:
        sizes, num_numeric, names = self.config_values[side]
        check_given(f"{side}_input_ids", input_ids, len(sizes))
        check_given(f"{side}_numeric_values", numeric_values, num_numeric)
        parts = []
        if sizes:
            check_shape(f"{side}_input_ids", input_ids, len(sizes), 2)
            check_ids(f"{side}_input_ids", input_ids, getattr(self, f"{side}_limits"), names)
            parts.append(self.table(input_ids.long() + getattr(self, f"{side}_starts")).flatten(1))
        if num_numeric:
            check_shape(f"{side}_numeric_values", numeric_values, num_numeric, 2, is_ids=False)
            check_finite(f"{side}_numeric_values", numeric_values, names[len(sizes) :], dtype)
            parts.append(numeric_values)
        return parts


class ImpressionLoss(nn.Module):
    """The loss that `config.loss` names, the mean over impressions: ARF with its trained alpha, pointwise BCE, pairwise logistic, list softmax.

    An impression counts where its loss is defined: with an ad for "arf" and "bce", with two ads of different v for "pairwise", with a positive ad
    for "list". Positive is v >= `config.positive_from`. An ad counts where `ad_mask` is true and its label is not -100.
    """

    def __init__(self, config: RetrievalConfig):
        super().__init__()
        self.kind, self.positive_from = config.loss, config.positive_from
        self.arf = None
        if config.loss == "arf":
            m, k = config.arf_top_m, config.arf_top_k
            self.arf = ARFLoss(m, k, tau=config.arf_tau, target_tau=config.arf_target_tau)

    def weights(
        self, labels: torch.Tensor, ad_mask: torch.Tensor | None = None, sample_weight: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(B,) float32: what each impression counts: its weight (default 1), 0 where its loss is not defined."""
        mask = _counted(labels, ad_mask)
        if self.kind == "pairwise":
            low = labels.masked_fill(~mask, float("inf")).amin(1) if labels.shape[1] else labels.new_zeros(len(labels))
            high = labels.masked_fill(~mask, float("-inf")).amax(1) if labels.shape[1] else low
            counted = low < high
        elif self.kind == "list":
            counted = ((labels >= self.positive_from) & mask).any(1)
        else:
            counted = mask.any(1)
        weight = counted.to(torch.float32)
        return weight if sample_weight is None else weight * sample_weight.to(torch.float32)

    def forward(
        self,
        logits: torch.Tensor,
        labels: torch.Tensor,
        ad_mask: torch.Tensor | None = None,
        sample_weight: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | float | None = None,
    ) -> torch.Tensor:
        """() float32. Arguments: see `RetrievalForCTRMixin.forward`. Raises `ValueError` where the shapes of logits and labels differ."""
        if logits.shape != labels.shape:
            raise ValueError(
                f"labels: shape {tuple(labels.shape)} does not fit logits of shape {tuple(logits.shape)}; give the rank index "
                "of every ad, and -100 where there is none"
            )
        check_weights(sample_weight)
        mask, labels = _counted(labels, ad_mask), labels.to(torch.float32)
        if not torch.compiler.is_compiling():
            refuse_labels(labels, labels.isnan() & mask, "the rank index of every ad")
        options = {"weight": sample_weight, "divisor": num_items_in_batch}
        if self.kind == "arf":
            return self.arf(logits, labels, mask, **options)
        if self.kind == "pairwise":
            return pairwise_logistic_loss(logits, labels, mask, **options)
        positive = (labels >= self.positive_from).to(torch.float32)
        return {"bce": pointwise_loss, "list": list_softmax_loss}[self.kind](logits, positive, mask, **options)


def _counted(labels: torch.Tensor, ad_mask: torch.Tensor | None) -> torch.Tensor:
    counted = labels != IGNORED_LABEL
    return counted if ad_mask is None else counted & ad_mask


class RetrievalPreTrainedModel(CTRPreTrainedModel):
    """Base of the retrieval families' models."""

    base_model_prefix = "model"
    main_input_name = "ad_input_ids"
    input_modalities = ("tabular",)
    supports_gradient_checkpointing = True

    def get_input_embeddings(self) -> nn.Module:
        """The table of all fields' vectors."""
        return self.base_model.embedding.table


class RetrievalModelMixin:
    """`forward` of a family's base model; the family gives `run` and has an [`ImpressionEmbedding`] at `self.embedding`."""

    def run(self, inputs: ImpressionInputs, output_hidden_states: bool) -> object:
        """From the inputs of users and ads to the family's output."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    @or_tuple
    def forward(
        self,
        user_input_ids: torch.Tensor | None = None,
        user_numeric_values: torch.Tensor | None = None,
        user_sequence_ids: torch.Tensor | None = None,
        ad_input_ids: torch.Tensor | None = None,
        ad_numeric_values: torch.Tensor | None = None,
        ad_mask: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> object:
        """Encode the ads of a batch. The arguments are those of `RetrievalForCTRMixin.forward`."""
        ads = {"ad_input_ids": ad_input_ids, "ad_numeric_values": ad_numeric_values}
        users = {
            "user_input_ids": user_input_ids,
            "user_numeric_values": user_numeric_values,
            "user_sequence_ids": user_sequence_ids,
        }
        mask = _impression_mask(users, ads, ad_mask)
        if without_values(mask):  # padding is read too, and its logits are dropped
            mask = torch.ones_like(mask)
        present = mask.any(1)
        # Padding is left out before anything reads it: no statistics, no checks, no FLOPs.
        user_rows, ad_rows = PackedRows.of(present), PackedRows.of(mask)
        users = [None if values is None else user_rows.gather(values) for values in users.values()]
        ads = [None if values is None else ad_rows.gather(values) for values in ads.values()]
        owner = ad_rows.gather((present.cumsum(0) - 1).unsqueeze(1).expand_as(mask))
        dtype = next(self.parameters()).dtype
        inputs = ImpressionInputs(
            self.embedding.user(*users, dtype=dtype), self.embedding.ad(*ads, dtype=dtype), owner, user_rows, ad_rows
        )
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        output = self.run(inputs, bool(states))
        if self.config.output_attentions if output_attentions is None else output_attentions:
            output.attentions = ()
        return output


def _impression_mask(
    users: dict[str, torch.Tensor | None], ads: dict[str, torch.Tensor | None], ad_mask: torch.Tensor | None
) -> torch.Tensor:
    """(B, n) bool. Raises `ValueError` for inputs that are of different impressions or ads."""
    shape = None if ad_mask is None else tuple(ad_mask.shape)
    if ad_mask is not None and (ad_mask.dim() != 2 or ad_mask.dtype != torch.bool):
        raise ValueError(
            f"ad_mask: expected a bool tensor (impressions, ads), True where there is an ad, got {ad_mask.dtype} {shape}"
        )
    device = None
    for key, values in ads.items():
        if values is None:
            continue
        if values.dim() != 3 or tuple(values.shape[:2]) != (shape or tuple(values.shape[:2])):
            wanted = "(B, n" if shape is None else f"({shape[0]}, {shape[1]}"
            raise ValueError(f"{key}: shape {tuple(values.shape)} is not accepted; use {wanted}, fields)")
        shape, device = tuple(values.shape[:2]), values.device
    if shape is None:
        raise ValueError("ad_input_ids: no ads; give ad_input_ids or ad_numeric_values (B, n, fields)")
    for key, values in users.items():
        if values is not None and values.shape[0] != shape[0]:
            raise ValueError(f"{key}: {len(values)} users for {shape[0]} impressions; give one per impression")
    return torch.ones(shape, dtype=torch.bool, device=device) if ad_mask is None else ad_mask


class RetrievalForCTRMixin(WithHeadMixin):
    """A family's model with scores and loss; the family gives `new_head` and `score`."""

    def make_parts(self, config: RetrievalConfig) -> None:
        super().make_parts(config)
        self.impression_loss = ImpressionLoss(config)

    def score(self, outputs: object) -> torch.Tensor:
        """(B, n) scores from what the base model gave; what stands in padded places does not matter."""
        raise NotImplementedError(f"{type(self).__name__} has no score")

    def count_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """() float32, the summed weight of a batch's impressions that count: its part of `num_items_in_batch`."""
        return self.impression_loss.weights(batch["labels"], batch.get("ad_mask"), batch.get("sample_weight")).sum()

    @or_tuple
    def forward(
        self,
        user_input_ids: torch.Tensor | None = None,
        user_numeric_values: torch.Tensor | None = None,
        user_sequence_ids: torch.Tensor | None = None,
        ad_input_ids: torch.Tensor | None = None,
        ad_numeric_values: torch.Tensor | None = None,
        ad_mask: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        ecpm: torch.Tensor | None = None,
        sample_weight: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | float | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> CTROutput:
        """Score the ads of a batch of impressions. Inputs of kinds of fields that the configuration does not have are left out.

        Args:
            user_input_ids: (B, Fu) integers, field-local; 0 = padding, 1 = unknown or missing. user_numeric_values: (B, Nu) float.
            user_sequence_ids: (B, S, L) integers, 0 = padding, on either side.
            ad_input_ids: (B, n, Fa) integers. ad_numeric_values: (B, n, Na) float.
            ad_mask: (B, n) bool, True = an ad stands there; default: everywhere. What stands elsewhere is never read.
            labels: (B, n) float, the rank index v, higher is better; -100 leaves an ad out of the loss.
            ecpm: (B, n) float, for metrics; not used.
            sample_weight: (B,) float, of the impressions.
            num_items_in_batch: divisor of the loss, in impressions: the summed weight of those that count, over all processes and accumulation
                steps (`count_items` gives a batch's part; a count of ads would be wrong). Default: that of this batch.
            output_hidden_states: return the MLP's input and every layer's output.
            output_attentions: accepted; there are none.

        Returns:
            `CTROutput` with `logits` (B, n) float32, 0 where there is no ad. A batch without any ad has loss 0.

        Raises:
            ValueError: inputs that do not fit the fields or each other.
        """
        user = user_input_ids, user_numeric_values, user_sequence_ids
        asked = output_hidden_states, output_attentions
        outputs = self.model(*user, ad_input_ids, ad_numeric_values, ad_mask, *asked)
        scores = self.score(outputs).float()
        logits = scores if ad_mask is None else scores.masked_fill(~ad_mask, 0.0)
        loss = None
        if labels is not None:
            loss = self.impression_loss(logits, labels, ad_mask, sample_weight, num_items_in_batch)
        return CTROutput(loss, logits, outputs.hidden_states, outputs.attentions)
