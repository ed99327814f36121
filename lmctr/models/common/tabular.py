"""What the tabular families share: from fields to a logit and a loss.

A family's `XModel` is `(TabularModelMixin, XPreTrainedModel)` with a [`FieldEmbedding`] at `self.embedding`, `encode` and
`points`; its `XForCTR` is `(TabularForCTRMixin, XPreTrainedModel)` with the model as `base_class`, and `new_head` where the
head is no [`LogitHead`] on `out_size` numbers.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import nn
from transformers import initialization as init

from .base import CTRPreTrainedModel, WithHeadMixin, calibrated, row_weights, task_loss
from .boosted_trees import FieldTrees, TreesBeside
from .configuration import TabularCTRConfig
from .layers import MLP
from .linear_path import LinearPath, StatisticsSkip
from .outputs import CTROutput, TabularModelOutput, or_tuple
from .tasks import TaskHead, check_chain

UNKNOWN = 1  # id of what a vocabulary does not hold, in every categorical field


class TabularInputs(NamedTuple):
    """The inputs of a batch, see `TabularForCTRMixin.forward`."""

    input_ids: torch.Tensor | None = None
    numeric_values: torch.Tensor | None = None
    sequence_ids: torch.Tensor | None = None
    sequence_times: torch.Tensor | None = None
    sequence_weights: torch.Tensor | None = None


class Trace(NamedTuple):
    """Where a model puts what its caller asked to see: lists to append to, or None."""

    hidden_states: list[torch.Tensor] | None = None
    attentions: list[torch.Tensor] | None = None

    def add(self, states: torch.Tensor, attention: torch.Tensor | None = None) -> None:
        """Keep a layer's output, and its attention map where it has one."""
        if self.hidden_states is not None:
            self.hidden_states.append(states)
        if self.attentions is not None and attention is not None:
            self.attentions.append(attention)

    def tuples(self) -> list[tuple[torch.Tensor, ...] | None]:
        """Hidden states and attentions for an output."""
        return [None if kept is None else tuple(kept) for kept in self]


class Encoded(NamedTuple):
    """What `encode` returns.

    Args:
        representation: what the head reads.
        partial_logit: (B,), the terms of the logit that go past the head.
        penalty: (B,), a penalty on other things than the fields' vectors.
    """

    representation: torch.Tensor
    partial_logit: torch.Tensor | None = None
    penalty: torch.Tensor | None = None


class TabularPreTrainedModel(CTRPreTrainedModel):
    """Base of the tabular families' models.

    New weights: linear layers get Xavier-normal weights and zero biases, norms ones and zeros.

    Attributes:
        points: for `diagnostic_points`: the base model's attributes to look at, in order; what has layers gives `"mlp.0"`, `"mlp.1"`, ...,
            and `"layers"` gives `"layer.0"`, ...
    """

    points: ClassVar[tuple[str, ...] | None] = None

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

    def diagnostic_points(self) -> dict[str, nn.Module]:
        """Places to look at representations: a label, and the module whose output, (B, T, D) or (B, W), to take.

        The labels are unique and in the order of the computation; `"embedding"` is the fields' vectors.
        """
        if self.base_model is not self:
            return self.base_model.diagnostic_points()
        if self.points is None:
            return super().diagnostic_points()
        found = {"embedding": self.embedding}
        for name in self.points:
            part, label = getattr(self, name), "layer" if name == "layers" else name
            layers = getattr(part, "layers", part)
            if isinstance(layers, nn.ModuleList):
                found |= {f"{label}.{place}": layer for place, layer in enumerate(layers)}
            elif part is not None:
                found[label] = part
        return found


class TabularModelMixin:
    """`forward` of a family's base model; the family gives `encode`.

    Attributes:
        out_size: numbers of a row that a head reads, see `for_tasks`. has_partial: whether some terms of its logit go past the head.
    """

    out_size: int

    @property
    def has_partial(self) -> bool:
        return getattr(self, "linear", None) is not None

    def for_tasks(self, representation: torch.Tensor) -> torch.Tensor:
        """What a [`TaskHead`] reads of a representation: (B, out_size)."""
        return representation.flatten(1)

    def add_mlp(self, in_size: int, beside: int = 0) -> None:
        """Make the MLP of the configuration's keys at `self.mlp`, None without layers.

        `out_size` becomes its width and that of what stands `beside` it in the representation.
        """
        config = self.config
        options = config.hidden_units, config.hidden_act, config.dropout, config.use_batch_norm
        self.mlp = MLP(in_size, *options) if config.hidden_units else None
        self.out_size = beside + (0 if self.mlp is None else self.mlp.out_size)

    def beside_mlp(self, states: torch.Tensor, fields: torch.Tensor, trace: Trace) -> torch.Tensor:
        """(B, N) states and, where there is an MLP, its output for the fields' vectors side by side."""
        return states if self.mlp is None else torch.cat([states, self.mlp(fields.flatten(1), trace.hidden_states)], 1)

    def encode(self, fields: torch.Tensor, inputs: TabularInputs, trace: Trace) -> Encoded:
        """From the fields' vectors to the representation.

        Args:
            fields: what `self.embedding` returned, (B, F, d), or (B, sum of the widths) for different widths.
            inputs: what it was made from.
            trace: where each layer's output and attention map go (`trace.add`).
        """
        raise NotImplementedError(f"{type(self).__name__} has no encode")

    @or_tuple
    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        sequence_weights: torch.Tensor | None = None,
    ) -> TabularModelOutput:
        """Encode a batch. The arguments are those of `TabularForCTRMixin.forward`."""
        if self.training and self.config.unknown_share:
            input_ids = self._with_unknown(input_ids)
        inputs = TabularInputs(input_ids, numeric_values, sequence_ids, sequence_times, sequence_weights)
        trace = self.new_trace(output_hidden_states, output_attentions)
        fields = self.embedding(*inputs)
        trace.add(fields)
        representation, partial_logit, penalty = self.encode(fields, inputs, trace)
        own_penalty = self.embedding.penalty(fields)
        if own_penalty is not None:
            penalty = own_penalty if penalty is None else penalty + own_penalty
        return TabularModelOutput(representation, partial_logit, penalty, *trace.tuples())

    def _with_unknown(self, input_ids: torch.Tensor) -> torch.Tensor:
        """The ids (B, C) with the configured share of each field's taken as unknown."""
        wanted = self.config.unknown_share
        shares = [wanted.get(name, 0.0) for name in self.config.field_names[: input_ids.shape[1]]]
        drawn = torch.rand(input_ids.shape, device=input_ids.device) < torch.tensor(shares, device=input_ids.device)
        return input_ids.masked_fill(drawn & (input_ids > UNKNOWN), UNKNOWN)

    def new_trace(self, output_hidden_states: bool | None, output_attentions: bool | None) -> Trace:
        """Lists for what the caller, or else the configuration, asks for."""
        states = self.config.output_hidden_states if output_hidden_states is None else output_hidden_states
        maps = self.config.output_attentions if output_attentions is None else output_attentions
        return Trace([] if states else None, [] if maps else None)


class LogitHead(nn.Linear):
    """A linear map of the representation (B, W) to (B, 1) logits."""

    def __init__(self, in_size: int):
        super().__init__(in_size, 1)


class SumHead(nn.Module):
    """The sum of the representation's numbers and a global bias, for families whose numbers are terms of the logit."""

    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.empty(()))

    def init_parameters(self, config: TabularCTRConfig) -> None:
        init.zeros_(self.bias)

    def forward(self, representation: torch.Tensor) -> torch.Tensor:
        return representation.flatten(1).sum(1) + self.bias


class TabularForCTRMixin(WithHeadMixin):
    """A family's model with the CTR head; for several tasks with a [`TaskHead`]. Beside it, with `use_numeric_skip`, a [`StatisticsSkip`] from
    the numeric fields; else the place of [`FieldTrees`]."""

    def make_parts(self, config: TabularCTRConfig) -> None:
        self.model = self.base_class(config)
        several = config.num_tasks > 1
        self.head = TaskHead(config, self.model.out_size, self.model.has_partial) if several else self.new_head(config)
        self.numeric_skip = StatisticsSkip(config, config.num_numeric) if config.use_numeric_skip else None
        if self.numeric_skip is not None and (several or not config.num_numeric):
            raise ValueError(
                f"use_numeric_skip=True is not accepted: {type(self).__name__} has {config.num_numeric} numeric fields and {config.num_tasks} "
                "tasks; it goes from at least one numeric field to the logit of one task"
            )
        num_columns = config.num_numeric + len(config.vocab_sizes or ())
        has_place = self.numeric_skip is None and num_columns + (config.num_sequences or 0) > 0
        self.field_trees = FieldTrees(config, num_columns, config.num_tasks) if has_place else None

    def linear_path(self) -> LinearPath | None:
        if (skip := self._beside("numeric_skip")) is None:
            return None
        is_one_layer = isinstance(self.head, LogitHead) and not hasattr(self.model, "linear")
        return LinearPath(skip, self.last_layer() if is_one_layer else None)

    def trees_beside(self) -> TreesBeside | None:
        return super().trees_beside() or self._beside("field_trees")

    def _beside(self, name: str) -> Any:
        """What goes from the fields to the logit past the network; families that make their parts themselves have none."""
        return getattr(self, name, None)

    def _check_beside(self, rows: int, *fields: torch.Tensor | None) -> None:
        """Raise `ValueError` where what is read past the network does not fit the fields, which the embedding did not see."""
        skip, trees = self._beside("numeric_skip"), self._beside("field_trees")
        if skip is not None:
            self.model.embedding.check_inputs(None, fields[1], kinds=("numeric_values",), rows=rows)
        elif trees is not None and trees.trees is not None and not self.training:
            kinds = ("input_ids", "numeric_values", "sequence_ids")[: 3 if trees.reads_lists else 2]
            self.model.embedding.check_inputs(*fields[: len(kinds)], kinds=kinds, rows=rows)

    def new_head(self, config: TabularCTRConfig) -> nn.Module:
        return LogitHead(self.model.out_size)

    def _network_logits(self, outputs: TabularModelOutput) -> torch.Tensor:
        """(B,) or (B, T) logits of the network alone."""
        if self.config.num_tasks > 1:
            return self.head(self.model.for_tasks(outputs.last_hidden_state), outputs.partial_logit)
        logits = self.head(outputs.last_hidden_state).float()
        logits = logits.squeeze(-1) if logits.dim() > 1 else logits
        return logits if outputs.partial_logit is None else logits + outputs.partial_logit.float()

    @or_tuple
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
        sequence_weights: torch.Tensor | None = None,
        **options: Any,
    ) -> CTROutput:
        """Score a batch.

        Args:
            input_ids: (B, C) integers: each categorical field's id, local to the field; 0 = padding, 1 = unknown or missing.
            numeric_values: (B, Nn) float.
            sequence_ids: (B, S, L) integers, the most recent one last; 0 = padding, on either side.
            sequence_times: (B, S, L) float, optional: seconds before the target, for families that use them.
            labels: (B,) float, 0 or 1, (B, T) for several tasks; -100 leaves a label out of the loss.
            sample_weight: (B,) float.
            num_items_in_batch: divisor of the loss; default: the weight of the labels that count.
            output_hidden_states: return the fields' vectors and every layer's output.
            output_attentions: return the attention maps of families that have some (others return an empty tuple).
            sequence_weights: (B, S, L) float from 0 on, optional: weights of the entries of lists.
            options: further arguments of the family's base model.

        Returns:
            `CTROutput` with `logits` (B,) float32, (B, T) for several tasks. In training mode the loss includes the penalty that
            `embedding_regularization` asks for, averaged over the rows like the rest.

        Raises:
            ValueError: inputs that do not fit the fields, see `FieldEmbedding.forward`; labels that are none.
        """
        options |= {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        if sequence_weights is not None:
            options["sequence_weights"] = sequence_weights
        several = self.config.num_tasks > 1
        if self.is_trees_alone(options):
            if self.model.embedding.check:
                self.model.embedding.check_inputs(input_ids, numeric_values, sequence_ids, sequence_times)
            given = (own for own in (input_ids, numeric_values, sequence_ids) if own is not None)
            outputs, rows = TabularModelOutput(), len(next(given))
            shape = (rows, self.config.num_tasks) if several else (rows,)
            logits = torch.zeros(shape, dtype=torch.float32, device=self.device)
        else:
            outputs = self.model(input_ids, numeric_values, sequence_ids, sequence_times, **options)
            logits = self._network_logits(outputs)
        if options.get("inputs_embeds") is not None:
            self._check_beside(len(logits), input_ids, numeric_values, sequence_ids)
        if (skip := self._beside("numeric_skip")) is not None:
            logits = skip(numeric_values, logits[:, None])[:, 0].float()
        elif (trees := self._beside("field_trees")) is not None:
            of_tasks = logits.reshape(*logits.shape[:1], -1)
            logits = trees(numeric_values, input_ids, sequence_ids, of_tasks).reshape(logits.shape)
        logits, loss = calibrated(self.config, logits).clone(), None
        if labels is not None:
            loss = task_loss(self.config, logits, labels, sample_weight, num_items_in_batch)
            if several and self.config.task_head == "esmm":
                check_chain(labels, self.config.task_names)
            if self.training and outputs.embedding_penalty is not None:
                weight = row_weights(labels)
                weight = weight.sum(1) if several else weight
                weight = weight if sample_weight is None else weight * sample_weight.float()
                divisor = weight.sum().clamp_min(1e-38) if num_items_in_batch is None else num_items_in_batch
                loss = loss + (outputs.embedding_penalty * weight).sum() / divisor
        return CTROutput(loss, logits, outputs.hidden_states, outputs.attentions)
