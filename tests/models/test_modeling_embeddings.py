"""Field embeddings: layout, padding, checks, hooks for other encoders, projections; the shared base of the families."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tabular_inputs import FIELDS, MIXED_DIMS, make_batch, project, vectors_by_loops
from torch import nn

from lmctr import DeepFMConfig, DNNConfig, DNNForCTR, FFMConfig, XDeepFMConfig
from lmctr.auto import AutoModelForCTR
from lmctr.models.common.configuration import TabularCTRConfig
from lmctr.models.common.embeddings import (
    FieldEmbedding,
    FieldProjection,
    LinearNumericEncoding,
    LinearTerm,
    MeanPooling,
    project_fields,
)
from lmctr.models.common.linear_path import StatisticsSkip


def embedding_of(seed=0, **values):
    torch.manual_seed(seed)
    model = DNNForCTR(DNNConfig(**FIELDS | {"hidden_units": [4]} | values))
    return model.config, model.model.embedding


def inputs_of(batch):
    return {key: value for key, value in batch.items() if key != "labels"}


@pytest.mark.parametrize("dims", [4, MIXED_DIMS])
@pytest.mark.parametrize("encoding", ["linear", "vector"])
def test_vectors_equal_loops(dims, encoding):
    config, embedding = embedding_of(embedding_dim=dims, numeric_encoding=encoding)
    batch = make_batch(config)
    found = embedding(**inputs_of(batch)).detach().numpy()
    expected = vectors_by_loops(config, embedding, batch)
    if dims == 4:
        assert found.shape == (6, 7, 4)
    else:
        assert found.shape == (6, sum(MIXED_DIMS))
        assert len(embedding.groups) == 3  # one table per width
    np.testing.assert_allclose(found.reshape(6, -1), [np.concatenate(row) for row in expected], atol=1e-6)


def test_rows_of_the_fused_table():
    """All vocabularies in one table, the shared one once: the sequences' own comes last."""
    _, embedding = embedding_of()
    assert embedding.groups["4"].table.weight.shape == (7 + 5 + 9 + 6, 4)
    assert embedding.groups["4"].starts == [0, 7, 12]
    assert embedding.groups["4"].sequence_starts == [12, 21]


@pytest.mark.parametrize("sparse", [False, True])
def test_padding_never_contributes_and_missing_values_learn(sparse):
    config, embedding = embedding_of(sparse_embedding_grad=sparse)
    batch = make_batch(config)
    batch["input_ids"][:] = 1
    batch["input_ids"][0, 1] = 0  # a missing value
    embedding(**inputs_of(batch)).sum().backward()
    gradient = embedding.groups["4"].table.weight.grad
    if sparse:
        assert 0 not in gradient.coalesce().indices()[0]  # the row that padding reads: the optimiser does not touch it
    gradient = gradient.to_dense()
    for first_row in (0, 12, 21):
        assert (gradient[first_row] == 0).all()
    assert (gradient[7] != 0).all()
    weight = embedding.groups["4"].table.weight
    before = embedding(**inputs_of(batch))[:, 5:].detach()
    with torch.no_grad():
        weight[[0, 12, 21]] = 99.0
    assert torch.equal(embedding(**inputs_of(batch))[:, 5:], before)


def test_empty_and_zero_length_sequences_are_zero():
    config, embedding = embedding_of()
    batch = inputs_of(make_batch(config, rows=2))
    batch["sequence_ids"][0] = 0
    assert (embedding(**batch)[0, 5:] == 0).all()
    batch["sequence_ids"] = torch.zeros(2, 2, 0, dtype=torch.int64)
    del batch["sequence_times"]
    assert (embedding(**batch)[:, 5:] == 0).all()


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_small_integers(dtype):
    config, embedding = embedding_of(vocab_sizes=[200, 250, 250])
    batch = inputs_of(make_batch(config))
    small = {k: v.to(dtype) if k in ("input_ids", "sequence_ids") else v for k, v in batch.items()}
    assert torch.equal(embedding(**small), embedding(**batch))


@pytest.mark.parametrize(
    ("key", "index", "value", "message"),
    [
        ("input_ids", (3, 2), 9, r"input_ids: field 'C2' has id 9, .* to 8"),
        ("input_ids", (3, 0), -1, r"input_ids: field 'C0' has id -1, .* to 6"),
        ("input_ids", (0, 1), 2**40, r"field 'C1' has id 1099511627776"),
        ("sequence_ids", (1, 1, 0), 6, r"sequence_ids: field 'S1' has id 6, .* to 5"),
        ("sequence_ids", (5, 0, 3), -100, r"sequence_ids: field 'S0' has id -100"),
        ("numeric_values", (4, 1), float("nan"), r"numeric_values: field 'N1' has nan in row 4"),
        ("numeric_values", (2, 0), float("-inf"), r"numeric_values: field 'N0' has -inf in row 2"),
    ],
)
def test_wrong_values_are_named(key, index, value, message):
    config, embedding = embedding_of()
    batch = inputs_of(make_batch(config))
    batch[key][index] = value
    with pytest.raises(ValueError, match=message):
        embedding(**batch)


def test_wrong_shapes_and_types():
    config, embedding = embedding_of()
    batch = inputs_of(make_batch(config))
    for changed, message in (
        ({"input_ids": None}, r"input_ids: the model has 3 fields of this kind and got none"),
        ({"input_ids": batch["input_ids"][:, :2]}, r"input_ids: shape \(6, 2\).*use \(B, 3\)"),
        ({"numeric_values": batch["numeric_values"][:4]}, r"numeric_values: shape \(4, 2\).*use \(6, 2\)"),
        ({"sequence_ids": batch["sequence_ids"][:, 0]}, r"sequence_ids: shape \(6, 4\).*use \(6, 2, L\)"),
        ({"input_ids": batch["input_ids"].float()}, r"input_ids: torch.float32.*int32 or int64"),
        ({"sequence_times": torch.zeros(6, 2, 3)}, r"sequence_times: shape \(6, 2, 3\).*\(6, 2, 4\)"),
    ):
        with pytest.raises(ValueError, match=message):
            embedding(**batch | changed)
    _, plain = embedding_of(num_numeric=0, num_sequences=0, sequence_tables=[], sequence_vocab_sizes=[])
    with pytest.raises(ValueError, match=r"numeric_values: the model has 0 fields of this kind and got a tensor"):
        plain(input_ids=batch["input_ids"], numeric_values=batch["numeric_values"])


def test_wrong_ids_fail_in_a_compiled_graph_too():
    """A fused table would silently read the next field's row: the graph asserts instead."""
    config, embedding = embedding_of()
    batch = inputs_of(make_batch(config))
    torch._dynamo.reset()
    compiled = torch.compile(embedding, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(**batch), embedding(**batch))
    batch["input_ids"][0, 0] = 7
    with pytest.raises(RuntimeError, match="input_ids: an id is outside its field's table"):
        compiled(**batch)


def test_numbers_alone_and_sequences_alone():
    torch.manual_seed(0)
    numbers = DNNForCTR(DNNConfig(num_numeric=3, hidden_units=[4])).eval()
    assert numbers(numeric_values=torch.ones(2, 3)).logits.shape == (2,)
    values = {"num_sequences": 1, "sequence_tables": [0], "sequence_vocab_sizes": [9], "hidden_units": [4]}
    sequences = DNNForCTR(DNNConfig(**values)).eval()
    assert sequences(sequence_ids=torch.ones(2, 1, 5, dtype=torch.int64)).logits.shape == (2,)
    with pytest.raises(ValueError, match="no fields"):
        DNNForCTR(DNNConfig())


def test_tables_survive_the_meta_device(tmp_path):
    """Offsets and limits are in no checkpoint; a loaded model has them all the same."""
    config, _ = embedding_of(embedding_dim=MIXED_DIMS, embedding_regularization=0.5)
    torch.manual_seed(1)
    model = DNNForCTR(config).eval()
    model.save_pretrained(tmp_path)
    loaded = DNNForCTR.from_pretrained(tmp_path)
    buffers = dict(loaded.named_buffers())
    assert len(buffers) > 5
    for name, buffer in model.named_buffers():
        assert torch.equal(buffers[name], buffer), name


class TimedPooling(nn.Module):
    uses_target = True

    def forward(self, vectors, mask, times, targets):
        weight = (mask / times.clamp_min(1.0)).unsqueeze(-1)
        return (vectors * weight).sum(2) + targets


@pytest.mark.parametrize("dims", [4, MIXED_DIMS])
def test_other_encoders(dims):
    """Encoders of numbers and sequences get their own fields' values, whatever the widths."""
    config = TabularCTRConfig(**FIELDS | {"embedding_dim": dims})
    torch.manual_seed(0)
    asked = []

    def numbers(config, dim, fields):
        asked.append((dim, list(fields)))
        encoder = nn.Module()
        encoder.forward = lambda values: values.unsqueeze(-1).expand(-1, -1, dim) * 10
        return encoder

    embedding = FieldEmbedding(config, numeric_encoder=numbers, sequence_encoder=lambda *_: TimedPooling())
    batch = inputs_of(make_batch(config))
    flat = embedding(**batch).flatten(1)
    starts = np.cumsum([0, *config.field_dims])
    fields = [flat[:, a:b] for a, b in pairwise(starts)]
    assert asked == ([(4, [0, 1])] if dims == 4 else [(2, [1]), (4, [0])])
    for number in range(2):
        expected = batch["numeric_values"][:, number, None] * 10
        torch.testing.assert_close(fields[3 + number], expected.expand(-1, config.field_dims[3 + number]))
    group = embedding.groups[str(config.field_dims[5])]
    vectors, mask = group.sequence_vectors(batch["sequence_ids"])
    times = batch["sequence_times"] if group.is_whole else batch["sequence_times"][:, group.sequence_fields]
    at = group.sequence_fields.index(0)
    pooled = (vectors[:, at] * (mask[:, at] / times[:, at].clamp_min(1.0)).unsqueeze(-1)).sum(1)
    torch.testing.assert_close(fields[5], pooled + fields[2])  # sequence 0 shares field 2: that is its target


@pytest.mark.parametrize(("dims", "width"), [(4, 6), (MIXED_DIMS, 6), (MIXED_DIMS, 3)])
def test_projection_equals_loops(dims, width):
    config, embedding = embedding_of(embedding_dim=dims)
    projection = project_fields(config, width)
    assert isinstance(projection, FieldProjection)
    projection.init_parameters(config)
    torch.manual_seed(2)
    with torch.no_grad():
        projection.bias.normal_()
    batch = make_batch(config)
    found = projection(embedding(**inputs_of(batch))).detach().numpy()
    assert found.shape == (6, 7, width)
    for row, vectors in zip(found, vectors_by_loops(config, embedding, batch)):
        np.testing.assert_allclose(row, project(projection, vectors), atol=1e-5)


def test_nothing_is_projected_without_need():
    config = TabularCTRConfig(**FIELDS)
    assert isinstance(project_fields(config), nn.Identity)
    assert isinstance(project_fields(config, 4), nn.Identity)


def test_linear_term_is_one_number_per_field():
    config = TabularCTRConfig(**FIELDS | {"embedding_dim": MIXED_DIMS})
    torch.manual_seed(0)
    term = LinearTerm(config)
    for module in term.modules():
        if hasattr(module, "init_parameters"):
            module.init_parameters(config)
    batch = make_batch(config)
    expected = [[float(v[0]) for v in row] for row in vectors_by_loops(config, term, batch)]
    np.testing.assert_allclose(term(**inputs_of(batch)).detach().numpy(), expected, atol=1e-6)


def test_penalty_per_field():
    strengths = [0.0, 0.5, 0.0, 1.0, 0.0, 0.0, 2.0]
    config, embedding = embedding_of(embedding_dim=MIXED_DIMS, embedding_regularization=strengths)
    batch = make_batch(config)
    found = embedding.penalty(embedding(**inputs_of(batch))).detach().numpy()
    rows = vectors_by_loops(config, embedding, batch)
    expected = [0.5 * sum(s * (v**2).sum() for s, v in zip(strengths, row)) for row in rows]
    np.testing.assert_allclose(found, expected, rtol=1e-5)
    _, without = embedding_of()
    assert without.penalty(without(**inputs_of(batch | {}))) is None


def test_penalty_with_weights_and_a_divisor():
    """Under accumulation the trainer's divisor makes the sum over steps the mean over the whole batch."""
    torch.manual_seed(0)
    model = DNNForCTR(DNNConfig(**FIELDS | {"hidden_units": [4], "embedding_regularization": 0.3})).train()
    batch = make_batch(model.config)
    weight = torch.linspace(0.5, 2.0, 6)
    whole = model(**batch, sample_weight=weight).loss
    halves = 0.0
    for rows in (slice(0, 2), slice(2, 6)):
        part = {key: value[rows] for key, value in batch.items()}
        halves = halves + model(**part, sample_weight=weight[rows], num_items_in_batch=weight.sum()).loss
    torch.testing.assert_close(halves, whole)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"vocab_sizes": [5, 1]}, r"vocab_sizes=\[5, 1\].*at least 2"),
        ({"vocab_sizes": [5], "embedding_dim": [2, 3]}, r"embedding_dim=\[2, 3\].*1 fields"),
        ({"vocab_sizes": [5, 6], "field_names": ["a", "a"]}, r"field_names.*2 different names"),
        ({"vocab_sizes": [5], "num_sequences": 1}, r"sequence_tables=\[\].*one index from 0 to 0 for each of the 1"),
        ({"vocab_sizes": [5], "num_sequences": 1, "sequence_tables": [3]}, r"sequence_tables=\[3\]"),
        ({"vocab_sizes": [5], "sequence_vocab_sizes": [4]}, r"sequence_tables=\[\].*\[1\] do not"),
        (
            {"vocab_sizes": [5], "num_sequences": 1, "sequence_tables": [0], "embedding_dim": [2, 3]},
            r"embedding_dim.*field 'S0' has 3 and its vocabulary 0 has 2",
        ),
        ({"vocab_sizes": [5], "numeric_encoding": "log"}, r"numeric_encoding='log'.*linear, vector"),
        ({"vocab_sizes": [5], "embedding_regularization": -1.0}, r"embedding_regularization=-1.0"),
        ({"vocab_sizes": [5], "num_numeric": -1}, r"num_numeric=-1"),
        ({"vocab_sizes": [5], "vocab_size": [5]}, r"unknown key 'vocab_size'.*did you mean 'vocab_sizes'"),
    ],
)
def test_configurations_that_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        TabularCTRConfig(**values)


@pytest.mark.parametrize(
    ("config", "values", "expected"),
    [
        (DNNConfig, {}, (0.03, 0.06)),
        (DNNConfig, {"numeric_initializer_range": 0.2, "initializer_range": 0.5}, (0.2, 0.4)),
        (DNNConfig, {"initializer_range": 0.04}, (0.04, 0.06)),
        (DNNConfig, {"initializer_range": 0.5}, (0.5, 0.5)),
        (FFMConfig, {"embedding_dim": 2}, (0.08, None)),
        (DeepFMConfig, {}, (0.01, 0.01)),  # its products would drown in larger ones
        (XDeepFMConfig, {"initializer_range": 0.02}, (0.02, 0.02)),
    ],
)
def test_new_numeric_fields_have_the_scale_of_their_family(config, values, expected):
    torch.manual_seed(0)
    model = AutoModelForCTR.from_config(config(**{"vocab_sizes": [50], "num_numeric": 100, **values}))
    (encoding,) = (group.numeric for group in model.model.embedding.groups.values())
    assert encoding.weight.std().item() == pytest.approx(expected[0], rel=0.1)
    assert expected[1] is None or encoding.bias.std().item() == pytest.approx(expected[1], rel=0.1)
    if hasattr(model.model, "linear"):  # terms of the logit stay small
        (terms,) = model.model.linear.groups.values()
        assert terms.numeric.weight.std().item() == pytest.approx(model.config.initializer_range, rel=0.3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_raw_numbers_do_not_run_over_in_half_precision(dtype):
    """Numbers above 65,504, and ones of more digits than the weights have: as float32 has it, rounded at the end."""
    torch.manual_seed(0)
    values = torch.tensor([[1e5], [123457.0]])
    vectors, mask = torch.randn(2, 1, 3, 4).to(dtype), torch.tensor([[[True, True, False]], [[True, True, True]]])
    weights = torch.tensor([[[1e5, 3e5, 0.0]], [[7e4, 5.0, 7e4]]])
    skip = StatisticsSkip(SimpleNamespace(boosted_trees=None), 1)
    numbers = LinearNumericEncoding(1, 4, True, (0.01, 1.0))
    with torch.no_grad():
        for weight in (skip.weight, numbers.weight, numbers.bias):
            weight.normal_(std=0.01)
        for part, inputs in (
            (numbers, (values,)),
            (skip, (values, torch.zeros(2, 1))),
            (MeanPooling(), (vectors, mask, None, None, weights)),
            (MeanPooling(), (torch.randn(1, 1, 257, 4).to(dtype), torch.ones(1, 1, 257, dtype=torch.bool))),
        ):
            found = part.to(dtype)(*inputs)
            wide = [one.float() if torch.is_tensor(one) and one.dtype == dtype else one for one in inputs]
            expected = part.float()(*wide)
            torch.testing.assert_close(found.float(), expected, rtol=2**-7, atol=1e-3)
            if part is not skip:
                assert found.dtype == dtype
                if part is numbers:
                    assert torch.equal(found, expected.to(dtype))
