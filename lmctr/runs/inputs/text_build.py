"""From a recipe of text inputs to the things that training and evaluation need: log, splits, processor, model."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerBase
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from lmctr.data.batches.text import TextCollator, TextView
from lmctr.data.logs.log import InteractionLog
from lmctr.data.logs.splits import Splits
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.runs.inputs.keys import TextModelKeys
from lmctr.runs.inputs.logs import describe_log, log_fingerprint
from lmctr.training.tokenizers import resolve_backbone, train_tokenizer
from lmctr.utils.suggest import unknown_key_message

# Backbones whose position table is fixed; RoBERTa numbers from pad_token_id + 1.
_ABSOLUTE_POSITIONS = ("bert", "roberta")


def training_texts(log: InteractionLog, splits: Splits, prompt: Prompt) -> list[str]:
    """Texts that a tokenizer from scratch may learn from: the items of the training samples and of their histories,
    and the prompt's own texts."""
    start, end = log.history_bounds(splits.train)
    change = np.zeros(log.num_events + 1, dtype=np.int64)
    np.add.at(change, start, 1)
    np.add.at(change, end, -1)
    seen = np.cumsum(change[:-1]) > 0
    seen[splits.train] = True
    items = np.unique(log.item[seen])
    catalogue = log.catalogue.take(items)
    texts = prompt.item_texts(catalogue)
    if prompt.behavior_item is not None:
        texts += prompt.behavior_texts(catalogue)
    texts = [text for text in texts if text]
    values = prompt.to_dict()
    pieces = [values[key] for key in ("head", "separator", "target", "empty_history") if values.get(key)]
    for entry in values.get("feedback") or ():
        pieces += [entry[key] for key in ("word", "header") if entry.get(key)]
    return texts + pieces


def build_tokenizer(
    data: Mapping[str, Any], model: Mapping[str, Any], log: InteractionLog, splits: Splits
) -> PreTrainedTokenizerBase:
    """The recipe's tokenizer: the backbone's own, a named one, or one trained on the training part."""
    wanted, backbone = model["tokenizer"], model["backbone"]
    if isinstance(wanted, dict):
        model_type = backbone["model_type"]
        return train_tokenizer(
            training_texts(log, splits, Prompt.load(data["prompt"])),
            wanted["type"],
            wanted["vocab_size"],
            lowercase=wanted["lowercase"],
            min_frequency=wanted["min_frequency"],
            use_template=model_type in _ABSOLUTE_POSITIONS or wanted["type"] == "wordpiece",
        )
    if isinstance(backbone, str):
        pretrained_text_config(model)  # an unknown backbone is told as such, not as one without tokenizer
    key, name = ("model.backbone", backbone) if wanted is None else ("model.tokenizer", wanted)
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolve_backbone(name))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(f"{key}: no tokenizer can be loaded from {name!r} ({error})") from error
    if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):  # what transformers makes of a folder without one
        raise ValueError(f"{key}: {name!r} holds no tokenizer (its vocabulary would be empty); set model.tokenizer")
    return tokenizer


def build_processor(
    data: Mapping[str, Any], model: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase
) -> CTRSinkProcessor:
    """The processor of a recipe; texts are cut to what the backbone has positions for."""
    max_length = data["max_length"]
    text_config = build_text_config(model, tokenizer)
    largest = max(tokenizer.get_vocab().values())
    if largest >= text_config.vocab_size:
        raise ValueError(
            f"model.tokenizer: its token ids go up to {largest}, but the backbone {model['backbone']!r} has embeddings for "
            f"{text_config.vocab_size} tokens; leave model.tokenizer out, or name the one that the backbone was trained with"
        )
    positions = max_positions(text_config)
    if positions is not None:
        if max_length is not None and max_length > positions:
            raise ValueError(
                f"data.max_length is {max_length}, but the backbone has positions for {positions} tokens; "
                "give a smaller max_length or a backbone with more positions"
            )
        if max_length is None and tokenizer.model_max_length > positions:
            max_length = positions
    return CTRSinkProcessor(
        tokenizer,
        prompt=data["prompt"],
        num_behaviors=data["num_behaviors"],
        sink_kind=model["sink_kind"],
        sink_signal=model["sink_signal"],
        sink_order=data["order"],
        num_sink_buckets=model["num_sink_buckets"],
        feedback=data["feedback"],
        trailing_sink=data["trailing_sink"],
        max_length=max_length,
        sink_token=model["sink_token"],
        layout=model["layout"],
    )


def build_model(data: Mapping[str, Any], model: Mapping[str, Any], processor: CTRSinkProcessor) -> CTRSinkForCTR:
    """The model with its initial weights; seed the random generators before."""
    values = {key: value for key, value in model.items() if key not in TextModelKeys.model_fields}
    values |= {"sink_order": data["order"], "feedback": data["feedback"]}
    backbone = model["backbone"]
    if isinstance(backbone, str):
        return CTRSinkForCTR.from_backbone(
            resolve_backbone(backbone),
            text_config_values=model["text_config_values"],
            attn_implementation=model["attn_implementation"],
            **values,
        )
    text_config = scratch_text_config(backbone, processor.tokenizer, processor.sink_token_id)
    config = CTRSinkConfig(text_config=text_config, **values)
    if model["attn_implementation"] is not None:
        config._attn_implementation = model["attn_implementation"]
    return CTRSinkForCTR(config)


def build_text_config(model: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> Any:
    """The backbone's configuration, without its weights."""
    backbone = model["backbone"]
    if isinstance(backbone, dict):
        values = scratch_text_config(backbone, tokenizer)
        return CONFIG_MAPPING[values.pop("model_type")](**values)
    return pretrained_text_config(model)


def pretrained_text_config(model: Mapping[str, Any]) -> Any:
    """The configuration of a named backbone, with the recipe's changes.

    Raises:
        ValueError: no such backbone.
    """
    backbone = model["backbone"]
    try:
        config = AutoConfig.from_pretrained(resolve_backbone(backbone))
    except (OSError, ValueError, KeyError) as error:
        raise ValueError(
            f"model.backbone: {backbone!r} is neither a model id on the Hub, nor a folder with a config.json of a known "
            f"model type, nor package:NAME ({error})"
        ) from error
    for key, value in model["text_config_values"].items():
        setattr(config, key, value)
    return config


def check_backbone(values: Mapping[str, Any]) -> None:
    """Check what can be known of a backbone from scratch before there are data.

    Raises:
        ValueError: an unknown model type or configuration key, heads that do not divide the width.
    """
    model_type = values["model_type"]
    if model_type not in CONFIG_MAPPING:
        raise ValueError(f"model.backbone: unknown model_type {model_type!r}; for example bert, roberta, qwen2, qwen3")
    config_class = CONFIG_MAPPING[model_type]
    known = set(config_class().to_dict()) | set(inspect.signature(config_class.__init__).parameters)
    for key in values:
        if key not in known:
            raise ValueError(unknown_key_message(key, known - {"self", "args", "kwargs"}, "model.backbone"))
    config = config_class(**{key: value for key, value in values.items() if key != "model_type"})
    width, heads = (getattr(config, key, None) for key in ("hidden_size", "num_attention_heads"))
    if width and heads and width % heads:
        try:
            with torch.device("meta"):
                AutoModel.from_config(config)
        except ValueError as error:
            raise ValueError(
                f"model.backbone.num_attention_heads is {heads}, accepted: a divisor of model.backbone.hidden_size, which is {width} ({error})"
            ) from error


def scratch_text_config(
    values: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase, sink_token_id: int | None = None
) -> dict[str, Any]:
    """Configuration of a backbone from scratch: the recipe's values, with the tokenizer's vocabulary and ids.

    The sink token needs no row in the vocabulary: the model never looks it up.

    Raises:
        ValueError: an unknown model type or configuration key, a `vocab_size` smaller than the tokenizer's.
    """
    check_backbone(values)
    needed = max(number for number in tokenizer.get_vocab().values() if number != sink_token_id) + 1
    if values.get("vocab_size", needed) < needed:
        raise ValueError(
            f"model.backbone: vocab_size is {values['vocab_size']}, but the tokenizer has {needed} tokens; leave it out"
        )
    ids = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return {"vocab_size": needed, **ids, **values}


def max_positions(text_config: Any) -> int | None:
    """Tokens that a backbone with a fixed position table can read; None for backbones with relative positions."""
    if text_config.model_type not in _ABSOLUTE_POSITIONS:
        return None
    used = text_config.pad_token_id + 1 if text_config.model_type == "roberta" else 0
    return text_config.max_position_embeddings - used


def build_retrieval_for(
    processor: CTRSinkProcessor,
    log: InteractionLog,
    events: np.ndarray,
    data: Mapping[str, Any],
    folder: Path | None,
    train_events: np.ndarray,
    retriever: Any = None,
) -> Any:
    """Similar behaviours of each event, where the processor's order or signals need them; else None.

    TF-IDF learns from the training part's items only, unless a fitted `retriever` is given. With a folder, results are cached there and the retriever is saved
    beside them, so that predictions from raw texts use the same vectors.
    """
    if not processor.needs_similarity:
        return None
    from lmctr.data.logs.retrieval import build_retrieval

    wanted = data["retrieval"]
    if wanted is None:
        raise ValueError(
            "data.retrieval is missing: the order or a sink signal of this recipe needs similarities; "
            "set it, for example {encoder: tfidf, k: 50}"
        )
    result = build_retrieval(
        log,
        events,
        encoder=resolve_backbone(wanted["encoder"]) if retriever is None else retriever,
        k=max(wanted["k"], processor.num_behaviors),
        cache_dir=folder,
        train_events=train_events,
        processor=processor,
    )
    if folder is not None:
        result.retriever.save_pretrained(folder)
    return result


def build_collator(view: TextView, half_precision: bool) -> TextCollator:
    """The collator; widths are multiples of 8 where tensor cores gain from it."""
    return TextCollator(view, pad_to_multiple_of=8 if half_precision else None)


def describe_data(
    log: InteractionLog, splits: Splits, view: TextView, say: Callable[[str], None] = lambda line: None
) -> dict[str, Any]:
    """The content of a run's data.json: origin, counts, split, label rates, truncation."""
    result = describe_log(log, splits, say)
    parts = dict(splits.items())
    result["truncation"] = {name: view.truncation(events) for name, events in parts.items() if len(events)}
    result["fingerprint"] = log_fingerprint(log, splits)
    cut = result["truncation"].get("train")
    if cut:
        say(
            f"tokens per training sample: mean {cut['mean_length']:.0f}, longest {cut['longest']}; "
            f"{cut['share_truncated']:.1%} of samples lost behaviours to max_length"
        )
    return result
