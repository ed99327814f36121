"""The hypernetwork of FAT: what it keeps in eval mode, and when it forgets it."""

import copy
import pickle

import pytest
import torch
from tabular_inputs import logits_of, make_batch

from lmctr import FATConfig, FATForCTR
from lmctr.models.fat.field_projections import Hypernetwork

CONFIG = {
    "vocab_sizes": [7, 5, 9],
    "hidden_size": 8,
    "num_attention_heads": 2,
    "num_bases": 6,
    "top_k": 2,
    "meta_dim": 5,
    "initializer_range": 0.5,
}


@pytest.fixture
def model():
    torch.manual_seed(0)
    return FATForCTR(FATConfig(**CONFIG)).eval()


@pytest.fixture
def generated(monkeypatch):
    """The hypernetworks that made matrices, in order."""
    calls, generate = [], Hypernetwork._generate
    monkeypatch.setattr(Hypernetwork, "_generate", lambda self, meta: (calls.append(self), generate(self, meta))[1])
    return calls


def test_matrices_are_made_once_in_eval_mode(model, generated):
    batch = make_batch(model.config)
    first = logits_of(model, batch)
    assert len(generated) == 2  # one per layer
    assert (logits_of(model, make_batch(model.config)) == first).all()
    assert len(generated) == 2
    model.train()
    model(**batch)
    model(**batch)
    assert len(generated) == 6  # training keeps nothing


def test_gradients_flow_in_eval_mode(model, generated):
    batch = make_batch(model.config)
    logits_of(model, batch)
    model(**batch).loss.backward()
    assert len(generated) == 4
    assert model.model.layers[0].attention.projection.bases.weight.grad.abs().max() > 0


def change_in_place(model):
    with torch.no_grad():
        model.model.layers[0].attention.projection.bases.weight.mul_(2.0)


def change_meta(model):
    with torch.no_grad():
        model.model.meta_embedding.weight.neg_()


def replace_data(model):
    module = model.model.layers[0].attention.projection.router
    module.bias_out.data = torch.randn_like(module.bias_out)


def load(model):
    state = {name: value + 0.5 * torch.randn_like(value) for name, value in model.state_dict().items()}
    model.load_state_dict(state)


def assign(model):
    model.load_state_dict({n: v + 0.5 * torch.randn_like(v) for n, v in model.state_dict().items()}, assign=True)


def train_a_step(model):
    optimizer = torch.optim.SGD(model.parameters(), 0.5)
    model.train()(**make_batch(model.config)).loss.backward()
    optimizer.step()
    model.eval()


def step_in_eval_mode(model, fused=False):
    optimizer = torch.optim.AdamW(model.parameters(), 0.1, fused=fused)
    model(**make_batch(model.config)).loss.backward()
    optimizer.step()


def fused_step_in_eval_mode(model):
    step_in_eval_mode(model, fused=True)  # whose kernel counts no version


@pytest.mark.parametrize("change", [
    change_in_place, change_meta, replace_data, load, assign, train_a_step, step_in_eval_mode, fused_step_in_eval_mode,
])  # fmt: skip
def test_a_change_of_parameters_is_seen(model, change):
    batch = make_batch(model.config)
    before = logits_of(model, batch)
    change(model)
    after = logits_of(model, batch)
    for layer in model.model.layers:
        layer.attention.projection.reset_cache()
    assert (after == logits_of(model, batch)).all()
    assert (after != before).any()


def test_another_dtype(model):
    batch = make_batch(model.config)
    before = logits_of(model, batch)
    doubled = logits_of(model.double(), batch)
    assert model.model.layers[0].attention.projection(model.model.meta_embedding.weight).dtype == torch.float64
    assert abs(before - doubled).max() < 1e-5
    model.float()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits_of(model, batch)
    assert abs(logits_of(model, batch) - before).max() < 1e-6  # nothing of lower precision was kept


def test_writing_through_data_needs_a_reset(model):
    """The documented limit: torch counts no version for `parameter.data`."""
    batch = make_batch(model.config)
    before = logits_of(model, batch)
    model.model.layers[0].attention.projection.bases.weight.data.mul_(3.0)
    model.model.layers[0].attention.projection.reset_cache()
    assert (logits_of(model, batch) != before).any()


def test_inference_mode(model):
    batch = make_batch(model.config)
    expected = logits_of(model, batch)
    with torch.inference_mode():
        assert (model(**batch).logits.numpy() == expected.astype("float32")).all()
        built = FATForCTR(FATConfig(**CONFIG)).eval()
        built(**batch)  # parameters without version counters
    model(**batch).loss.backward()


def test_what_is_kept_is_not_saved(model, tmp_path):
    names = set(model.state_dict())
    logits_of(model, make_batch(model.config))
    assert set(model.state_dict()) == names
    projection = model.model.layers[0].attention.projection
    assert projection._cache is not None
    assert copy.deepcopy(projection)._cache is None
    assert pickle.loads(pickle.dumps(projection))._cache is None
    model.save_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
