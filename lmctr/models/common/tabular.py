"""What the tabular families share: from fields to a logit and a loss.

A family's `XModel` is `(TabularModelMixin, XPreTrainedModel)` with a [`FieldEmbedding`] at `self.embedding`, `encode` and
`diagnostic_points`; its `XForCTR` is `(TabularForCTRMixin, XPreTrainedModel)` with the model at `self.model` and a head at
`self.head` that turns the representation into (B,) logits.
"""

from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import initialization as init

from .base import CTRPreTrainedModel, ctr_loss, row_weights
from .configuration import TabularCTRConfig
from .outputs import CTROutput, TabularModelOutput

__all__ = [
    "LogitHead",
    "SumHead",
    "TabularForCTRMixin",
    "TabularInputs",
    "TabularModelMixin",
    "TabularPreTrainedModel",
    "Trace",
]


class TabularInputs(NamedTuple):
    """The inputs of a batch, see `TabularForCTRMixin.forward`."""

    input_ids: torch.Tensor | None = None
    numeric_values: torch.Tensor | None = None
    sequence_ids: torch.Tensor | None = None
    sequence_times: torch.Tensor | None = None


class Trace(NamedTuple):
    """Where a model puts what its caller asked to see: lists to append to, or None."""

    hidden_states: list[torch.Tensor] | None = None
    attentions: list[torch.Tensor] | None = None


class TabularPreTrainedModel(CTRPreTrainedModel):
    """Base of the tabular families' models.

    New weights: linear layers get Xavier-normal weights and zero biases, norms ones and zeros.
    """

    base_model_prefix = "model"
    main_input_name = "input_ids"
    input_modalities = ("tabular",)
    supports_gradient_checkpointing = True

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear) and not hasattr(module, "init_parameters"):
            init.xavier_normal_(module.weight)
            if module.bias is not None:
                init.zeros_(module.bias)
        else:
            super()._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        """The module that turns ids into vectors, a [`FieldEmbedding`]."""
        return self.base_model.embedding

    def mlp_points(self) -> dict[str, nn.Module]:
        """The part of `diagnostic_points` that is the MLP's, where there is one."""
        return {} if self.mlp is None else {f"mlp.{i}": layer for i, layer in enumerate(self.mlp.layers)}

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """Places to look at representations: a label, and the module whose output, (B, T, D) or (B, W), to take.

        The labels are unique and in the order of the computation; `"embedding"` is the fields' vectors.
        """
        return super().diagnostic_points() if self.base_model is self else self.base_model.diagnostic_points()


class TabularModelMixin:
    """`forward` of a family's base model; the family gives `encode`."""

    def encode(
        self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """From the fields' vectors to the representation.

        Args:
            fields: what `self.embedding` returned, (B, F, d), or (B, sum of the widths) for different widths.
            inputs: what it was made from.
            trace: lists to append the layers' outputs and attention maps to, when the caller asked for them.

        Returns:
            The representation; the (B,) terms of the logit that go past the head, or None; a (B,) penalty on further
            embeddings, or None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no encode")

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
    ) -> TabularModelOutput:
        """Encode a batch. The arguments are those of `TabularForCTRMixin.forward`."""
        inputs = TabularInputs(input_ids, numeric_values, sequence_ids, sequence_times)
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        maps = self.config.output_attentions if output_attentions is None else output_attentions
        trace = Trace([] if states else None, [] if maps else None)
        fields = self.embedding(*inputs)
        if states:
            trace.hidden_states.append(fields)
        representation, partial_logit, penalty = self.encode(fields, inputs, trace)
        own_penalty = self.embedding.penalty(fields)
        if own_penalty is not None:
            penalty = own_penalty if penalty is None else penalty + own_penalty
        return TabularModelOutput(
            last_hidden_state=representation,
            partial_logit=partial_logit,
            embedding_penalty=penalty,
            hidden_states=tuple(trace.hidden_states) if states else None,
            attentions=tuple(trace.attentions) if maps else None,
        )


class LogitHead(nn.Linear):
    """A linear map of the representation (B, W) to (B,) logits."""

    def __init__(self, in_size: int):
        super().__init__(in_size, 1)

    def forward(self, representation: torch.Tensor) -> torch.Tensor:
        return super().forward(representation).squeeze(-1)


class SumHead(nn.Module):
    """The sum of the representation's numbers and a global bias, for families whose numbers are terms of the logit."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(()))

    def init_parameters(self, config: TabularCTRConfig) -> None:
        init.zeros_(self.bias)

    def forward(self, representation: torch.Tensor) -> torch.Tensor:
        return representation.flatten(1).sum(1) + self.bias


class TabularForCTRMixin:
    """`forward` of a family's model with the CTR head."""

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sample_weight: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | float | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> CTROutput:
        """Score a batch.

        Args:
            input_ids: (B, C) integers: each categorical field's id, local to the field; 0 = missing, 1 = unknown.
            numeric_values: (B, Nn) float.
            sequence_ids: (B, S, L) integers, the most recent one last; 0 = padding, on either side.
            sequence_times: (B, S, L) float, optional: seconds before the target, for families that use them.
            labels: (B,) float, 0 or 1; -100 leaves a row out of the loss.
            sample_weight: (B,) float.
            num_items_in_batch: divisor of the loss; default: the weight of the rows that count.
            output_hidden_states: return the fields' vectors and every layer's output.
            output_attentions: return the attention maps of families that have some (others return an empty tuple).
            options: further arguments of the family's base model.

        Returns:
            `CTROutput` with `logits` (B,) float32. In training mode the loss includes the penalty that
            `embedding_regularization` asks for, averaged over the rows like the rest.

        Raises:
            ValueError: inputs that do not fit the fields, see `FieldEmbedding.forward`.
        """
        outputs = self.model(
            input_ids=input_ids,
            numeric_values=numeric_values,
            sequence_ids=sequence_ids,
            sequence_times=sequence_times,
            output_hidden_states=output_hidden_states,
            output_attentions=output_attentions,
            **options,
        )
        logits = self.head(outputs.last_hidden_state).float()
        if outputs.partial_logit is not None:
            logits = logits + outputs.partial_logit.float()
        loss = None
        if labels is not None:
            loss = ctr_loss(logits, labels, sample_weight, num_items_in_batch, self.config.soft_labels)
            if self.training and outputs.embedding_penalty is not None:
                weight = row_weights(labels, sample_weight)
                divisor = weight.sum().clamp_min(1e-38) if num_items_in_batch is None else num_items_in_batch
                loss = loss + (outputs.embedding_penalty * weight).sum() / divisor
        return CTROutput(loss, logits, outputs.hidden_states, outputs.attentions)
