"""`training.torch_compile`: the trainer's steps as one graph, over batches of different lengths."""

import pytest
import torch
from sequence_rows import random_batch
from sequence_tester import CONFIG
from small_families import SMALL
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from toy_training import TINY, make_trainer

import lmctr
from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRTrainingArguments
from lmctr.models.families import families

SEQUENCES = [family for family in families() if family.input == "sequence"]


def train(folder, text, **arguments):
    """The losses of ten steps, and the shapes of their batches."""
    torch.manual_seed(0)
    values = {"num_sink_buckets": 8, "sink_embedding_dim": 8, "sink_bias_dropout": 0.0, "max_sinks": 6}
    model = CTRSinkForCTR(CTRSinkConfig(text_config=text, **values))
    quiet = {"eval_strategy": "no", "save_strategy": "no", "load_best_model_at_end": False}
    epochs = {"stage1_epochs": 0, "stage2_epochs": 1}
    trainer = make_trainer(folder, model=model, logging_steps=1, **quiet, **epochs, **arguments)
    shapes = []
    if not arguments:  # a hook would be compiled with the model
        model.register_forward_pre_hook(
            lambda module, args, kwargs: shapes.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        )
    trainer.train()
    return [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], shapes


def test_graphs_hold_no_sparse_gradients(tmp_path):
    with pytest.raises(
        ValueError, match=r"torch_compile does not work with embedding_optimizer='lazy_adam', .* choose dense"
    ):
        CTRTrainingArguments(str(tmp_path), torch_compile=True, embedding_optimizer="lazy_adam")
    assert CTRTrainingArguments(str(tmp_path), torch_compile=True).embedding_optimizer == "dense"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bert", "qwen2"])
def test_compiled_training_has_the_losses_of_eager_and_compiles_few_times(kind, tmp_path, monkeypatch):
    """Once for the first batch, once for all lengths, once for a last batch of fewer rows; nothing falls back to Python."""
    of_bert = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    text = {**TINY, "model_type": kind} | (of_bert if kind == "bert" else {"num_key_value_heads": 2})
    expected, shapes = train(tmp_path / "eager", text)
    assert len({length for _, length in shapes}) >= 5
    torch._dynamo.reset()
    counters.clear()
    counter, own = CompileCounter(), torch.compile
    monkeypatch.setattr(torch, "compile", lambda model, **options: own(model, **{**options, "backend": counter}))
    found, _ = train(tmp_path / "compiled", text, torch_compile=True, torch_compile_backend="eager")
    assert len(found) == len(expected) == 10
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    assert max(expected) - min(expected) > 1e-2
    assert 1 <= counter.frame_count <= 3
    assert not counters["graph_break"]


@pytest.mark.slow
@pytest.mark.parametrize("family", SEQUENCES, ids=lambda family: family.model_type)
def test_sequence_families_compile_for_all_lengths_of_histories(family):
    """A few times whatever the lengths, loss and gradients as without. ASTRO's blocks are as long as the fullest one: its
    graph is in two parts, and each of them is of any length."""
    longer = {"sequence_length": 60} if family.model_type == "astro" else {}
    torch.manual_seed(0)
    config = getattr(lmctr, f"{family.stem}Config")(**{**CONFIG, **SMALL[family.model_type], **longer})
    model = getattr(lmctr, f"{family.stem}ForCTR")(config).train()
    for layer in model.modules():
        if isinstance(layer, torch.nn.Dropout):
            layer.p = 0.0

    def step(model, batch):
        model.zero_grad()
        loss = model(**batch).loss
        loss.backward()
        return [loss.detach(), *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]

    torch._dynamo.reset()
    counters.clear()
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter)
    for num_events in (20, 30, 27, 12, 33, 25, 40, 18, 36, 23, 29, 15):
        batch = random_batch(config, seed=num_events, num_rows=4, num_events=num_events, num_candidates=3)
        for found, expected in zip(step(compiled, batch), step(model, batch), strict=True):
            assert (found - expected).norm() <= 1e-3 * expected.norm() + 1e-5
    assert len(counters["graph_break"]) == (family.model_type == "astro")
    assert counter.frame_count <= (15 if family.model_type == "astro" else 3)
