"""From rows of fields to vectors: the embedding that every tabular family starts with.

Shapes: B batch, F fields (categorical, then numeric, then sequences), C categorical fields, Nn numeric fields, S sequences,
L longest sequence, d vector width.

The tables themselves are [`~lmctr.models.common.table_bank.TableBank`]s, whose rows may lie on several processes.
"""

from collections.abc import Callable, Sequence

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers import initialization as init

from .configuration import TabularCTRConfig
from .layers import at_least_float32
from .table_bank import TableBank

INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class DerivedBuffers(nn.Module):
    """A module with buffers that follow from its settings and that no checkpoint holds.

    They come from the meta device without values, so they are made again where new weights are. A subclass gives `derived`, and calls
    `register_derived` when its settings are complete.
    """

    def derived(self) -> dict[str, torch.Tensor]:
        """The buffers by name."""
        raise NotImplementedError(f"{type(self).__name__} has no derived")

    def register_derived(self) -> None:
        for name, values in self.derived().items():
            self.register_buffer(name, values, persistent=False)

    def init_parameters(self, config: PreTrainedConfig) -> None:
        for name, values in self.derived().items():
            init.copy_(getattr(self, name), values)


class LinearNumericEncoding(nn.Module):
    """A number as a vector: x w + b (`"linear"`) or x w (`"vector"`), with w and b (d) of the field.

    New w and b are drawn with the two standard deviations `deviations`.
    """

    def __init__(self, num_numeric: int, dim: int, use_bias: bool, deviations: tuple[float, float]):
        super().__init__()
        self.deviations = deviations
        self.weight = nn.Parameter(torch.empty(num_numeric, dim))
        self.bias = nn.Parameter(torch.empty(num_numeric, dim)) if use_bias else None

    def init_parameters(self, config: TabularCTRConfig) -> None:
        init.normal_(self.weight, std=self.deviations[0])
        if self.bias is not None:
            init.normal_(self.bias, std=self.deviations[1])

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        """(B, n) values to (B, n, d)."""
        weight = at_least_float32(self.weight)  # raw numbers are too large or too long for half precision
        values = values.to(weight.dtype).unsqueeze(-1)
        found = values * weight if self.bias is None else torch.addcmul(self.bias.to(weight.dtype), values, weight)
        return found.to(self.weight.dtype)


class MeanPooling(nn.Module):
    """A sequence as the mean of its vectors; a sequence without entries gives zeros."""

    uses_target = False

    takes_weights = True

    def forward(
        self,
        vectors: torch.Tensor,
        mask: torch.Tensor,
        times: torch.Tensor | None = None,
        targets: torch.Tensor | None = None,
        weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, n, L, d) vectors, (B, n, L) bool mask and, of weighted lists, (B, n, L) weights from 0 on to (B, n, d)."""
        weight = at_least_float32(mask.to(vectors.dtype))
        if weights is None:
            weight = weight / weight.sum(-1, keepdim=True).clamp_min(1)
        else:
            weight = weight * weights.to(weight.dtype)
            total = weight.sum(-1, keepdim=True)
            weight = weight / torch.where(total > 0, total, 1)
        return (weight.to(vectors.dtype).unsqueeze(-2) @ vectors).squeeze(-2)


def linear_numerics(config: TabularCTRConfig, dim: int, fields: Sequence[int]) -> nn.Module:
    if config.numeric_encoding not in TabularCTRConfig.numeric_encodings:
        raise ValueError(
            f"numeric_encoding={config.numeric_encoding!r} has no encoder here; "
            f"give FieldEmbedding a numeric_encoder, or use one of {', '.join(TabularCTRConfig.numeric_encodings)}"
        )
    return LinearNumericEncoding(len(fields), dim, config.numeric_encoding == "linear", config.numeric_deviations)


def mean_pooling(config: TabularCTRConfig, dim: int, sequences: Sequence[int]) -> nn.Module:
    return MeanPooling()


class PretrainedVectors(nn.Module):
    """Vectors of a field's values that were made elsewhere, by a linear map (P, d) of their own brought to the model's width.

    They are fixed unless the configuration's `trained_vectors` names the field. New ones are zeros: `lmctr train` fills them from a file
    (`data.pretrained`), and a saved model holds them. Missing and unknown values, and those without a vector, keep zeros.

    Attributes:
        vocabulary: the categorical field.
    """

    def __init__(self, config: TabularCTRConfig, vocabulary: int, dim: int):
        super().__init__()
        name = config.field_names[vocabulary]
        self.vocabulary = vocabulary
        self.bank = ZeroBank(config.vocab_sizes[vocabulary], config.pretrained_dims[name])
        self.bank.weight.requires_grad_(name in (config.trained_vectors or ()))
        self.projection = nn.Linear(self.bank.embedding_dim, dim, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """(B,) ids to (B, d)."""
        return self.projection(self.bank(ids))


class ZeroBank(TableBank):
    """A [`TableBank`] whose new rows are zeros."""

    def init_parameters(self, config: PreTrainedConfig) -> None:
        init.zeros_(self.weight)


class FieldGroup(DerivedBuffers):
    """The fields with vectors of one width: one fused table, numeric encodings, sequence encoders.

    Args:
        config: the model's configuration.
        dim: the width d.
        categorical, numeric, sequences: which of the C, Nn and S have this width.
        numeric_encoder, sequence_encoder, use_pretrained: see [`FieldEmbedding`].
    """

    def __init__(
        self,
        config: TabularCTRConfig,
        dim: int,
        categorical: list[int],
        numeric: list[int],
        sequences: list[int],
        numeric_encoder: Callable[..., nn.Module],
        sequence_encoder: Callable[..., nn.Module],
        use_pretrained: bool = True,
    ):
        super().__init__()
        self.dim = dim
        self.categorical, self.numeric_fields, self.sequence_fields = categorical, numeric, sequences
        self.is_whole = (
            len(categorical) == len(config.vocab_sizes)
            and len(numeric) == config.num_numeric
            and len(sequences) == config.num_sequences
        )
        given = (config.pretrained_dims or {}) if use_pretrained else {}
        own = {place: field for place, field in enumerate(categorical) if config.field_names[field] in given}
        self.pretrained = nn.ModuleDict({str(p): PretrainedVectors(config, f, dim) for p, f in own.items()})
        sizes = config.vocab_sizes + config.sequence_vocab_sizes
        # no learned vectors besides
        sizes = [1 if field in own.values() else size for field, size in enumerate(sizes)]
        tables = [config.sequence_tables[sequence] for sequence in sequences]
        vocabularies = categorical + sorted({table for table in tables if table >= len(config.vocab_sizes)})
        starts, rows = {}, 0
        for vocabulary in vocabularies:
            starts[vocabulary] = rows
            rows += sizes[vocabulary]
        self.rows_of = {vocabulary: range(start, start + sizes[vocabulary]) for vocabulary, start in starts.items()}
        self.starts = [starts[field] for field in categorical]
        self.sequence_starts = [starts[table] for table in tables]
        # The position of each sequence's categorical field among the group's, -1 for an own vocabulary.
        self.target_fields = [categorical.index(table) if table in categorical else -1 for table in tables]
        self.id_dtype = torch.int32 if rows < 2**31 else torch.int64
        self.table = TableBank(rows, dim, sparse=config.sparse_embedding_grad) if vocabularies else None
        self.numeric = numeric_encoder(config, dim, numeric) if numeric else None
        self.pooling = sequence_encoder(config, dim, sequences) if sequences else None
        self.register_derived()

    def derived(self) -> dict[str, torch.Tensor]:
        buffers = {}
        if self.categorical:
            buffers["offsets"] = torch.tensor(self.starts, dtype=self.id_dtype)
        if self.sequence_fields:
            buffers["sequence_offsets"] = torch.tensor(self.sequence_starts, dtype=self.id_dtype).unsqueeze(-1)
        return buffers

    def sequence_vectors(self, sequence_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(B, S, L) ids to the (B, n, L, d) vectors of the group's sequences and their (B, n, L) bool mask."""
        return self.table.sequence_vectors(self._own(sequence_ids, self.sequence_fields), self.sequence_offsets)

    def _own(self, values: torch.Tensor, fields: list[int]) -> torch.Tensor:
        """The columns of the group's fields."""
        return values if self.is_whole else values[:, fields]

    def forward(
        self,
        input_ids: torch.Tensor | None,
        numeric_values: torch.Tensor | None,
        sequence_ids: torch.Tensor | None,
        sequence_times: torch.Tensor | None,
        sequence_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The (B, n, d) vectors of the group's fields: categorical, numeric, sequences."""
        parts = []
        if self.categorical:
            parts.append(self._categorical(self._own(input_ids, self.categorical).to(self.id_dtype)))
        if self.numeric is not None:
            parts.append(self.numeric(self._own(numeric_values, self.numeric_fields)))
        if self.pooling is not None:
            times = None if sequence_times is None else self._own(sequence_times, self.sequence_fields)
            vectors, mask = self.sequence_vectors(sequence_ids)
            targets = self._targets(parts[0] if self.categorical else None, vectors)
            if sequence_weights is None:
                parts.append(self.pooling(vectors, mask, times, targets))
            else:
                weights = self._own(sequence_weights, self.sequence_fields)
                parts.append(self.pooling(vectors, mask, times, targets, weights))
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)

    def _categorical(self, ids: torch.Tensor) -> torch.Tensor:
        """(B, n) ids to (B, n, d)."""
        if not self.pretrained:
            return self.table(ids + self.offsets)
        learned = torch.tensor([str(place) not in self.pretrained for place in range(ids.shape[1])], device=ids.device)
        vectors = list(self.table(ids * learned + self.offsets).unbind(1))
        for place, pretrained in self.pretrained.items():
            vectors[int(place)] = pretrained(ids[:, int(place)])
        return torch.stack(vectors, 1)

    def _targets(self, categorical: torch.Tensor | None, vectors: torch.Tensor) -> torch.Tensor | None:
        """(B, n, d): for each sequence the row's value of the field whose vocabulary it reads, zeros without one."""
        if not self.pooling.uses_target:
            return None
        nothing = vectors.new_zeros(vectors.shape[0], self.dim)
        return torch.stack([nothing if at < 0 else categorical[:, at] for at in self.target_fields], 1)


class FieldEmbedding(DerivedBuffers):
    """A vector per field of each row.

    One fused table per width holds the rows of all vocabularies of that width; field-local ids become its rows by
    adding the field's first row, so a batch costs one lookup per width. A sequence reads the vocabulary that
    `config.sequence_tables` names and becomes one vector.

    Args:
        config: the model's configuration.
        embedding_dim: one width for all fields in place of the configuration's.
        numeric_encoder: called as `(config, dim, numeric fields)`; a module from (B, n) values to (B, n, d).
            Default: [`LinearNumericEncoding`] as `config.numeric_encoding` says.
        sequence_encoder: called as `(config, dim, sequences)`; a module from vectors (B, n, L, d), bool mask (B, n, L),
            times (B, n, L) or None and targets to (B, n, d). With an attribute `uses_target` that is true, `targets`
            (B, n, d) holds the row's own value of the field that the sequence shares its vocabulary with (zeros for a
            vocabulary of its own), else None. Default: [`MeanPooling`].
        use_pretrained: whether fields of the configuration's `pretrained_dims` read [`PretrainedVectors`].
        check: whether `forward` checks its inputs. Outside a compiled graph on the CPU, wrong ids raise `ValueError`. On
            other devices and in compiled graphs they fail an assertion on the device, which does not wait for it.

    Raises:
        ValueError: a configuration without fields.
    """

    def __init__(
        self,
        config: TabularCTRConfig,
        embedding_dim: int | None = None,
        numeric_encoder: Callable[..., nn.Module] = linear_numerics,
        sequence_encoder: Callable[..., nn.Module] = mean_pooling,
        check: bool = True,
        use_pretrained: bool = True,
    ):
        super().__init__()
        if config.num_fields == 0:
            raise ValueError(
                f"{type(config).__name__}: no fields; set vocab_sizes (categorical), num_numeric or num_sequences"
            )
        self.check = check
        self.field_names = list(config.field_names)
        self.num_categorical, self.num_numeric = len(config.vocab_sizes), config.num_numeric
        self.num_sequences, self.sequence_tables = config.num_sequences, list(config.sequence_tables)
        sizes = config.vocab_sizes + config.sequence_vocab_sizes
        self.sizes = list(config.vocab_sizes)
        self.sequence_sizes = [sizes[table] for table in config.sequence_tables]
        self.dims = config.field_dims if embedding_dim is None else [embedding_dim] * config.num_fields
        self.strengths = config.field_regularization
        self.regularize_tables = config.regularize_tables
        first_sequence = self.num_categorical + self.num_numeric
        self.groups = nn.ModuleDict()
        order = []
        for dim in sorted(set(self.dims)):
            fields = [field for field, width in enumerate(self.dims) if width == dim]
            categorical = [field for field in fields if field < self.num_categorical]
            numeric = [f - self.num_categorical for f in fields if self.num_categorical <= f < first_sequence]
            sequences = [field - first_sequence for field in fields if field >= first_sequence]
            self.groups[str(dim)] = FieldGroup(
                config, dim, categorical, numeric, sequences, numeric_encoder, sequence_encoder, use_pretrained
            )
            order.extend(fields)
        self.group_order = order
        self.is_uniform = len(self.groups) == 1
        self.output_size = sum(self.dims)
        self.register_derived()

    def derived(self) -> dict[str, torch.Tensor]:
        buffers = {}
        if self.num_categorical:
            buffers["limits"] = torch.tensor(self.sizes)
        if self.num_sequences:
            buffers["sequence_limits"] = torch.tensor(self.sequence_sizes)
        if not self.is_uniform:
            buffers["columns"] = torch.tensor(flat_columns(self.dims, self.group_order))
        if any(self.strengths):
            repeats = [1] * len(self.dims) if self.is_uniform else self.dims
            strengths = [s for strength, count in zip(self.strengths, repeats) for s in [strength] * count]
            buffers["strength"] = torch.tensor(strengths)
        return buffers

    def forward(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        sequence_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors of a batch.

        Args:
            input_ids: (B, C) integers, field-local.
            numeric_values: (B, Nn) float.
            sequence_ids: (B, S, L) integers, 0 = padding, on either side.
            sequence_times: (B, S, L) float, optional; mean pooling does not use them.
            sequence_weights: (B, S, L) float from 0 on, optional: a list is the mean of its vectors by them.

        Returns:
            (B, F, d) when all fields have one width, else (B, sum of the widths), both in the order of the fields.

        Raises:
            ValueError: an input is missing, has another shape or type, or holds an id outside its field's table, or a
                number that is not finite; the message names the field and the value.
        """
        if self.check:
            self.check_inputs(input_ids, numeric_values, sequence_ids, sequence_times)
            if sequence_weights is not None:
                self._check_weights(sequence_ids, sequence_weights)
        inputs = input_ids, numeric_values, sequence_ids, sequence_times, sequence_weights
        vectors = [g(*inputs) for g in self.groups.values()]
        if self.is_uniform:
            return vectors[0]
        return torch.cat([part.flatten(1) for part in vectors], 1).index_select(1, self.columns)

    def _check_weights(self, sequence_ids: torch.Tensor | None, weights: torch.Tensor) -> None:
        if sequence_ids is None or weights.shape != sequence_ids.shape:
            shape = "no sequence_ids" if sequence_ids is None else f"sequence_ids of shape {tuple(sequence_ids.shape)}"
            raise ValueError(
                f"sequence_weights: shape {tuple(weights.shape)} does not fit {shape}; give one weight per entry"
            )
        poolings = [group.pooling for group in self.groups.values() if group.pooling is not None]
        if not all(getattr(pooling, "takes_weights", False) for pooling in poolings):
            raise ValueError(
                "sequence_weights: the model weighs the entries of a list by an attention of its own; leave weight_separator out, or take a "
                "family with mean pooling"
            )
        if torch.compiler.is_exporting():
            return
        wrong = ~((weights >= 0) & weights.isfinite())
        if not wrong.is_cpu or torch.compiler.is_compiling():
            torch._assert_async(~wrong.any(), "sequence_weights: a value is no weight; accepted: 0 and above")
        elif wrong.any():
            row, sequence, place = wrong.nonzero()[0].tolist()
            name = self.field_names[self.num_categorical + self.num_numeric + sequence]
            raise ValueError(
                f"sequence_weights: field {name!r} has {weights[row, sequence, place].item():g} in row {row}, which is no weight; accepted: 0 "
                "and above"
            )

    def penalty(self, vectors: torch.Tensor) -> torch.Tensor | None:
        """(B,) float32: half the sum over fields of strength times squared norm; None without any strength, and of whole tables outside
        training. Of whole tables it is the same for each row.

        `vectors` is what `forward` returned: a categorical field's vector is its row of the table, a numeric or a
        sequence field's is the vector that it became.
        """
        if not any(self.strengths):
            return None
        if self.regularize_tables:
            return self.table_penalty().expand(len(vectors)) if self.training else None
        squares = vectors.float().square()
        return 0.5 * ((squares.sum(-1) if self.is_uniform else squares) @ self.strength.float())

    def table_penalty(self) -> torch.Tensor:
        """() float32: half the sum over vocabularies of strength times the squared norm of all of their vectors; a vocabulary of sequences
        alone has the strength of the first of them."""
        first = self.num_categorical + self.num_numeric
        own = {table: first + place for place, table in reversed(list(enumerate(self.sequence_tables)))}
        total = torch.zeros((), device=next(self.parameters()).device)
        for group in self.groups.values():
            for vocabulary, rows in group.rows_of.items():
                field = vocabulary if vocabulary < self.num_categorical else own[vocabulary]
                weights = group.table.block(rows).float()
                total = total + self.strengths[field] * weights.square().sum()
            for given in group.pretrained.values():
                if given.bank.weight.requires_grad:  # fixed vectors have no penalty
                    total = total + self.strengths[given.vocabulary] * given.bank.weight.float().square().sum()
        return 0.5 * total

    def check_inputs(
        self,
        input_ids: torch.Tensor | None = None,
        numeric_values: torch.Tensor | None = None,
        sequence_ids: torch.Tensor | None = None,
        sequence_times: torch.Tensor | None = None,
        kinds: Sequence[str] = ("input_ids", "numeric_values", "sequence_ids"),
        rows: int | str = "B",
    ) -> None:
        """Raise `ValueError` for inputs, those of `kinds`, that do not fit the fields, or `rows` where it is a number, see `forward`."""
        for key, values, count, dims in (
            ("input_ids", input_ids, self.num_categorical, 2),
            ("numeric_values", numeric_values, self.num_numeric, 2),
            ("sequence_ids", sequence_ids, self.num_sequences, 3),
        ):
            if key in kinds:
                check_given(key, values, count)
            if values is not None:
                check_shape(key, values, count, dims, rows, is_ids=key != "numeric_values")
                rows = values.shape[0]
        if sequence_times is not None and sequence_ids is not None and sequence_times.shape != sequence_ids.shape:
            raise ValueError(
                f"sequence_times: shape {tuple(sequence_times.shape)} does not fit sequence_ids of shape "
                f"{tuple(sequence_ids.shape)}; give one time per entry"
            )
        first_sequence = self.num_categorical + self.num_numeric
        if input_ids is not None:
            check_ids("input_ids", input_ids, self.limits, self.field_names)
        if numeric_values is not None:
            check_finite("numeric_values", numeric_values, self.field_names[self.num_categorical :])
        if sequence_ids is not None:
            check_ids("sequence_ids", sequence_ids, self.sequence_limits, self.field_names[first_sequence:])


def check_given(key: str, values: torch.Tensor | None, count: int) -> None:
    """ValueError: an input for `count` fields that is missing, or one for no fields that is not."""
    if (values is None) != (count == 0):
        given = "got none" if values is None else f"got a tensor of shape {tuple(values.shape)}"
        raise ValueError(f"{key}: the model has {count} fields of this kind and {given}")


def check_shape(
    key: str, values: torch.Tensor, count: int, dims: int, rows: int | str = "rows", is_ids: bool = True
) -> None:
    """ValueError: another shape than (rows, count[, L]), any number of rows where `rows` is a word; ids of another type."""
    if values.dim() != dims or values.shape[1] != count or not (isinstance(rows, str) or values.shape[0] == rows):
        accepted = f"({rows}, {count}{', L' if dims == 3 else ''})"
        raise ValueError(f"{key}: shape {tuple(values.shape)} is not accepted; use {accepted}")
    if is_ids and values.dtype not in INTEGERS:
        raise ValueError(f"{key}: {values.dtype} is not accepted; use int32 or int64 ids")


def check_ids(key: str, ids: torch.Tensor, limits: torch.Tensor, names: Sequence[str]) -> None:
    """(B, F) or (B, F, L) ids below each field's limit (F). ValueError on the CPU, an assertion on other devices and in compiled graphs."""
    if torch.compiler.is_exporting() or not ids.numel():
        return
    low, high = ids.aminmax(dim=0) if ids.dim() == 2 else ids.transpose(0, 1).flatten(1).aminmax(dim=1)
    good = (low >= 0) & (high < limits)
    if not good.is_cpu or torch.compiler.is_compiling():
        torch._assert_async(good.all(), f"{key}: an id is outside its field's table; the CPU names field and id")
    elif not good.all():
        field = int(good.logical_not().nonzero()[0])
        wrong = int(low[field]) if low[field] < 0 else int(high[field])
        raise ValueError(
            f"{key}: field {names[field]!r} has id {wrong}, which is outside its table; ids go from 0 (padding) and 1 "
            f"(unknown) to {int(limits[field]) - 1}; make ids with the processor that belongs to the model"
        )


def check_finite(key: str, values: torch.Tensor, names: Sequence[str], dtype: torch.dtype | None = None) -> None:
    """(B, F) numbers, and what they are as a `dtype`; errors as those of `check_ids`."""
    if torch.compiler.is_exporting():
        return
    cast = values if dtype is None else values.to(dtype)
    good = cast.sum(dtype=torch.float32).isfinite()  # one pass; infinities and NaN survive a sum
    if not good.is_cpu or torch.compiler.is_compiling():
        torch._assert_async(good, f"{key}: a value is not finite; the CPU names field and value")
    elif not good and not cast.isfinite().all():
        row, field = cast.isfinite().logical_not().nonzero()[0].tolist()
        value = values[row, field]
        remedy = "; fill missing values before the model, as the processor does"
        if value.isfinite():
            remedy = (
                f", too large for {dtype}, which ends at {torch.finfo(dtype).max:,.0f}; compute in bfloat16 or float32"
            )
        raise ValueError(f"{key}: field {names[field]!r} has {value.item()} in row {row}{remedy}")


def flat_columns(dims: Sequence[int], order: Sequence[int]) -> list[int]:
    """For fields laid side by side in `order`, the columns that bring them into their own order."""
    start, columns = 0, {}
    for field in order:
        columns[field] = range(start, start + dims[field])
        start += dims[field]
    return [column for field in range(len(dims)) for column in columns[field]]


class FieldProjection(DerivedBuffers):
    """Brings the vectors of all fields to one width, by a linear map (d_f, width) of each field's own.

    Fields of one width are projected together in one batched product.

    Args:
        config: the model's configuration.
        width: the width of the results.
        use_bias: whether the map has a bias.
    """

    def __init__(self, config: TabularCTRConfig, width: int, use_bias: bool = True):
        super().__init__()
        self.dims, self.width = config.field_dims, width
        sizes = sorted(set(self.dims))
        self.fields = [[field for field, dim in enumerate(self.dims) if dim == size] for size in sizes]
        # Parameters of the module itself: transformers passes over a module without any when it initialises weights.
        self.weight_names = [f"weight_{size}" for size in sizes]
        for name, fields, size in zip(self.weight_names, self.fields, sizes):
            self.register_parameter(name, nn.Parameter(torch.empty(len(fields), size, width)))
        self.bias = nn.Parameter(torch.empty(len(self.dims), width)) if use_bias else None
        self.register_derived()

    @property
    def weights(self) -> list[nn.Parameter]:
        """The matrices (n, d, width) of the n fields of each width d, by rising d."""
        return [getattr(self, name) for name in self.weight_names]

    @staticmethod
    def needed(config: TabularCTRConfig, width: int) -> bool:
        """Whether some field has another width."""
        return any(dim != width for dim in config.field_dims)

    def derived(self) -> dict[str, torch.Tensor]:
        if len(self.weight_names) == 1:
            return {}
        order = [field for fields in self.fields for field in fields]
        to_fields = sorted(range(len(order)), key=order.__getitem__)
        columns = flat_columns(self.dims, order)
        to_groups = sorted(range(len(columns)), key=columns.__getitem__)
        return {"to_groups": torch.tensor(to_groups), "to_fields": torch.tensor(to_fields)}

    def init_parameters(self, config: TabularCTRConfig) -> None:
        for weight in self.weights:  # Xavier for each field's own matrix
            init.normal_(weight, std=(2 / (weight.shape[1] + weight.shape[2])) ** 0.5)
        if self.bias is not None:
            init.zeros_(self.bias)
        super().init_parameters(config)

    def forward(self, vectors: torch.Tensor) -> torch.Tensor:
        """What [`FieldEmbedding`] returned, (B, F, d) or (B, sum of the widths), to (B, F, width)."""
        if len(self.weights) == 1:
            projected = torch.einsum("bfd,fdw->bfw", vectors, self.weights[0])
            return projected if self.bias is None else projected + self.bias
        vectors = vectors.index_select(1, self.to_groups)
        parts = vectors.split([weight.shape[0] * weight.shape[1] for weight in self.weights], 1)
        parts = [
            torch.einsum("bfd,fdw->bfw", part.unflatten(1, weight.shape[:2]), weight)
            for part, weight in zip(parts, self.weights)
        ]
        projected = torch.cat(parts, 1).index_select(1, self.to_fields)
        return projected if self.bias is None else projected + self.bias


def project_fields(config: TabularCTRConfig, width: int | None = None) -> nn.Module:
    """The module that brings the fields' vectors to one width: a [`FieldProjection`], or nothing where all have it.

    `width` defaults to the largest of the fields' widths.
    """
    width = max(config.field_dims) if width is None else width
    return FieldProjection(config, width) if FieldProjection.needed(config, width) else nn.Identity()


def weighted_numerics(config: TabularCTRConfig, dim: int, fields: Sequence[int]) -> nn.Module:
    """Numbers times their weights, whatever the model's `numeric_encoding`; as terms of the logit they start as small as those of ids."""
    return LinearNumericEncoding(len(fields), dim, False, (config.initializer_range,) * 2)


class LinearTerm(FieldEmbedding):
    """The first-order term of factorisation machines: a weight per id, x w per number, the mean weight of a sequence.

    The global bias is not here: the model's head has one.
    """

    def __init__(self, config: TabularCTRConfig):
        super().__init__(config, embedding_dim=1, numeric_encoder=weighted_numerics, check=False, use_pretrained=False)

    def forward(self, *inputs: torch.Tensor | None, **named: torch.Tensor | None) -> torch.Tensor:
        """The (B, F) terms of the sum. The inputs are those that the model's [`FieldEmbedding`] has checked."""
        return super().forward(*inputs, **named).squeeze(-1)

    def penalty(self, terms: torch.Tensor) -> torch.Tensor | None:
        """As `FieldEmbedding.penalty`, of what `forward` returned."""
        return super().penalty(terms.unsqueeze(-1))
