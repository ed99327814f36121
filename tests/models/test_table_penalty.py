"""The penalty on whole tables: in the loss of a training batch, against loops; none elsewhere."""

import pytest
import torch
from tabular_inputs import FIELDS, MIXED_DIMS, make_batch

import lmctr

STRENGTHS = [0.1, 0.2, 0.3, 9.0, 9.0, 9.0, 0.5]  # numbers have no table; the first sequence reads that of field 2


def make_model(**values):
    torch.manual_seed(0)
    return lmctr.DNNForCTR(lmctr.DNNConfig(**(FIELDS | {"hidden_units": [8]} | values)))


@pytest.mark.parametrize("dims", [4, MIXED_DIMS])
def test_the_loss_holds_the_norm_of_every_table(dims):
    plain = make_model(embedding_dim=dims)
    model = make_model(embedding_dim=dims, embedding_regularization=STRENGTHS, regularize_tables=True)
    model.load_state_dict(plain.state_dict(), strict=False)
    batch = make_batch(model.config)
    extra = model.train()(**batch).loss - plain.train()(**batch).loss
    strength_of = {0: 0.1, 1: 0.2, 2: 0.3, 3: 0.5}  # by vocabulary
    expected = 0.0
    for group in model.model.embedding.groups.values():
        for vocabulary, rows in group.rows_of.items():
            for row in rows:
                expected += 0.5 * strength_of[vocabulary] * sum(w**2 for w in group.table.weight[row].tolist())
    assert expected > 0.1
    assert float(extra) == pytest.approx(expected, rel=1e-4)
    assert float(model.eval()(**batch).loss) == pytest.approx(float(plain.eval()(**batch).loss), rel=1e-6)


def test_sparse_gradients_are_refused():
    with pytest.raises(ValueError, match=r"regularize_tables.*trained sparsely"):
        lmctr.DNNConfig(**FIELDS, regularize_tables=True, sparse_embedding_grad=True)
