"""Tiny CTR-Sink models, processors and requests for the tests of request scoring."""

import numpy as np
import text_tokenizers
import torch

from lmctr import CTRSinkConfig, CTRSinkForCTR, CTRSinkProcessor

TOKENIZERS = {"qwen2": "qwen", "qwen3": "qwen", "bert": "bert", "roberta": "roberta"}
WORDS = ["Heat", "Casino", "Toy Story", "Alien (1979)", "Crime, Drama", "Comedy", "Horror, Sci-Fi", "Babe"]


def make(model_type="qwen2", attn="sdpa", seed=0, text_config=None, model=None, **processor_values):
    """A model and a processor that agree; `model`: further keys of the model's configuration."""
    settings = {"num_behaviors": 6, "num_sink_buckets": 8, "max_length": None} | processor_values
    processor = CTRSinkProcessor(text_tokenizers.make(TOKENIZERS.get(model_type, "qwen")), **settings)
    text = {
        "model_type": model_type,
        "vocab_size": len(processor.tokenizer) + 2,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "max_position_embeddings": 512,
        "initializer_range": 0.3,
    }
    if TOKENIZERS.get(model_type, "qwen") == "qwen" and model_type != "gpt2":
        text |= {"num_key_value_heads": 2}
    if model_type == "qwen3":
        text |= {"head_dim": 16}
    config = CTRSinkConfig(
        text_config=text | (text_config or {}),
        sink_kind=processor.sink_kind,
        sink_signal=processor.sink_signal,
        sink_order=processor.sink_order,
        feedback=processor.feedback,
        num_sink_buckets=processor.num_sink_buckets,
        layout=processor.layout,
        **({"sink_embedding_dim": 16} | (model or {})),
    )
    config._attn_implementation = attn
    torch.manual_seed(seed)
    return CTRSinkForCTR(config).eval(), processor


def history_of(length, seed=0, similarity=False, start=0):
    """A history in time order with feedback; the times grow by uneven steps."""
    draw = np.random.default_rng(seed)
    words = draw.integers(0, len(WORDS), (length, 2))
    time = start + 10 + np.cumsum(draw.integers(1, 10_000, length))
    history = [
        {
            "text": f"{WORDS[a]} {WORDS[b]}",
            "time": int(when),
            "feedback": ("disliked", "liked")[int(draw.integers(2))],
        }
        for (a, b), when in zip(words, time)
    ]
    if similarity:
        history = [{**b, "similarity": float(draw.uniform(-1, 1))} for b in history]
    return history


def candidates_of(count, seed=1):
    draw = np.random.default_rng(seed)
    return [{"text": " ".join(draw.choice(WORDS, draw.integers(1, 5)))} for _ in range(count)]


def row_by_row(model, processor, history, candidates, time):
    """Logits of the plain model, one row at a time."""
    with torch.no_grad():
        rows = [
            model(**processor(histories=[history], targets=[candidate], times=[time])).logits[0]
            for candidate in candidates
        ]
    return torch.stack(rows).float()


def assert_equal(found, expected):
    assert found.dtype == torch.float32
    assert found.shape == expected.shape
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 1e-3  # logits that do not differ would prove nothing
