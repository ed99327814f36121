"""What the benchmarks on logs run on: the log, a tokenizer of its catalogue, a backbone with random weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from lmctr.benchmarks.options import BackboneBenchmark, LogBenchmark
from lmctr.data.logs.log import InteractionLog
from lmctr.data.registry import load_log
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.training.tokenizers import train_tokenizer

SEED = 0
_VOCAB_SIZE = 8000  # of the tokenizer made from the catalogue


def read_log(options: LogBenchmark, **made: Any) -> InteractionLog:
    """The log of a benchmark; `made`: options of the generated one that it takes by default."""
    given = {} if options.path is None else {"path": options.path}
    return load_log(options.data, **given, **(made if options.data == type(options).data else {}))


def shuffled_samples(log: InteractionLog) -> np.ndarray:
    """Events that are samples, in random order.

    Raises:
        ValueError: there is none.
    """
    events = log.sample_events()
    if not len(events):
        raise ValueError(f"{log.info.name} has no sample: no event has a label")
    return np.random.default_rng(SEED).permutation(events)


def prompt_of(log: InteractionLog) -> str:
    """The prompt that reads a log's items where none is asked for: films' one, or that of any catalogue with titles."""
    return "movielens/en" if "genres" in log.catalogue.column_names else "generic/en"


def catalogue_tokenizer(
    log: InteractionLog, kind: str = "wordpiece", prompt: str | None = None
) -> PreTrainedTokenizerFast:
    """A tokenizer trained on the texts of the items."""
    return train_tokenizer(Prompt.load(prompt or prompt_of(log)).item_texts(log.catalogue), kind, _VOCAB_SIZE)


def behaviors(
    log: InteractionLog, texts: Sequence[str], first: int, last: int, counted: bool = False
) -> list[dict[str, Any]]:
    """Events of a user as the processor takes them. `counted`: with what statistics are counted from."""
    found = []
    for event in range(first, last):
        item = log.item[event]
        found.append({"text": texts[item], "time": int(log.time[event]), "feedback": int(log.feedback[event])})
        if counted:
            label = int(log.label[event])
            found[-1] |= {"item": log.catalogue["item_id"][item].as_py(), "label": None if label < 0 else label}
    return found


def random_model(
    options: BackboneBenchmark, processor: CTRSinkProcessor, positions: int, text: dict[str, Any], **config: Any
) -> CTRSinkForCTR:
    """A CTR-Sink model with seeded weights for texts of that many positions. `text`, `config`: more of its configurations."""
    text = {
        "model_type": options.model_type,
        "vocab_size": len(processor.tokenizer),
        "hidden_size": options.hidden_size,
        "num_hidden_layers": options.layers,
        "num_attention_heads": options.heads,
        "intermediate_size": options.intermediate_size,
        "max_position_embeddings": positions + 8,  # RoBERTa counts from its padding id
        **text,
    }
    if options.model_type.startswith("qwen"):
        text["num_key_value_heads"] = options.key_value_heads or options.heads
    torch.manual_seed(SEED)
    return CTRSinkForCTR(CTRSinkConfig(text_config=text, feedback=processor.feedback, **config)).to(options.device)
