"""A tiny finished run: CTR-Sink from scratch, its processor, metrics, predictions and reference rows."""

import json

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from lmctr.evaluation.evaluator import evaluate_predictions
from lmctr.hub.publish import write_reference
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor

WORDS = (
    "heat toy story casino action crime comedy drama animation movies the user has rated will like liked disliked none"
)


class Processor:
    """Of a model that is exported: only what is saved matters."""

    def save_pretrained(self, folder):
        (folder / "processor_config.json").write_text("{}")


def make_tokenizer():
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [
        letter for character in "abcdefghijklmnopqrstuvwxyz0123456789" for letter in (character, f"##{character}")
    ]
    vocab = {token: index for index, token in enumerate([*specials, *"(),;:?", *letters, *WORDS.split()])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=128,
    )


def make_model(seed=0, **config):
    torch.manual_seed(seed)
    text_config = {
        "model_type": "bert",
        "vocab_size": 128,
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "max_position_embeddings": 128,
    }
    model = CTRSinkForCTR(CTRSinkConfig(text_config=text_config, sink_embedding_dim=8, **config))
    with torch.no_grad():  # weights far enough from their small initial values that logits differ visibly
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    return model.eval()


def make_batch(processor):
    def movie(text, time, feedback="liked"):
        return {"text": text, "time": time, "feedback": feedback, "similarity": 0.5}

    history = [movie("Heat (Crime)", 10), movie("Toy Story", 20, "disliked"), movie("Casino", 30)]
    return processor(
        histories=[history, history[:1], []],
        targets=[{"text": "Casino (Crime)"}, {"text": "Toy Story"}, {"text": "Heat"}],
        times=[100, 200, 300],
        return_tensors="pt",
    )


def write_run(path, seed=0, auc_shift=0.0, config=None, processor=None, **model_options):
    """Write a run folder as training does; returns model and processor."""
    config = {"sink_signal": ["recency", "feedback"], "feedback": "inline"} if config is None else config
    model = make_model(seed, **config, **model_options)
    if processor is None:
        processor = CTRSinkProcessor(make_tokenizer(), num_behaviors=5, **config)
    model.save_pretrained(path)
    processor.save_pretrained(path)
    batch = make_batch(processor)
    write_reference(path, model, batch | {"labels": torch.tensor([1.0, 0.0, -100.0])})

    generator = np.random.default_rng(seed)
    metrics = {}
    (path / "predictions").mkdir()
    for split, size in (("validation", 200), ("test", 300)):
        label = generator.integers(0, 2, size)
        logit = generator.normal(size=size) + (1.0 + auc_shift) * label
        user = generator.integers(0, 20, size)
        table = {"event": np.arange(size), "user": user, "item": user, "time": np.arange(size), "label": label}
        pq.write_table(pa.table(table | {"logit": logit}), path / "predictions" / f"{split}.parquet")
        metrics[split] = evaluate_predictions(label, logit, user)
    baseline = {key: 0.9 if key == "auc" else 0.4 for key in metrics["test"]} | {"num_samples": 300}
    write_json(
        path / "metrics.json",
        {
            "split metrics": metrics,
            "baselines": {
                "counting": {"test": baseline | {"auc": 0.1}},
                "gradient_boosting": {"test": baseline, "validation": baseline},
            },
            "training_samples": {"model": 1500, "baselines": 2000},
            "seed": seed,
            "samples_per_second": 1234.5,
            "machine": "x86_64, 2 CPU cores, 1 threads, linux",
            "versions": {"lmctr": "0.1.0", "torch": "2.13.0"},
            "command": "lmctr train recipes/tiny.yaml --data.path /home/someone/private/ml-latest-small",
        },
    )
    write_json(
        path / "data.json",
        {
            "info": {
                "name": "MovieLens tiny",
                "url": "https://example.org/movielens",
                "licence": "research use only",
                "citation": "Harper and Konstan 2015",
                "label_rule": "rating > 3",
                "language": "en",
                "notes": None,
                "best_auc": None,
                "extra": {},
            },
            "counts": {
                "users": 20,
                "items": 4,
                "events": 2500,
                "samples": {"train": 2000, "validation": 200, "test": 300},
            },
            "split": {
                "rule": "time",
                "boundaries": {"validation": 1_500_000_000, "test": 1_510_000_000},
                "times": {"train": [1_400_000_000, 1_499_999_999]},
            },
            "label_rates": {"train": 0.5123456},
            "truncation": {
                "train": {"samples": 2000, "max_length": 128, "mean_length": 87.6, "share_truncated": 0.0125}
            },
        },
    )
    recipe = {
        "data": {"name": "movielens", "path": "/home/someone/private/ml-latest-small", "num_behaviors": 5},
        "model": {"backbone": {"model_type": "bert", "hidden_size": 32}, "sink_signal": config.get("sink_signal")},
        "training": {"learning_rate": 0.001, "seed": seed},
    }
    (path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    for extra in ("checkpoints/checkpoint-3/model.safetensors", "checkpoints/checkpoint-3/optimizer.pt", "notes.txt"):
        (path / extra).parent.mkdir(parents=True, exist_ok=True)
        (path / extra).write_bytes(b"stays here")
    return model, processor


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2))
