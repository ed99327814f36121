"""`training.torch_compile`: the trainer's steps as one graph, over batches of different lengths."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch._dynamo.utils import counters
from toy_training import TINY, make_trainer

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRTrainingArguments


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
