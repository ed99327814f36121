"""FAT's encoders of raw numbers and of sequences."""

import numpy as np
import pytest
import torch
from tabular_inputs import FIELDS, array, make_batch, randomise_vectors, vectors_by_loops

from lmctr import FATConfig, FATForCTR

TINY = {"hidden_size": 8, "num_attention_heads": 2, "num_bases": 6, "top_k": 2, "meta_dim": 5}


def softplus(x):
    return np.log1p(np.exp(x))


def make_model(**values):
    torch.manual_seed(0)
    model = FATForCTR(FATConfig(**FIELDS | TINY | values)).eval()
    randomise_vectors(model)
    return model


def test_numbers_are_encoded_monotonically():
    """Each coordinate of each field only rises or only falls, and both directions occur."""
    encoding = make_model(numeric_encoding="monotonic_mlp").model.embedding.groups["4"].numeric
    values = torch.linspace(-6, 6, 200)[:, None].expand(-1, 2)
    with torch.no_grad():
        steps = encoding(values).double().diff(dim=0)
    rises, falls = (steps >= -1e-6).all(0), (steps <= 1e-6).all(0)
    assert (rises ^ falls).all()
    assert rises.any()
    assert falls.any()
    assert steps.abs().amax(0).min() > 1e-4  # and it does move


def test_monotonic_encoding_against_loops():
    encoding = make_model(numeric_encoding="monotonic_mlp", monotonic_units=3).model.embedding.groups["4"].numeric
    values = torch.randn(5, 2)
    found = array(encoding(values))
    for row in range(5):
        for field in range(2):
            hidden = np.tanh(
                values[row, field].item() * softplus(array(encoding.slope)[field]) + array(encoding.shift)[field]
            )
            expected = hidden @ softplus(array(encoding.mixing)[field]) * array(encoding.direction)[field]
            np.testing.assert_allclose(found[row, field], expected + array(encoding.bias)[field], atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_raw_numbers_do_not_run_over_in_half_precision(dtype):
    """Numbers above 65,504, and ones of more digits than the weights have, which small slopes tell apart; in gradients too."""
    encoding = make_model(numeric_encoding="monotonic_mlp").model.embedding.groups["4"].numeric
    with torch.no_grad():
        encoding.slope.fill_(-12.0)
    encoding.to(dtype)
    values = torch.tensor([[123457.0, 1e5], [123000.0, -7e4], [3001.0, 2999.0]])
    found = encoding(values)
    found.float().square().sum().backward()
    expected = encoding.float()(values)
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=2**-6, atol=2e-3)
    assert all(weight.grad.isfinite().all() for weight in encoding.parameters())
    assert (expected[0] - expected[1]).abs().max() > 1e-4


def test_sequences_are_weighed_by_an_attention_unit():
    """Against loops: the first sequence's query is the row's own value plus a vector, the second's the vector alone."""
    model = make_model()
    batch = make_batch(model.config)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    embedding = model.model.embedding
    unit = embedding.groups["4"].pooling
    found = array(embedding(**inputs))
    tables = array(embedding.groups["4"].table.weight)
    starts = {2: 12, 3: 21}  # the vocabularies of 7, 5, 9 rows, then the sequence's own
    for row, vectors in enumerate(vectors_by_loops(model.config, embedding, batch)):
        for sequence, table in enumerate((2, 3)):
            own = vectors[2] if table == 2 else np.zeros(4)
            query = own + array(unit.query)[sequence]
            expected = np.zeros(4)
            for item in batch["sequence_ids"][row, sequence].tolist():
                if item == 0:
                    continue
                entry = tables[starts[table] + item]
                hidden = (
                    entry @ array(unit.weight_entry)[sequence]
                    + query @ array(unit.weight_query)[sequence]
                    + (entry * query) @ array(unit.weight_product)[sequence]
                    + array(unit.bias)[sequence]
                )
                score = np.maximum(hidden, 0) @ array(unit.weight_out)[sequence] + array(unit.bias_out)[sequence]
                expected += score * entry
            np.testing.assert_allclose(found[row, 5 + sequence], expected, atol=1e-5)


def test_padding_and_its_side_do_not_count():
    model = make_model()
    batch = make_batch(model.config, rows=2)
    batch.pop("sequence_times")
    ids = torch.tensor([[[3, 4, 0, 0], [2, 0, 0, 0]], [[3, 4, 1, 2], [0, 0, 0, 0]]])
    longer = torch.nn.functional.pad(ids, (3, 2))
    with torch.no_grad():
        logits = model(**{**batch, "sequence_ids": ids}).logits
        torch.testing.assert_close(model(**{**batch, "sequence_ids": longer}).logits, logits)
        empty = model.model.embedding(**{k: v for k, v in batch.items() if k != "labels"} | {"sequence_ids": ids * 0})
    assert (empty[:, 5:] == 0).all()
