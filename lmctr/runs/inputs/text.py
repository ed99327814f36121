"""Text inputs: an interaction log as prompts for a language model (CTR-Sink)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from lmctr.data.batches.text import TextDataset, TextView
from lmctr.models.common.base import plain_model
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import Prompt
from lmctr.runs.inputs import config_keys, text_build
from lmctr.runs.inputs.base import ALONE, PARTS, RunContext
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS, TextDataKeys, TextModelKeys
from lmctr.runs.inputs.logs import LogInput
from lmctr.utils.values import Values

# Config keys that the data group sets, because the processor and the model must agree on them.
_SET_BY_DATA = {"sink_order": "order", "feedback": "feedback", "num_behaviors": "num_behaviors"}


class TextInput(LogInput):
    """Histories and targets as text, for families whose backbone is a language model."""

    data_keys: ClassVar = TextDataKeys
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "retrieval")
    has_stages: ClassVar = True

    # ---- the recipe -----------------------------------------------------------------------------------------------

    @classmethod
    def model_keys(cls, family: str) -> type[Values]:
        return config_keys(family, {"text_config", *_SET_BY_DATA}, TextModelKeys)

    @classmethod
    def set_elsewhere(cls, family: str) -> Mapping[str, str]:
        return {key: f"set data.{name}" for key, name in _SET_BY_DATA.items()}

    @classmethod
    def check_recipe(cls, data: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, str]]:
        if data["order"] != "recent" and data["retrieval"] is None:
            yield (
                "data.order",
                f"data.order is {data['order']!r}, which places retrieved behaviours: "
                "set data.retrieval, for example {encoder: tfidf, k: 50}",
            )
        backbone, tokenizer = model["backbone"], model["tokenizer"]
        if isinstance(backbone, str):
            if isinstance(tokenizer, dict):
                yield (
                    "model.tokenizer",
                    "model.tokenizer trains a new tokenizer, but the pretrained backbone "
                    f"{backbone!r} knows only its own ids; leave model.tokenizer out, or give the backbone as a mapping",
                )
            return
        if not isinstance(backbone.get("model_type"), str):
            yield (
                "model.backbone",
                "model.backbone is a config from scratch without model_type; "
                "accepted: a model name, a folder, package:NAME, or a mapping such as {model_type: bert, hidden_size: 128}",
            )
        else:
            try:
                text_build.check_backbone(backbone)
            except ValueError as error:
                yield "model.backbone", str(error)
        if model["text_config_values"]:
            yield (
                "model.text_config_values",
                "model.text_config_values changes a pretrained backbone's config; "
                "model.backbone is a config itself: put the values there",
            )
        if tokenizer is None:
            yield (
                "model.tokenizer",
                "model.tokenizer is missing; a backbone from scratch needs a tokenizer name, "
                "or {type: wordpiece, vocab_size: 8192} to train one on the training part's item texts",
            )

    # ---- data -----------------------------------------------------------------------------------------------------

    def check(self) -> list[str]:
        lines = super().check()
        try:
            Prompt.load(self.data["prompt"]).item_texts(self.log.catalogue.slice(0, 1))
        except ValueError as error:
            known = ", ".join(name for name in self.log.catalogue.column_names if name != "item_id")
            raise ValueError(
                f"data.prompt is {self.data['prompt']!r}: {error}; set a prompt whose item template names columns of the catalogue "
                f"({known}), such as generic/en"
            ) from error
        return lines

    def make_processor(self) -> CTRSinkProcessor:
        return text_build.build_processor(
            self.data, self.model_group, text_build.build_tokenizer(self.data, self.model_group, self.log, self.splits)
        )

    def load_processor(self, folder: Path) -> CTRSinkProcessor:
        from lmctr.runs.loading import check_tokenizer_files

        check_tokenizer_files(folder)
        return CTRSinkProcessor.from_pretrained(folder)

    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        self._check_labels(parts)
        retrieval = None
        if processor.needs_similarity:
            events = np.concatenate([self.splits[part] for part in parts])
            place = run.folder / "retriever" if run.folder is not None else None
            if run.writes:  # the first process computes and stores them, the others read what it stored
                if run.is_first:
                    retrieval = self._retrieve(processor, events, place)
                run.wait()
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
        train = self.splits.train
        return text_build.build_retrieval_for(processor, self.log, events, self.data, folder, train, retriever)

    def dataset(self, part: str) -> TextDataset:
        return TextDataset(self.view, self.splits[part])

    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        return text_build.build_collator(self.view, half_precision)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        return text_build.describe_data(self.log, self.splits, self.view, say)

    # ---- model ----------------------------------------------------------------------------------------------------

    def model(self, processor: Any) -> Any:
        return text_build.build_model(self.data, self.model_group, processor)

    def describe_model(self, model: Any) -> str:
        return f"{type(plain_model(model)).__name__} on {model.config.text_config.model_type}"
