"""Heads for several labels: each equation against loops in float64, over every tabular family, and what the contract promises."""

import numpy as np
import pytest
import torch
from model_tester import adapted_to_all_linear
from tabular_inputs import FIELDS, array, linear, make_batch, mlp, randomise_vectors, softmax

import lmctr
from lmctr import AutoModelForCTR, DNNConfig, DNNForCTR
from lmctr.models.common.tasks import chained_logits
from lmctr.models.families import families, family_of

SMALL = {"task_units": [12], "task_expert_units": [6, 8], "num_task_experts": 3, "num_own_experts": 2}
NAMES = ["click", "cart", "order"]
TOKENS = {"num_tokens": 4, "token_dim": 8, "num_hidden_layers": 1, "tokenizer": "dense"}
OWN = {
    "rank_elastor": TOKENS,
    "rank_mixer": TOKENS,
    "fat": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "projection": "full"},
    "ffm": {},
    "autoint": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
    "hiformer": {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2},
}


def make_model(config_class=DNNConfig, model_class=DNNForCTR, **values):
    torch.manual_seed(0)
    values = {**FIELDS, **SMALL, "task_names": NAMES, **values}
    model = model_class(config_class(**values)).eval()
    randomise_vectors(model)
    return model


def labelled(model, seed=0):
    """A batch whose labels imply each other, with one unknown."""
    batch = make_batch(model.config, seed)
    depth = torch.tensor([0, 1, 2, 3, 0, 2])
    batch["labels"] = (depth[:, None] > torch.arange(model.config.num_tasks)).float()
    batch["labels"][1, 2] = -100.0
    return batch


def logits_of(model, batch):
    with torch.no_grad():
        return model(**{key: value for key, value in batch.items() if key != "labels"}).logits


def gated(gate, x, experts):
    """A softmax by a linear map of x, and the mean of experts by it."""
    weights = softmax(array(gate.weight) @ x)
    return sum(weight * expert for weight, expert in zip(weights, experts))


def bottom_by_loops(head, x):
    bottom, tasks = head.bottom, len(head.towers)
    if head.kind in ("shared_bottom", "esmm"):
        return [x] * tasks
    if head.kind == "mmoe":
        experts = [mlp(network, x) for network in bottom.experts.networks]
        return [gated(gate, x, experts) for gate in bottom.gates]
    states = [x] * (tasks + 1)
    for level in bottom.levels:
        shared = [mlp(network, states[-1]) for network in level.shared.networks]
        own = [[mlp(network, states[k]) for network in level.experts[k].networks] for k in range(tasks)]
        found = [gated(level.gates[k], states[k], own[k] + shared) for k in range(tasks)]
        if level.shared_gate is not None:
            found.append(gated(level.shared_gate, states[-1], [one for some in own for one in some] + shared))
        states = found
    return states


@pytest.mark.parametrize("hidden_units", [[7], []], ids=["layers", "embeddings"])
@pytest.mark.parametrize(
    ("kind", "values"),
    [("shared_bottom", {}), ("mmoe", {}), ("ple", {}), ("ple", {"num_task_levels": 3}), ("esmm", {})],
    ids=["shared_bottom", "mmoe", "cgc", "ple", "esmm"],
)
def test_the_equations(kind, values, hidden_units):
    """Behind layers of the family, and as in the papers on the embeddings."""
    model = make_model(task_head=kind, hidden_units=hidden_units, **values)
    batch = labelled(model)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        representation = model.model(**inputs).last_hidden_state.double().numpy()
    expected = []
    for x in representation:
        states = bottom_by_loops(model.head, x)
        own = [float(linear(tower.out, mlp(tower.mlp, state))[0]) for tower, state in zip(model.head.towers, states)]
        if kind == "esmm":
            chances = np.cumprod([1 / (1 + np.exp(-logit)) for logit in own])
            own = np.log(chances) - np.log1p(-chances)
        expected.append(own)
    np.testing.assert_allclose(logits_of(model, batch).numpy(), expected, atol=2e-5)


def test_gates_differ_by_row_and_task():
    model = make_model(task_head="mmoe", hidden_units=[7])
    logits = logits_of(model, labelled(model))
    assert logits.std(0).min() > 1e-3
    assert (logits[:, 0] - logits[:, 1]).abs().min() > 1e-4


def test_chained_logits_keep_their_value_where_probabilities_round():
    logits = torch.tensor([[-60.0, -50.0], [40.0, 45.0], [0.0, -80.0], [90.0, 0.5]])
    found = chained_logits(logits)[:, 1]
    a, b = logits.double().unbind(1)
    odds = torch.exp(-a) + torch.exp(-b) + torch.exp(-a - b)
    torch.testing.assert_close(found.double(), -torch.log(odds), rtol=1e-5, atol=1e-5)


def test_the_loss_masks_labels_and_weighs_tasks_and_rows():
    model = make_model(task_head="ple", task_weights=[1.0, 0.5, 2.0])
    batch = labelled(model)
    weight = torch.linspace(0.5, 2.0, 6)
    logits, labels = logits_of(model, batch).double().numpy(), batch["labels"].numpy()
    total = count = 0.0
    for row in range(6):
        for task in range(3):
            if labels[row, task] == -100:
                continue
            chance = 1 / (1 + np.exp(-logits[row, task]))
            own = -np.log(chance if labels[row, task] else 1 - chance)
            total += own * float(weight[row]) * [1.0, 0.5, 2.0][task]
            count += float(weight[row])
    assert model(**batch, sample_weight=weight).loss.item() == pytest.approx(total / count, rel=1e-5)


def test_the_penalty_counts_each_label_of_a_row():
    model, plain = (make_model(embedding_regularization=strength).train() for strength in (0.1, 0.0))
    batch = labelled(model)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    penalty = model.model(**inputs).embedding_penalty
    known = (batch["labels"] != -100).sum(1)
    expected = (penalty * known).sum() / known.sum()
    torch.testing.assert_close(model(**batch).loss - plain(**batch).loss, expected)


def test_esmm_refuses_a_conversion_without_a_click():
    model = make_model(task_head="esmm")
    batch = labelled(model)
    batch["labels"][4] = torch.tensor([0.0, 1.0, 0.0])
    with pytest.raises(ValueError, match="row 4 of the batch has cart without click"):
        model(**batch)


@pytest.mark.parametrize("kind", ["shared_bottom", "mmoe", "ple", "esmm"])
@pytest.mark.parametrize("family", [own.model_type for own in families("tabular")])
def test_any_family_has_the_heads(family, kind, tmp_path):
    classes = [family_of(family).load(end) for end in ("Config", "ForCTR")]
    model = make_model(*classes, task_head=kind, task_weights=[1.0, 1.0, 3.0], **OWN.get(family, {}))
    batch = labelled(model)
    output = model(**batch)
    assert output.logits.shape == batch["labels"].shape
    output.loss.backward()
    unused = {name for name, value in model.named_parameters() if value.grad is None or not value.grad.any()}
    assert not any(name.startswith("head.") and "experts" not in name for name in unused)
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCTR.from_pretrained(tmp_path)
    assert loaded.config.task_names == NAMES
    torch.testing.assert_close(logits_of(loaded, batch), output.logits.detach(), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("family", ["DeepFM", "FFM"])
def test_terms_past_the_head_join_every_task_by_its_factor(family):
    model = make_model(getattr(lmctr, f"{family}Config"), getattr(lmctr, f"{family}ForCTR"))
    batch = labelled(model)
    inputs = {key: value for key, value in batch.items() if key != "labels"}
    with torch.no_grad():
        outputs = model.model(**inputs)
        model.head.partial_factor.copy_(torch.tensor([1.0, 0.0, -2.0]))
        alone = model.head(model.model.for_tasks(outputs.last_hidden_state))
        expected = alone + outputs.partial_logit[:, None] * torch.tensor([1.0, 0.0, -2.0])
    torch.testing.assert_close(logits_of(model, batch), expected)


def test_one_task_is_the_family_as_it_was():
    torch.manual_seed(0)
    plain = DNNForCTR(DNNConfig(**FIELDS))
    torch.manual_seed(0)
    named = DNNForCTR(DNNConfig(**FIELDS, task_names=["click"]))
    assert plain.config.task_names is None
    batch = make_batch(plain.config)
    torch.testing.assert_close(logits_of(plain, batch), logits_of(named, batch), atol=0, rtol=0)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"task_names": ["a", "a"]}, "task_names=.*different names"),
        ({"task_names": NAMES, "task_weights": [1.0]}, "one number of at least 0 for each of the 3 tasks"),
        ({"task_head": "moe"}, "task_head='moe'.*shared_bottom, mmoe, ple, esmm"),
        ({"task_head": "esmm"}, "esmm needs two task_names"),
        ({"task_names": NAMES, "task_expert_units": []}, "task_expert_units"),
        ({"task_names": NAMES, "num_task_levels": 0}, "num_task_levels=0"),
    ],
)
def test_wrong_values(values, words):
    with pytest.raises(ValueError, match=words):
        DNNConfig(**FIELDS, **values)


def test_the_number_of_labels_is_that_of_the_tasks(tmp_path):
    for count, names in ((1, None), (2, None), (3, NAMES)):
        DNNConfig(vocab_sizes=[5], task_names=names, num_labels=count).save_pretrained(tmp_path)
        assert DNNConfig.from_pretrained(tmp_path).num_labels == count
    for names in (None, NAMES[:2]):
        with pytest.raises(ValueError, match=r"num_labels=3 is not accepted; use 1 or 2: a logit per task \(click"):
            DNNConfig(vocab_sizes=[5], task_names=names, num_labels=3)


@pytest.mark.parametrize("head", ["mmoe", "ple"])
def test_adapters_around_gates_act_as_they_do_when_they_are_merged(head):
    model = make_model(task_head=head, num_task_levels=2)
    batch = labelled(model)
    plain, adapted = logits_of(model, batch), adapted_to_all_linear(model)
    found = logits_of(adapted, batch)
    assert (found - plain).abs().max() > 1e-3
    torch.testing.assert_close(logits_of(adapted.merge_and_unload(), batch), found, atol=1e-5, rtol=1e-5)
