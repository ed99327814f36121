"""What the sequence families share: checked inputs, item embeddings, from a representation to logits, and the loss.

A rival family's `XModel` is `(SequenceModelMixin, XPreTrainedModel)` with `run`; its `XForCTR` is `(SequenceForCTRMixin,
XPreTrainedModel)` with `base_class = XModel`. Inputs are rows of [`SequenceView`] or [`SequenceProcessor`].

Shapes: B rows (users), N history events, C candidates of a row, T tasks.
"""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from transformers.modeling_outputs import BaseModelOutput

from .base import CTRPreTrainedModel, WithHeadMixin, calibrated, task_loss
from .configuration import SequenceCTRConfig
from .embeddings import INTEGERS, check_finite
from .linear_path import LinearPath, StatisticsSkip
from .outputs import CTROutput, or_tuple, tensors_only
from .table_bank import TableBank


class SequenceInputs(NamedTuple):
    """Inputs of a sequence model in one shape, defaults filled in; see [`sequence_inputs`]."""

    history_items: torch.Tensor
    history_behaviors: torch.Tensor
    history_scenarios: torch.Tensor
    history_times: torch.Tensor
    history_mask: torch.Tensor
    history_features: torch.Tensor | None
    candidate_items: torch.Tensor
    candidate_scenarios: torch.Tensor
    candidate_times: torch.Tensor
    dependence: torch.Tensor
    candidate_features: torch.Tensor | None
    user_features: torch.Tensor | None
    statistics: torch.Tensor | None
    is_single: bool

    def events_after(self, known: int) -> SequenceInputs:
        """The same rows without their first `known` events."""
        named = {name: values for name, values in self._asdict().items() if name.startswith("history")}
        return self._replace(**{name: values[:, known:] for name, values in named.items() if values is not None})

    def event_table(self) -> torch.Tensor:
        """(B, N, 4 + Fi) int64: all that a model reads of each event."""
        columns = [self.history_items, self.history_behaviors, self.history_scenarios, self.history_times]
        features = () if self.history_features is None else self.history_features.unbind(-1)
        return torch.stack([*columns, *features], -1)

    def split_candidates(self, size: int) -> list[SequenceInputs]:
        """The same rows with at most `size` of the candidates each, in order."""
        per_candidate = [name for name in _PER_CANDIDATE if getattr(self, name) is not None]
        return [
            self._replace(**{name: getattr(self, name)[:, start : start + size] for name in per_candidate})
            for start in range(0, self.candidate_items.shape[1], size)
        ]


_OF_CANDIDATES = ("candidate_items", "candidate_scenarios", "candidate_times", "candidate_features")
_PER_CANDIDATE = (*_OF_CANDIDATES, "dependence", "statistics")


@tensors_only
def sequence_inputs(
    config: SequenceCTRConfig,
    history_items: torch.Tensor,
    candidate_items: torch.Tensor,
    history_behaviors: torch.Tensor | None = None,
    history_scenarios: torch.Tensor | None = None,
    history_times: torch.Tensor | None = None,
    candidate_scenarios: torch.Tensor | None = None,
    candidate_times: torch.Tensor | None = None,
    dependence: torch.Tensor | None = None,
    history_features: torch.Tensor | None = None,
    candidate_features: torch.Tensor | None = None,
    user_features: torch.Tensor | None = None,
    statistics: torch.Tensor | None = None,
) -> SequenceInputs:
    """Checks the inputs of a sequence model and brings them into one shape.

    Args:
        config: the model's configuration.
        history_items: (B, N) item ids, oldest first, right-padded with 0; N = 0 is widened to one place of padding.
        candidate_items: (B, C), or (B,) for one candidate per row.
        history_behaviors, history_scenarios: (B, N) codes; default 0.
        history_times: (B, N) unix seconds that never fall within a row; default: all 0, then `candidate_times` is left out too.
        candidate_scenarios, candidate_times: in the shape of `candidate_items`; default 0.
        dependence: in the shape of `candidate_items`, how many of the row's events each candidate may see; default: all.
        history_features (B, N, Fi), candidate_features (.., Fi), user_features (B, Fu): feature ids, those of a list side by side, given
            exactly when the configuration names such features. statistics (.., Fs): floats, the same.

    Returns:
        [`SequenceInputs`] with a candidate axis in every tensor of candidates; `is_single` tells that it was added here.

    Raises:
        ValueError: a wrong shape or type, no candidate, an id out of range, padding in front of an event, times that fall, a missing or
            unexpected input.
            On accelerators the values (not the shapes) are checked by an assertion on the device.
    """
    for name, ids in {"history_items": history_items, "candidate_items": candidate_items}.items():
        if ids is None:
            raise ValueError(f"{name} is missing: give item ids")
    if history_items.dim() != 2:
        raise ValueError(f"history_items: expected shape (B, N), got {tuple(history_items.shape)}")
    if candidate_items.dim() not in (1, 2) or candidate_items.shape[0] != history_items.shape[0]:
        raise ValueError(
            f"candidate_items: shape {tuple(candidate_items.shape)} does not fit history_items of shape "
            f"{tuple(history_items.shape)}; expected (B,) or (B, C) with the same B"
        )
    if not candidate_items.numel():
        raise ValueError(
            f"candidate_items: shape {tuple(candidate_items.shape)} holds no candidate; give at least one"
        )
    if (history_times is None) != (candidate_times is None):
        missing = "candidate_times" if candidate_times is None else "history_times"
        raise ValueError(f"{missing} is missing: give the times of both history and candidates, or of neither")
    is_single = candidate_items.dim() == 1
    mask = history_items != 0
    defaults = {
        "history_behaviors": (history_behaviors, history_items),
        "history_scenarios": (history_scenarios, history_items),
        "history_times": (history_times, history_items),
        "candidate_scenarios": (candidate_scenarios, candidate_items),
        "candidate_times": (candidate_times, candidate_items),
    }
    values = {"history_items": history_items, "candidate_items": candidate_items}
    for name, (given, like) in defaults.items():
        values[name] = torch.zeros_like(like) if given is None else given
        _check_shape(name, values[name], tuple(like.shape))
    if dependence is None:
        lengths = mask.sum(1)
        dependence = lengths if is_single else lengths[:, None].expand_as(candidate_items)
    _check_shape("dependence", dependence, tuple(candidate_items.shape))
    sizes = {
        "history_items": config.item_vocab_size,
        "candidate_items": config.item_vocab_size,
        "history_behaviors": config.num_behaviors,
        "history_scenarios": config.num_scenarios,
        "candidate_scenarios": config.num_scenarios,
    }
    for name, size in sizes.items():
        _check_whole(name, values[name])
        values[name] = values[name].long()  # int32 is taken, as by a table of embeddings
        _check_range(name, values[name], size)
    _check_whole("dependence", dependence, "counts")
    dependence = dependence.long()
    _check_range("dependence", dependence, history_items.shape[1] + 1)
    for name, real in {"history_times": mask, "candidate_times": None}.items():
        if values[name].dtype in (torch.float32, torch.float16, torch.bfloat16):
            raise ValueError(f"{name}: {values[name].dtype} rounds unix seconds to minutes; give integers, or float64")
        if values[name].is_floating_point():
            wrong = ~values[name].isfinite()
            wrong = wrong if real is None else wrong & real
            _check(name, wrong.reshape(len(wrong), -1).any(1), "has a time that is not finite")
    _check(
        "history_items",
        (mask[:, 1:] & ~mask[:, :-1]).any(1),
        "has padding (item 0) in front of an event; histories are right-padded",
    )
    falls = (values["history_times"].diff(dim=1) < 0) & mask[:, 1:]
    _check("history_times", falls.any(1), "has times that fall; events go from the oldest to the latest")

    item_sizes, user_sizes = config.feature_sizes("item"), config.feature_sizes("user")
    batch, tail = history_items.shape[0], tuple(candidate_items.shape)
    extras = (
        ("history_features", history_features, (*history_items.shape, len(item_sizes)), item_sizes),
        ("candidate_features", candidate_features, (*tail, len(item_sizes)), item_sizes),
        ("user_features", user_features, (batch, len(user_sizes)), user_sizes),
        ("statistics", statistics, (*tail, config.num_statistics), None),
    )
    for name, given, shape, vocab_sizes in extras:
        if (given is not None) != bool(shape[-1]):
            expected = f"needs {name} of shape {shape}" if shape[-1] else f"takes no {name}"
            raise ValueError(
                f"{name}: {'missing' if given is None else 'not expected'}; this configuration {expected}"
            )
        if given is not None:
            _check_shape(name, given, shape)
            if vocab_sizes is None:
                check_finite(name, given.flatten(0, -2), range(shape[-1]))
            else:
                _check_whole(name, given)
            for column, size in enumerate(vocab_sizes or ()):
                _check_range(f"{name}[..., {column}]", given[..., column], size)

    if not history_items.shape[1]:  # one place of padding, so that no tensor of a model is empty
        widen = {name: F.pad(tensor, (0, 1)) for name, tensor in values.items() if name.startswith("history")}
        values, mask = values | widen, F.pad(mask, (0, 1))
        history_features = None if history_features is None else F.pad(history_features, (0, 0, 0, 1))

    def candidates(tensor: torch.Tensor | None) -> torch.Tensor | None:
        return tensor.unsqueeze(1) if is_single and tensor is not None else tensor

    return SequenceInputs(
        history_mask=mask,
        history_features=history_features,
        dependence=candidates(dependence),
        candidate_features=candidates(candidate_features),
        user_features=user_features,
        statistics=candidates(statistics),
        is_single=is_single,
        **{name: candidates(tensor) if name.startswith("candidate") else tensor for name, tensor in values.items()},
    )


def _check_shape(name: str, tensor: torch.Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")


def _check_whole(name: str, values: torch.Tensor, what: str = "ids") -> None:
    if values.dtype not in INTEGERS:
        raise ValueError(f"{name}: {values.dtype} is not accepted; use int32 or int64 {what}")


def _check_range(name: str, ids: torch.Tensor, size: int) -> None:
    if torch.compiler.is_exporting():  # a graph checks no values
        return
    wrong = (ids < 0) | (ids >= size)
    if not ids.is_cpu or torch.compiler.is_compiling():
        torch._assert_async(~wrong.any(), f"{name}: an id is out of range; the CPU names it and what is accepted")
    elif wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(f"{name}: {ids[tuple(place)].item()} at {place} is out of range; accepted: 0 to {size - 1}")


def _check(name: str, wrong_rows: torch.Tensor, what: str) -> None:
    if torch.compiler.is_exporting():
        return
    if not wrong_rows.is_cpu or torch.compiler.is_compiling():
        torch._assert_async(~wrong_rows.any(), f"{name}: a row {what}")
    elif wrong_rows.any():
        raise ValueError(f"{name}: row {int(wrong_rows.nonzero()[0])} {what}")


class FeatureTables(nn.ModuleList):
    """A table for each categorical feature of items or users ("item", "user"); id 0 is padding, a zero vector."""

    def __init__(self, config: SequenceCTRConfig, side: str, dim: int):
        sizes = getattr(config, f"{side}_feature_vocab_sizes")
        super().__init__(TableBank(size, dim, 0, vocabulary=f"{side}_feature.{i}") for i, size in enumerate(sizes))
        self.widths = getattr(config, f"{side}_feature_widths")

    def vectors(self, ids: torch.Tensor | None) -> list[torch.Tensor]:
        """(..., F) ids, those of a list side by side, to a vector (..., dim) of each feature: of a list the mean of its values'."""
        found, start = [], 0
        for table, width in zip(self, self.widths):
            own = ids[..., start : start + width]
            start += width
            if width == 1:
                found.append(table(own[..., 0]))
            else:
                stands = own != 0
                found.append((table(own) * stands[..., None]).sum(-2) / stands.sum(-1, keepdim=True).clamp_min(1))
        return found


class ItemEmbedding(nn.Module):
    """Sum of the embeddings of an item and of its categorical features; id 0 of each is padding, a zero vector."""

    def __init__(self, config: SequenceCTRConfig, dim: int):
        super().__init__()
        self.items = TableBank(config.item_vocab_size, dim, padding_idx=0, vocabulary="items")
        self.features = FeatureTables(config, "item", dim)

    def forward(self, items: torch.Tensor, features: torch.Tensor | None = None) -> torch.Tensor:
        """(...) ids and (..., Fi) feature ids to (..., dim)."""
        states = self.items(items)
        for own in self.features.vectors(features):
            states = states + own
        return states


def sequence_logits(logits: torch.Tensor, is_single: bool) -> torch.Tensor:
    """(B, C, T) logits in the shape that callers see: float32, no task axis for one task, no candidate axis for (B,) candidates."""
    logits = logits.float()
    if logits.shape[-1] == 1:
        logits = logits.squeeze(-1)
    return (logits.squeeze(1) if is_single else logits).clone()


def visible_events(inputs: SequenceInputs) -> torch.Tensor:
    """(B, C, N) bool: the events of the row that each candidate may see, the first `dependence` ones."""
    place = torch.arange(inputs.history_items.shape[1], device=inputs.history_items.device)
    return (place < inputs.dependence[..., None]) & inputs.history_mask[:, None]


def time_bucket(elapsed: torch.Tensor, num_buckets: int) -> torch.Tensor:
    """Seconds to buckets: b holds 2**b - 1 to 2**(b + 1) - 2 seconds. Bucket 0 is the same second or earlier, the last one is open."""
    last = min(num_buckets, 62) - 1
    if torch.compiler.is_exporting() or elapsed.device.type == "mps":  # no bits of a double there
        power = torch.tensor([2**b for b in range(last + 2)], device=elapsed.device)
        seconds = elapsed.clamp_min(0) + 1
        found = seconds.float().log2().long().clamp_max(last)  # beside a power of two rounding may give its neighbour
        found = found - (seconds < power[found]).long()
        return (found + (seconds >= power[found + 1]).long()).clamp_max(last)
    bits = elapsed.clamp_min(0).add_(1).double().view(torch.int64)  # 11 bits of exponent above 52 of fraction
    return bits.bitwise_right_shift_(52).sub_(1023).clamp_max_(last)


class CandidateContext(nn.Module):
    """What stands beside the sequence in the final network: the candidate's scenario, features of the user, statistics.

    Args:
        config: the configuration. dim: width of each embedding. use_statistics: whether the statistics are among it.

    Attributes:
        out_size: width of the output.
    """

    def __init__(self, config: SequenceCTRConfig, dim: int, use_statistics: bool = True):
        super().__init__()
        self.scenarios = nn.Embedding(config.num_scenarios, dim)
        self.user_features = FeatureTables(config, "user", dim)
        self.use_statistics = use_statistics and config.num_statistics > 0
        self.out_size = (1 + len(self.user_features)) * dim + self.use_statistics * config.num_statistics

    def forward(self, inputs: SequenceInputs) -> torch.Tensor:
        """(B, C, out_size)."""
        scenario = self.scenarios(inputs.candidate_scenarios)
        parts = [scenario]
        for own in self.user_features.vectors(inputs.user_features):
            parts.append(own[:, None].expand(-1, scenario.shape[1], -1))
        if self.use_statistics:
            parts.append(inputs.statistics.to(scenario.dtype))
        return torch.cat(parts, dim=-1)


def final_network(
    mlp: nn.Module, states: torch.Tensor, attentions: tuple[torch.Tensor, ...] | None, output_hidden_states: bool
) -> BaseModelOutput:
    """(B, C, W) through the final network's hidden layers; `hidden_states`: its input and each layer's output."""
    hidden_states = [states] if output_hidden_states else None
    states = mlp(states, hidden_states)
    return BaseModelOutput(
        last_hidden_state=states,
        hidden_states=tuple(hidden_states) if output_hidden_states else None,
        attentions=attentions,
    )


class SequencePreTrainedModel(CTRPreTrainedModel):
    """Base of the sequence families' models."""

    base_model_prefix = "model"
    main_input_name = "history_items"
    supports_gradient_checkpointing = True
    _keys_to_ignore_on_load_missing = (r"^statistics_skip\.weight$",)  # zero where a checkpoint has none

    def get_input_embeddings(self) -> nn.Module:
        """The table of the items."""
        return self.base_model.item_embedding.items


class SequenceModelMixin:
    """`forward` of a family's base model; the family gives `run`.

    Attributes:
        run_options: keyword arguments of `forward` that go to `run` as they are.
    """

    run_options: ClassVar[tuple[str, ...]] = ()

    def run(
        self, inputs: SequenceInputs, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> BaseModelOutput:
        """From checked inputs to the representation of each candidate, `last_hidden_state` (B, C, W)."""
        raise NotImplementedError(f"{type(self).__name__} has no run")

    @or_tuple
    def forward(
        self,
        history_items: torch.Tensor,
        candidate_items: torch.Tensor,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **inputs: torch.Tensor,
    ) -> BaseModelOutput:
        """The representation of each candidate, (B, C, W); the arguments are those of `SequenceForCTRMixin.forward`."""
        options = {name: inputs.pop(name) for name in self.run_options if name in inputs}
        return self.run(
            sequence_inputs(self.config, history_items, candidate_items, **inputs),
            self.config.output_hidden_states if output_hidden_states is None else output_hidden_states,
            self.config.output_attentions if output_attentions is None else output_attentions,
            **options,
        )


class CachedHistoryMixin(SequenceModelMixin):
    """`run` of a base model no state of whose history depends on a candidate: keys and values are computed once and kept.

    The family gives `embed_history`, `embed_candidates`, `represent`, and `events_of` where its attention is not on events. Each of
    its `layers` takes what these two return, keys and values (B, h, L, d_head) of the events in front (None for none) and whether
    nothing but keys and values is needed of it; it returns new states, own keys and values, and the candidates' attention.
    """

    def embed_history(self, inputs: SequenceInputs, known: int) -> tuple[Any, ...]:
        """What the first layer takes of the history behind its first `known` keys: states (B, L, d), and what else it asks for."""
        raise NotImplementedError(f"{type(self).__name__} has no embed_history")

    def embed_candidates(self, inputs: SequenceInputs) -> tuple[Any, ...]:
        """What the first layer takes of the candidates: states (B, C, d), and what else it asks for."""
        raise NotImplementedError(f"{type(self).__name__} has no embed_candidates")

    def encode_history(
        self, inputs: SequenceInputs, past: list[tuple[torch.Tensor, torch.Tensor]] | None = None
    ) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Keys and values (B, h, L, d_head) of the history in each layer; no candidate has a part in them.

        Args:
            past: those of the first events of the same rows, without padding; only the events behind them are encoded.
        """
        states, *context = self.embed_history(inputs, 0 if past is None else past[0][0].shape[2])
        found = []
        for index, layer in enumerate(self.layers):
            before = (None, None) if past is None else past[index]
            states, *own, _ = layer(states, *context, *before, index == len(self.layers) - 1)
            found.append(tuple(own) if past is None else tuple(torch.cat(pair, dim=2) for pair in zip(before, own)))
        return found

    def read_history(
        self, inputs: SequenceInputs, history: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The candidates' states (B, C, d) before the first and after each layer, and their attentions."""
        states, *context = self.embed_candidates(inputs)
        all_states, attentions = [states], []
        for layer, before in zip(self.layers, history):
            states, _, _, attention = layer(states, *context, *before)
            all_states.append(states)
            attentions.append(attention)
        return all_states, attentions

    def represent(self, states: torch.Tensor, inputs: SequenceInputs) -> torch.Tensor:
        """The candidates' last states (B, C, d) to the output of the final network (B, C, W)."""
        raise NotImplementedError(f"{type(self).__name__} has no represent")

    def events_of(self, attention: torch.Tensor) -> torch.Tensor:
        """A layer's attention as attention on events, (B, h, C, N + 1)."""
        return attention

    def run(
        self, inputs: SequenceInputs, output_hidden_states: bool = False, output_attentions: bool = False
    ) -> BaseModelOutput:
        return self.read(inputs, self.encode_history(inputs), output_hidden_states, output_attentions)

    def read(
        self,
        inputs: SequenceInputs,
        history: list[tuple[torch.Tensor, torch.Tensor]],
        output_hidden_states: bool = False,
        output_attentions: bool = False,
    ) -> BaseModelOutput:
        """`run` on a kept history; where no gradients are needed, `config.micro_batch_size` candidates at a time."""
        parts = [inputs] if torch.is_grad_enabled() else inputs.split_candidates(self.config.micro_batch_size)
        last, hidden_states, attentions = [], [], []
        for part in parts:
            states, weights = self.read_history(part, history)
            last.append(self.represent(states[-1], part))
            if output_hidden_states:
                hidden_states.append(states)
            if output_attentions:
                attentions.append([self.events_of(layer) for layer in weights])
        return BaseModelOutput(
            last_hidden_state=torch.cat(last, dim=1),
            hidden_states=tuple(torch.cat(layer, 1) for layer in zip(*hidden_states)) if hidden_states else None,
            attentions=tuple(torch.cat(layer, 2) for layer in zip(*attentions)) if attentions else None,
        )


class SequenceForCTRMixin(WithHeadMixin):
    """A family's model with a head: `forward` gives logits, and a loss when there are labels."""

    def make_parts(self, config: SequenceCTRConfig) -> None:
        super().make_parts(config)
        use_skip = config.use_statistics_skip and config.num_statistics > 0
        self.statistics_skip = StatisticsSkip(config, config.num_statistics, config.num_tasks) if use_skip else None

    def new_head(self, config: SequenceCTRConfig) -> nn.Module:
        """From what `head_input` gives, (B, C, W), to logits (B, C, T)."""
        return nn.Linear(config.head_hidden_sizes[-1], config.num_tasks)

    def linear_path(self) -> LinearPath | None:
        return None if self.statistics_skip is None else LinearPath(self.statistics_skip, self.last_layer())

    def head_input(self, representation: torch.Tensor, inputs: SequenceInputs) -> torch.Tensor:
        """What the head reads of the base model's representation and of the inputs."""
        return representation

    def task_logits(self, representation: torch.Tensor | None, inputs: SequenceInputs) -> torch.Tensor:
        """The base model's (B, C, W) to logits (B, C, T): those of the head, plus those of [`StatisticsSkip`], and what calibrates them. None: where
        the trees alone count."""
        if representation is None:
            shape = (*inputs.candidate_items.shape, self.config.num_tasks)
            logits = torch.zeros(shape, dtype=torch.float32, device=self.device)
        else:
            logits = self.head(self.head_input(representation, inputs))
        if self.statistics_skip is not None:
            logits = self.statistics_skip(inputs.statistics, logits)
        return calibrated(self.config, logits)

    @or_tuple
    def forward(
        self,
        history_items: torch.Tensor,
        candidate_items: torch.Tensor,
        history_behaviors: torch.Tensor | None = None,
        history_scenarios: torch.Tensor | None = None,
        history_times: torch.Tensor | None = None,
        candidate_scenarios: torch.Tensor | None = None,
        candidate_times: torch.Tensor | None = None,
        dependence: torch.Tensor | None = None,
        history_features: torch.Tensor | None = None,
        candidate_features: torch.Tensor | None = None,
        user_features: torch.Tensor | None = None,
        statistics: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        sample_weight: torch.Tensor | None = None,
        num_items_in_batch: torch.Tensor | float | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> CTROutput:
        """Logits of each row's candidates.

        Args:
            history_items, ..., statistics: see [`sequence_inputs`].
            labels: (B,) or (B, C), with a trailing task axis for several tasks; -100 leaves an entry out.
            sample_weight: (B,) or in the shape of the candidates.
            num_items_in_batch: divisor of the loss, see [`~lmctr.models.common.base.task_loss`].
            options: further arguments of the family's `run`.

        Returns:
            `logits` float32: (B,) for candidates (B,), (B, C) for (B, C), with a trailing task axis for several tasks. What
            `hidden_states` and `attentions` hold is said by the family's base model.
        """
        events = (history_items, candidate_items, history_behaviors, history_scenarios, history_times)
        candidates = (candidate_scenarios, candidate_times, dependence)
        features = (history_features, candidate_features, user_features, statistics)
        inputs = sequence_inputs(self.config, *events, *candidates, *features)
        asked = {"output_hidden_states": output_hidden_states, "output_attentions": output_attentions}
        if self.is_trees_alone(options | asked):
            output = BaseModelOutput()
        else:
            wanted = {name: getattr(self.config, name) if own is None else own for name, own in asked.items()}
            output = self.model.run(inputs, *wanted.values(), **options)
        logits = sequence_logits(self.task_logits(output.last_hidden_state, inputs), inputs.is_single)
        loss = None
        if labels is not None:
            loss = task_loss(self.config, logits, labels, sample_weight, num_items_in_batch)
        return CTROutput(loss=loss, logits=logits, hidden_states=output.hidden_states, attentions=output.attentions)
