"""Tables whose rows lie on two and three real processes, against one process that has all of them."""

import copy
import json
import shutil
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file
from sharded_worker import FAMILIES, launch, model_and_batch, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from toy_tables import make_table_trainer

from lmctr import AutoModelForCTR
from lmctr.models.common import table_bank
from lmctr.models.common.table_bank import TableBank, sharded_tables, table_banks
from lmctr.training.arguments import CTRTrainingArguments
from lmctr.training.checkpoints import newest_complete_checkpoint

TOLERANCE = 1e-6


@pytest.fixture(scope="module")
def one(tmp_path_factory):
    """The steps of each family in one process."""
    folder = tmp_path_factory.mktemp("one")
    for family in FAMILIES:
        train(family, folder)
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """The same in two processes, with what they printed."""
    folder = tmp_path_factory.mktemp("two")
    codes, texts = launch(folder, 2)
    assert codes == [0, 0], "\n".join(texts)
    return folder, texts


def assert_same(left, right):
    left, right = load_file(left / "model.safetensors"), load_file(right / "model.safetensors")
    assert left.keys() == right.keys()
    for name in left:
        torch.testing.assert_close(right[name], left[name], atol=TOLERANCE, rtol=0, msg=name)


def printed_rows(text):
    """By family, the rows of each table that a process had."""
    lines = (line.split(" ", 2) for line in text.splitlines() if line.startswith("rows "))
    return {family: json.loads(rows) for _, family, rows in lines}


def test_two_processes_equal_one(one, two):
    folder, texts = two
    parts = [printed_rows(text) for text in texts]
    for family in FAMILIES:
        model, batch = model_and_batch(family)
        banks = table_banks(model)
        before = {name: bank.weight.detach().clone() for name, bank in banks.items()}
        for name, bank in banks.items():
            rows = [part[family][name] for part in parts]
            assert sum(rows) == bank.num_embeddings
            assert max(rows) == -(-bank.num_embeddings // 2)
        assert_same(one / family / "final", folder / family / "final")
        loaded = AutoModelForCTR.from_pretrained(folder / family / "final")
        weights = loaded.state_dict()
        assert all(not torch.equal(weights[name], values) for name, values in before.items())
        batch.pop("labels")
        assert loaded.eval()(**batch).logits.isfinite().all()
        assert not (folder / family / "checkpoint-10" / "model.safetensors").exists()


@pytest.mark.slow
def test_three_processes_equal_one(one, tmp_path):
    codes, texts = launch(tmp_path, 3)
    assert codes == [0, 0, 0], "\n".join(texts)
    for family in FAMILIES:
        assert_same(one / family / "final", tmp_path / family / "final")


@pytest.mark.slow
def test_checkpoints_go_from_two_processes_to_one_to_three(one, two, tmp_path):
    for family in FAMILIES:
        shutil.copytree(two[0] / family / "checkpoint-10", tmp_path / family / "checkpoint-10")
        train(family, tmp_path, resume=10, stop=20)
        assert newest_complete_checkpoint(tmp_path / family)[0].name == "checkpoint-20"
    codes, texts = launch(tmp_path, 3, resume=20)
    assert codes == [0, 0, 0], "\n".join(texts)
    for family in FAMILIES:
        assert_same(one / family / "final", tmp_path / family / "final")


@pytest.mark.slow
def test_a_run_whose_process_died_goes_on(one, tmp_path):
    codes, _ = launch(tmp_path, 2, families=["deepfm"], dies=13)
    assert codes[1] == 3
    assert codes[0] != 0
    checkpoint, _ = newest_complete_checkpoint(tmp_path / "deepfm")
    assert checkpoint.name == "checkpoint-10"
    codes, texts = launch(tmp_path, 2, families=["deepfm"], resume=10)
    assert codes == [0, 0], "\n".join(texts)
    assert_same(one / "deepfm" / "final", tmp_path / "deepfm" / "final")


@pytest.fixture
def mesh(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    dist.destroy_process_group()


@pytest.mark.parametrize("rows", [1, 3, 63, 64, 65, 127, 128, 1000])
@pytest.mark.parametrize("padding", [None, 0])
def test_rows_are_drawn_as_in_one_process(mesh, monkeypatch, rows, padding):
    """Slice by slice, so that no process ever holds the whole table, and yet with the same numbers."""
    monkeypatch.setattr(table_bank, "SLICE", 64)

    def made():
        torch.manual_seed(3)
        bank = TableBank(rows, 5, padding)
        first = bank.weight.detach().clone()
        bank.init_parameters(type("Config", (), {"initializer_range": 0.3}))
        return first, bank.weight.detach(), torch.rand(())

    expected = made()
    with sharded_tables(mesh):
        found = made()
    for left, right in zip(expected, found):
        torch.testing.assert_close(right, left, atol=0, rtol=0)


def test_given_vectors_go_to_the_processes_that_have_their_rows():
    rows, vectors, whole = torch.tensor([5, 0, 4, 2]), torch.randn(4, 3), TableBank(7, 3)
    parts = [copy.deepcopy(whole) for _ in range(2)]
    whole.put(rows, vectors)
    for rank, part in enumerate(parts):
        part.shard(SimpleNamespace(size=lambda: 2, get_local_rank=lambda rank=rank: rank))
        part.put(rows, vectors)
    assert torch.equal(whole.weight[rows], vectors)
    assert torch.equal(torch.cat([part.weight for part in parts]), whole.weight)


@pytest.mark.parametrize("sparse", [False, True])
def test_a_lookup_and_its_gradient_are_those_of_the_whole_table(mesh, sparse):
    torch.manual_seed(0)
    whole = TableBank(9, 4, padding_idx=2, sparse=sparse)
    shared = copy.deepcopy(whole)
    shared.shard(mesh)
    rows, weight = torch.tensor([[1, 1, 2], [8, 0, 2]]), torch.randn(2, 3, 4)
    ids, starts = torch.tensor([[[0, 3, 3]], [[1, 0, 2]]]), torch.tensor([[4]])
    for bank in (whole, shared):
        (bank(rows) * weight).sum().backward()
        vectors, mask = bank.sequence_vectors(ids, starts)
        (vectors * mask.unsqueeze(-1) * weight.unsqueeze(1)).sum().backward()
    assert whole.weight.grad.is_sparse == shared.weight.grad.is_sparse == sparse
    left, right = whole.weight.grad, shared.weight.grad
    if sparse:
        left, right = left.coalesce(), right.coalesce()
        assert left.indices().tolist() == right.indices().tolist() == [[0, 1, 5, 6, 7, 8]]
        left, right = left.values(), right.values()
    torch.testing.assert_close(right, left)


def test_what_shared_tables_cannot_be_joined_with(tmp_path):
    with pytest.raises(ValueError, match=r"shard_tables needs an optimiser .* choose lazy_adam or rowwise_adagrad"):
        CTRTrainingArguments(str(tmp_path), shard_tables=True)
    with pytest.raises(ValueError, match=r"shard_tables does not work with ema_decay=0\.9"):
        CTRTrainingArguments(str(tmp_path), shard_tables=True, embedding_optimizer="lazy_adam", ema_decay=0.9)
    with pytest.raises(ValueError, match="TableModel has no table bank"):
        make_table_trainer(tmp_path, shard_tables=True, embedding_optimizer="lazy_adam")


def test_a_checkpoint_without_shared_tables_is_refused(tmp_path):
    train("deepfm", tmp_path, shard_tables=False, stop=10)
    with pytest.raises(ValueError, match="checkpoint-10 has no folder sharded: it was written without shard_tables"):
        train("deepfm", tmp_path, resume=10)


def test_small_tables_beside_banks_are_trained_densely():
    """Their gradients may be dense: a family that reads a row past the lookup can be trained with a sparse optimiser."""
    from lmctr.training.optim import use_sparse_gradients

    model, batch = model_and_batch("din")
    tables = use_sparse_gradients(model)
    assert {id(table) for table in tables} == {id(bank.weight) for bank in table_banks(model).values()}
    model(**batch).loss.backward()
    others = [
        module for module in model.modules() if isinstance(module, nn.Embedding) and not isinstance(module, TableBank)
    ]
    assert len(others) == 3
    assert not any(module.weight.grad.is_sparse for module in others)
