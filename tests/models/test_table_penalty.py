"""The penalty on whole tables: in the loss of a training batch, against loops; none elsewhere."""

import pytest
import torch
from tabular_inputs import FIELDS, MIXED_DIMS, make_batch

import lmctr
from lmctr.models.common.table_bank import TableBank
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.trainer import CTRTrainer

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


@pytest.mark.parametrize("trained", [["C1"], []])
def test_vectors_made_elsewhere_have_a_penalty_where_they_are_trained(trained):
    values = {"vocab_sizes": [5, 6], "pretrained_dims": {"C1": 3}, "trained_vectors": trained, "hidden_units": [8]}
    plain, model = (
        lmctr.DNNForCTR(lmctr.DNNConfig(**values, regularize_tables=True, embedding_regularization=strengths))
        for strengths in (0.0, [0.0, 2.0])
    )
    for one in (plain, model):
        one.load_state_dict({name: torch.full_like(own, 0.5) for name, own in one.state_dict().items()}, strict=False)
    batch = {"input_ids": torch.tensor([[2, 3]]), "labels": torch.ones(1)}
    extra = model.train()(**batch).loss - plain.train()(**batch).loss
    row, vectors = 16 * 0.25, 6 * 3 * 0.25  # the table's one row of that field is learned, whatever it is for
    assert float(extra.detach()) == pytest.approx(row + (vectors if trained else 0.0), rel=1e-4)


def test_sparse_gradients_are_refused(tmp_path):
    model = make_model(embedding_regularization=0.1, regularize_tables=True)
    args = CTRTrainingArguments(str(tmp_path), embedding_optimizer="lazy_adam", use_cpu=True)
    with pytest.raises(
        ValueError, match=r"'lazy_adam' updates the rows of a batch only, and regularize_tables reads whole tables"
    ):
        CTRTrainer(model, args, data_collator=list)
    with pytest.raises(ValueError, match=r"regularize_tables.*trained sparsely"):
        lmctr.DNNConfig(**FIELDS, regularize_tables=True, sparse_embedding_grad=True)


def test_a_table_of_several_processes_has_no_whole_rows():
    """Its own rows alone would be penalised as if they were others."""
    bank = TableBank(6, 2)
    assert torch.equal(bank.block(range(2, 5)), bank.weight[2:5])
    bank.mesh = object()
    with pytest.raises(ValueError, match="lie on several processes; leave regularize_tables or shard_tables out"):
        bank.block(range(2, 5))
