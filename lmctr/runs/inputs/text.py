"""The text view: an interaction log as prompts for a language model (CTR-Sink)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from lmctr.data.batches.text import TextDataset, TextView
from lmctr.data.logs.log import InteractionLog
from lmctr.models.ctr_sink.configuration_ctr_sink import CTRSinkConfig
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.runs.inputs import text_build
from lmctr.runs.inputs.base import COMMON_DATA_KEYS, PARTS, View, check_labels, check_positive_fractions, log_columns
from lmctr.runs.inputs.logs import baseline_splits, build_log, build_splits
from lmctr.runs.recipe import RecipeError, dataclass_keys

if TYPE_CHECKING:
    from lmctr.data.logs.splits import Splits

_RETRIEVAL_KEYS: dict[str, tuple[Any, Any]] = {"encoder": (str, "tfidf"), "k": (int, 50)}
_TOKENIZER_KEYS: dict[str, tuple[Any, Any]] = {
    "type": (Literal["wordpiece", "bpe"], ...),
    "vocab_size": (int, 8192),
    "lowercase": (bool, True),
    "min_frequency": (int, 1),
}
# Config keys that the data group sets, because the processor and the model must agree on them.
_SET_BY_DATA = {"sink_order": "order", "feedback": "feedback", "num_behaviors": "num_behaviors"}


class TextRunView(View):
    """Histories and targets as text, for families whose backbone is a language model."""

    data_keys: ClassVar = {
        **COMMON_DATA_KEYS,
        "prompt": (str | dict, "generic/en"),
        "num_behaviors": (int, 50),
        "order": (Literal["recent", "similarity", "time"], "recent"),
        "feedback": (Literal["none", "groups", "inline", "sink"], "none"),
        "trailing_sink": (bool, True),
        "max_length": (int | None, None),
        "retrieval": (dict | None, None),
        "baselines": (bool, True),
    }
    nested_keys: ClassVar = {"data.retrieval": _RETRIEVAL_KEYS, "model.tokenizer": _TOKENIZER_KEYS}
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "retrieval")

    log: InteractionLog
    splits: Splits

    # ---- the recipe -----------------------------------------------------------------------------------------------

    @classmethod
    def model_keys(cls, family: str) -> dict[str, tuple[Any, Any]]:
        from transformers import PreTrainedConfig

        base = {field.name for field in dataclasses.fields(PreTrainedConfig)}
        return {**text_build.MODEL_KEYS, **dataclass_keys(CTRSinkConfig, base | {"text_config", *_SET_BY_DATA})}

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        return {key: f"set data.{name}" for key, name in _SET_BY_DATA.items()}

    @classmethod
    def check_recipe(cls, data: dict[str, Any], model: dict[str, Any], where: Callable[[str], str]) -> None:
        check_positive_fractions(data["fractions"], where)
        for key in ("num_behaviors", "max_length"):
            if data[key] is not None and data[key] < 1:
                raise RecipeError(
                    f"{where(f'data.{key}')}: data.{key} is {data[key]}, accepted: a whole number from 1"
                )
        if data["order"] != "recent" and data["retrieval"] is None:
            raise RecipeError(
                f"{where('data.order')}: data.order is {data['order']!r}, which places retrieved behaviours: "
                "set data.retrieval, for example {encoder: tfidf, k: 50}"
            )
        backbone = model.get("backbone")
        if isinstance(backbone, dict) and not isinstance(backbone.get("model_type"), str):
            raise RecipeError(
                f"{where('model.backbone')}: model.backbone is a config from scratch without model_type; "
                "accepted: a model name, a folder, package:NAME, or a mapping such as {model_type: bert, hidden_size: 128}"
            )
        if isinstance(backbone, dict) and model["text_config_values"]:
            raise RecipeError(
                f"{where('model.text_config_values')}: model.text_config_values changes a pretrained backbone's config; "
                "model.backbone is a config itself: put the values there"
            )
        if isinstance(backbone, dict) and model.get("tokenizer") is None:
            raise RecipeError(
                f"{where('model.tokenizer')}: model.tokenizer is missing; a backbone from scratch needs a tokenizer name, "
                "or {type: wordpiece, vocab_size: 8192} to train one on the training part's item texts"
            )
        if isinstance(backbone, str) and isinstance(model.get("tokenizer"), dict):
            raise RecipeError(
                f"{where('model.tokenizer')}: model.tokenizer trains a new tokenizer, but the pretrained backbone "
                f"{backbone!r} knows only its own ids; leave model.tokenizer out, or give the backbone as a mapping"
            )

    # ---- data -----------------------------------------------------------------------------------------------------

    def load(self, scratch: Path | None = None) -> None:
        self.log = build_log(self.recipe.data)
        self.splits = build_splits(self.log, self.recipe.data)

    def check(self) -> list[str]:
        from lmctr.data.logs.validation import validate_log

        lines = validate_log(self.log, self.splits).lines()
        self._check_labels(PARTS)
        return lines

    def _check_labels(self, parts: tuple[str, ...]) -> None:
        for part in parts:
            check_labels(part, self.log.label[getattr(self.splits, part)])

    def share(self, folder: Path) -> None:
        self.log.save(folder / "log")

    def load_shared(self, folder: Path) -> None:
        self.log = InteractionLog.load(folder / "log")
        self.splits = build_splits(self.log, self.recipe.data)

    def make_processor(self) -> CTRSinkProcessor:
        return text_build.build_processor(self.recipe, text_build.build_tokenizer(self.recipe, self.log, self.splits))

    def load_processor(self, folder: Path) -> CTRSinkProcessor:
        from lmctr.runs.loading import check_tokenizer_files

        check_tokenizer_files(folder)
        return CTRSinkProcessor.from_pretrained(folder)

    def open(
        self,
        processor: Any,
        *,
        parts: tuple[str, ...] = PARTS,
        folder: Path | None = None,
        is_first: bool = True,
        wait: Callable[[], None] = lambda: None,
        writes: bool = False,
    ) -> None:
        self._check_labels(parts)
        retrieval = None
        if processor.needs_similarity:
            events = np.concatenate([getattr(self.splits, part) for part in parts])
            place = folder / "retriever" if folder is not None else None
            if writes:  # the first process computes and stores them, the others read what it stored
                if is_first:
                    retrieval = self._retrieve(processor, events, place)
                wait()
                if retrieval is None:
                    retrieval = self._retrieve(processor, events, place)
            else:
                retriever = None
                if place is not None and place.is_dir():
                    from lmctr.data.logs.retrieval import TextRetriever

                    retriever = TextRetriever.from_pretrained(place)
                retrieval = self._retrieve(processor, events, None, retriever)
        self.view = TextView(self.log, processor, retrieval=retrieval)

    def _retrieve(self, processor: Any, events: np.ndarray, folder: Path | None, retriever: Any = None) -> Any:
        data, train = self.recipe.data, self.splits.train
        return text_build.build_retrieval_for(processor, self.log, events, data, folder, train, retriever)

    def num_samples(self, part: str) -> int:
        return len(getattr(self.splits, part))

    def dataset(self, part: str) -> TextDataset:
        return TextDataset(self.view, getattr(self.splits, part))

    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        return text_build.build_collator(self.view, half_precision)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        return text_build.describe_data(self.log, self.splits, self.view, say)

    @property
    def best_auc(self) -> float | None:
        return self.log.info.best_auc

    def identify(self, part: str) -> dict[str, Any]:
        return log_columns(self.log, getattr(self.splits, part))

    def baselines(self, seed: int) -> tuple[dict[str, dict[str, dict[str, Any]]], int]:
        from lmctr.evaluation.baselines import baseline_metrics

        parts = baseline_splits(self.log, self.splits, self.recipe.data)
        return baseline_metrics(self.log, parts, seed=seed), len(parts.train)

    # ---- model ----------------------------------------------------------------------------------------------------

    def model(self, processor: Any) -> Any:
        return text_build.build_model(self.recipe, processor)

    def describe_model(self, model: Any) -> str:
        return f"{type(text_build.plain_model(model)).__name__} on {model.config.text_config.model_type}"
