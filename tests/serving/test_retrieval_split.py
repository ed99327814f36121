"""The split first layer: the model's scores from cached ad halves, updates of single ads, and the exported folder."""

import pytest
import torch
from retrieval_tester import FIELDS, make_batch

from lmctr import DNNConfig, DNNForCTR, RetrievalMLPConfig, RetrievalMLPForCTR, TwoTowerConfig, TwoTowerForCTR
from lmctr.scaling.flops import _counter
from lmctr.serving import SplitRetrievalModel, split_first_layer

FAMILIES = {
    "retrieval_mlp": lambda **values: RetrievalMLPForCTR(RetrievalMLPConfig(**FIELDS | values)),
    "two_tower": lambda **values: TwoTowerForCTR(TwoTowerConfig(**FIELDS | {"vector_size": 4} | values)),
}
USER = ("user_input_ids", "user_numeric_values", "user_sequence_ids")
AD = ("ad_input_ids", "ad_numeric_values")
KEYS = [11, "shoes", 7, 5, 2]


@pytest.fixture(params=FAMILIES)
def model(request):
    """A model that has been trained a little: statistics, slopes and biases are no defaults."""
    torch.manual_seed(0)
    model = FAMILIES[request.param]().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(20):
        optimizer.zero_grad()
        model(**make_batch(model.config, step, counts=(5, 3, 4, 5, 2, 1))).loss.backward()
        optimizer.step()
    return model


def request_of(config, seed=100):
    """Two users and the same five ads for both."""
    batch = make_batch(config, seed, counts=(5, 5))
    for name in AD:
        batch[name][1] = batch[name][0]
    return {name: batch[name] for name in USER + AD}


def ads_of(batch, places=slice(None)):
    return {name: batch[name][0][places] for name in AD}


def users_of(batch):
    return {name: batch[name] for name in USER}


def expected(model, batch):
    was_training = model.training
    with torch.no_grad():
        logits = model.eval()(**batch).logits
    model.train(was_training)
    return logits


def test_scores_are_the_models(model):
    batch = request_of(model.config)
    served = split_first_layer(model)
    assert model.training  # it stays as it is, gradients too
    assert all(parameter.requires_grad for parameter in model.parameters())
    served.update(KEYS, **ads_of(batch))
    wanted = expected(model, batch)
    assert wanted.std() > 0.03
    found = served.score(**users_of(batch))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
    torch.testing.assert_close(served.score(**users_of(batch), keys=[5, 11]), wanted[:, [3, 0]], atol=1e-5, rtol=0)
    assert (served.keys, len(served), "shoes" in served, "hats" in served) == (KEYS, 5, True, False)
    assert served.score(**users_of(batch), keys=[]).shape == (2, 0)


def test_blocks_give_the_same(model, monkeypatch):
    batch = request_of(model.config)
    served = split_first_layer(model)
    monkeypatch.setattr("lmctr.serving.retrieval_split.ROWS_AT_ONCE", 3)
    served.update(KEYS, **ads_of(batch))
    torch.testing.assert_close(served.score(**users_of(batch)), expected(model, batch), atol=1e-5, rtol=0)


def test_single_ads_are_updated_added_and_removed(model):
    batch, other = request_of(model.config), request_of(model.config, 101)
    served = split_first_layer(model)
    served.update(KEYS, **ads_of(batch))
    before = served.score(**users_of(batch))
    served.update(["shoes"], **ads_of(other, slice(1, 2)))
    after = served.score(**users_of(batch))
    assert (before != after).any(0).nonzero().flatten().tolist() == [1]
    served.update(["hat", 5], **ads_of(other, [4, 3]))
    served.remove([11, 2])
    contents = {"shoes": 1, 5: 3, "hat": 4}  # of the other request; 7 is still the first one's
    assert sorted(map(str, served.keys)) == sorted(map(str, [7, *contents]))
    mixed = {name: other[name].clone() for name in AD}
    for name in AD:
        mixed[name][:, 0] = batch[name][:, 2]
    wanted = expected(model, users_of(batch) | mixed)
    order = [{7: 0, **contents}[key] for key in served.keys]
    torch.testing.assert_close(served.score(**users_of(batch)), wanted[:, order], atol=1e-5, rtol=0)
    served.remove(served.keys)
    assert served.score(**users_of(batch)).shape == (2, 0)
    served.update(KEYS, **ads_of(batch))
    torch.testing.assert_close(served.score(**users_of(batch)), before, atol=1e-6, rtol=0)


def test_saved_and_loaded(model, tmp_path):
    batch, other = request_of(model.config), request_of(model.config, 101)
    served = split_first_layer(model)
    served.save_pretrained(tmp_path / "empty")
    assert len(SplitRetrievalModel.from_pretrained(tmp_path / "empty")) == 0
    served.update(KEYS, **ads_of(batch))
    served.save_pretrained(tmp_path / "split")
    loaded = SplitRetrievalModel.from_pretrained(tmp_path / "split")
    assert loaded.keys == KEYS
    assert torch.equal(loaded.score(**users_of(batch)), served.score(**users_of(batch)))
    for each in (loaded, served):
        each.update([3, 11], **ads_of(other, slice(0, 2)))
    assert torch.equal(loaded.score(**users_of(batch)), served.score(**users_of(batch)))
    assert sorted(file.name for file in (tmp_path / "split").iterdir()) == ["split.json", "split.safetensors"]
    assert loaded.config.to_dict() == model.config.to_dict()


def test_it_does_not_follow_the_model(model):
    batch = request_of(model.config)
    served, light = split_first_layer(model), split_first_layer(model, copy_tables=False)
    pointers = [each.embedding.table.weight.data_ptr() for each in (served, light)]
    assert [p == model.model.embedding.table.weight.data_ptr() for p in pointers] == [False, True]
    for each in (served, light):
        each.update(KEYS, **ads_of(batch))
    before = served.score(**users_of(batch))
    assert torch.equal(light.score(**users_of(batch)), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert torch.equal(served.score(**users_of(batch)), before)


def test_a_request_costs_the_users_half_once():
    """FLOPs: the first layer of the user once, that of the ads never; of two towers the inner products only."""
    for name, make in FAMILIES.items():
        model = make(user_num_sequences=0, user_sequence_tables=[], user_sequence_vocab_sizes=[]).eval()
        batch = {name: values for name, values in make_batch(make().config, counts=(5,)).items() if name in USER + AD}
        del batch["user_sequence_ids"]
        served = split_first_layer(model)
        served.update(KEYS, **ads_of(batch))
        with _counter() as counter:
            served.score(batch["user_input_ids"], batch["user_numeric_values"])
        size = model.config.user_size
        mlp = 2 * size * 8 + 5 * 2 * (8 * 6 + 6)
        towers = 2 * (size * 8 + 8 * 6 + 6 * 4) + 5 * 2 * 4
        assert counter.get_total_flops() == (mlp if name == "retrieval_mlp" else towers)


def test_bad_input(model, tmp_path):
    batch = request_of(model.config)
    served = split_first_layer(model)
    ads = ads_of(batch)
    for keys, message in (
        ([1, 2, 1, 3, 4], "keys: 1 is given twice"),
        ([1, 2.5, 3, 4, 5], "keys: 2.5 is not accepted"),
        ([True, 2, 3, 4, 5], "keys: True is not accepted"),
        ([1, 2], "ad_input_ids: 5 ads for 2 keys"),
    ):
        with pytest.raises(ValueError, match=message):
            served.update(keys, **ads)
    with pytest.raises(ValueError, match="ad_C0"):
        served.update(KEYS, **{**ads, "ad_input_ids": ads["ad_input_ids"] + 50})
    assert len(served) == 0
    served.update(KEYS, **ads)
    for change in (lambda: served.remove([7, 8]), lambda: served.score(**users_of(batch), keys=[8])):
        with pytest.raises(ValueError, match="keys: 8 is not among the 5 kept ads"):
            change()
    assert served.keys == KEYS
    with pytest.raises(ValueError, match="DNNForCTR has no halves"):
        split_first_layer(DNNForCTR(DNNConfig(vocab_sizes=[4])))
    served.save_pretrained(tmp_path)
    weights = tmp_path / "split.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ValueError, match="damaged"):
        SplitRetrievalModel.from_pretrained(tmp_path)
    weights.write_bytes(whole)
    settings = tmp_path / "split.json"
    text = settings.read_text()
    settings.write_text(text.replace('"shoes",', ""))
    with pytest.raises(ValueError, match="other ads than the 4 keys"):
        SplitRetrievalModel.from_pretrained(tmp_path)
    settings.write_text(text.replace("lmctr split", "another"))
    with pytest.raises(ValueError, match="holds no split model"):
        SplitRetrievalModel.from_pretrained(tmp_path)
    weights.unlink()
    settings.write_text(text)
    with pytest.raises(FileNotFoundError, match=r"split\.safetensors is missing"):
        SplitRetrievalModel.from_pretrained(tmp_path)
