"""Text inputs: an interaction log as prompts for a language model (CTR-Sink)."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from lmctr.data.batches.text import (
    TextCollator,
    TextDataset,
    TextView,
    behavior_statistics,
    feedback_codes,
    unread_signal,
)
from lmctr.data.logs.retrieval import Retrieval, TextRetriever, build_retrieval
from lmctr.data.registry import is_schema
from lmctr.models.common.base import plain_model
from lmctr.models.ctr_sink.backbone import max_positions
from lmctr.models.ctr_sink.configuration_ctr_sink import (
    BACKBONES,
    CTRSinkConfig,
    check_feedback_settings,
    check_sink_settings,
    signals_of,
    statistic_signals,
    usual_signal,
)
from lmctr.models.ctr_sink.modeling_ctr_sink import CTRSinkForCTR
from lmctr.models.ctr_sink.piece_tokens import prompt_texts
from lmctr.models.ctr_sink.processing_ctr_sink import CTRSinkProcessor
from lmctr.models.ctr_sink.prompt import ItemTemplate, Prompt
from lmctr.models.ctr_sink.sink_signals import fit_statistic_bounds, fit_value_levels
from lmctr.models.families import families
from lmctr.runs.folder import RunFolder
from lmctr.runs.inputs import config_keys
from lmctr.runs.inputs.base import ALONE, PARTS, RunContext
from lmctr.runs.inputs.going_on import GoingOn
from lmctr.runs.inputs.keys import COMMON_DATA_KEYS, TextDataKeys, TextModelKeys
from lmctr.runs.inputs.logs import LogInput, check_statistics, log_fingerprint, may_hold, statistic_names
from lmctr.runs.inputs.text_build import build_text_config, check_backbone, pretrained_text_config, scratch_text_config
from lmctr.runs.loading import check_tokenizer_files
from lmctr.statistics import StatisticsReader
from lmctr.statistics.table import SCENARIO, SHOWN
from lmctr.training.tokenizers import resolve_backbone, train_tokenizer
from lmctr.utils.files import expanded, read_json
from lmctr.utils.values import Values

# Config keys that the data group sets, because the processor and the model must agree on them.
_SET_BY_DATA = {
    "sink_order": "order",
    "feedback": "feedback",
    "num_behaviors": "num_behaviors",
    "max_sinks": "num_behaviors",
    "max_elements": "num_behaviors",
    "num_history_fields": "prompt",
    "num_target_fields": "prompt",
    "num_statistics": "statistics",
    "processor_fingerprint": "prompt",
}

# Model keys that are not the configuration's and say what the weights are; and those of the configuration that only say how to train.
_OF_WEIGHTS = "backbone", "tokenizer", "sink_token", "text_config_values"
_FREE = ("sink_bias_dropout", "statistics_dropout", "items_ahead")

_MUCH_UNKNOWN = 0.02  # share of tokens; emoji and rare signs stay below


def _is_own_model(folder: Path) -> bool:
    """Whether a folder holds a model of the library; what is wrong with a configuration is told where it is loaded."""
    try:
        return read_json(folder / "config.json").get("model_type") in {family.model_type for family in families()}
    except (OSError, ValueError, AttributeError):
        return False


def _wrong_sinks(data: dict[str, Any], model: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The first of the values of sinks that do not fit together, as `check_recipe` tells it."""
    values = {key: model[key] for key in ("sink_kind", "sink_signal", "layout")}
    settings = SimpleNamespace(**values, sink_order=data["order"], feedback=data["feedback"])
    if settings.sink_signal is None:
        settings.sink_signal = usual_signal(settings.sink_kind)
    settings.signals = signals_of(settings.sink_signal)

    def require(right: bool, key: str, accepted: str) -> None:
        if not right:
            group = "data" if key in _SET_BY_DATA else "model"
            place = f"{group}.{_SET_BY_DATA.get(key, key)}"
            raise ValueError(place, f"{place} is {getattr(settings, key)!r}, accepted: {accepted}")

    try:
        check_sink_settings(settings, require)
        check_feedback_settings(settings, require)
        for name in statistic_signals(settings.signals):
            if not may_hold(data["statistics"], name):
                raise unread_signal(name)
    except ValueError as error:
        yield error.args if len(error.args) == 2 else ("model.sink_signal", f"model.{error}")


def _is_causal(model_type: str) -> bool:
    spec = BACKBONES.get(model_type)
    return spec is None or spec.is_causal


class TextInput(GoingOn, LogInput):
    """Histories and targets as text, for families whose backbone is a language model."""

    data_keys: ClassVar = TextDataKeys
    free_data_keys: ClassVar = (*COMMON_DATA_KEYS, "since", "retrieval")
    reads_descriptions: ClassVar = True
    has_stages: ClassVar = True

    # ---- the recipe ----

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
        yield from check_statistics(data)
        names = statistic_names(data)
        if SCENARIO in names or any(SHOWN in name for name in names):
            yield (
                "data.statistics",
                f"data.statistics is {names}: requests of texts tell no scenario; leave {SCENARIO} out",
            )
        yield from _wrong_sinks(data, model)
        backbone, tokenizer = model["backbone"], model["tokenizer"]
        if isinstance(backbone, str):
            if _is_own_model(expanded(backbone)):
                yield (
                    "model.backbone",
                    f"model.backbone {backbone!r} is a model of lmctr, no language model; to go on from a run: --from {backbone}",
                )
            if isinstance(tokenizer, dict):
                yield (
                    "model.tokenizer",
                    "model.tokenizer trains a new tokenizer, but the pretrained backbone "
                    f"{backbone!r} knows only its own ids; leave model.tokenizer out (null, where the base of the "
                    "recipe or the file sets it), or give the backbone as a mapping",
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
                check_backbone(backbone)
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

    # ---- data ----

    def check(self) -> list[str]:
        lines = super().check()
        try:
            prompt = Prompt.load(self.data["prompt"])
            prompt.item_texts(self.log.catalogue.slice(0, 1))
            prompt.behavior_texts(self.log.catalogue.slice(0, 1))
            for piece, text in prompt_texts(prompt).items():
                if named := re.search(r"\{\w+\}", text):
                    raise ValueError(
                        f"{piece} {text!r} holds {named[0]}, which nothing fills: `item` and `behavior_item` read columns"
                    )
        except ValueError as error:
            known = ", ".join(name for name in self.log.catalogue.column_names if name != "item_id")
            raise ValueError(
                f"data.prompt is {self.data['prompt']!r}: {error}; set a prompt whose item template names columns of the catalogue "
                f"({known}), such as generic/en"
            ) from error
        return lines

    def make_processor(self) -> CTRSinkProcessor:
        """The processor of the recipe, or that of the earlier run, as it was."""
        if self.before is not None:
            return self._continued()
        tokenizer, reader = self._tokenizer(), self.statistics_reader()
        return self._processor(
            tokenizer,
            build_text_config(self.model_group, tokenizer),
            value_levels=self._value_levels(),
            statistics_reader=reader,
            statistic_bounds=self._statistic_bounds(reader),
            feedback_labels=self._labels_of_feedback() if self.data["statistics"] else None,
        )

    def _processor(self, tokenizer: PreTrainedTokenizerBase, text_config: Any, **fitted: Any) -> CTRSinkProcessor:
        """The recipe's processor, with what is `fitted` to data; texts are cut to what the backbone has positions for."""
        data, model = self.data, self.model_group
        max_length = data["max_length"]
        positions = max_positions(text_config)
        if positions is not None:
            # In other layouts each text has positions of its own, and max_length counts the whole row.
            if max_length is not None and max_length > positions and model["layout"] == "single":
                raise ValueError(
                    f"data.max_length is {max_length}, but the backbone has positions for {positions} tokens; "
                    "give a smaller max_length or a backbone with more positions"
                )
            if max_length is None and tokenizer.model_max_length > positions:
                max_length = positions
        processor = CTRSinkProcessor(
            tokenizer,
            sink_order=data["order"],
            max_length=max_length,
            **fitted,
            **{key: data[key] for key in ("prompt", "num_behaviors", "feedback", "trailing_sink")},
            **{key: model[key] for key in ("sink_kind", "sink_signal", "num_sink_buckets", "sink_token", "layout")},
        )
        largest = processor.largest_id
        if largest >= text_config.vocab_size:
            raise ValueError(
                f"model.tokenizer: its token ids go up to {largest}, but the backbone {model['backbone']!r} has embeddings for "
                f"{text_config.vocab_size} tokens; name the tokenizer that the backbone was trained with, or a backbone whose embeddings "
                "were made larger for it"
            )
        return processor

    def _continued(self) -> CTRSinkProcessor:
        """The earlier run's processor, which knows items by their texts: tokenizer, levels, bins and scales stay as they were fitted.
        `ValueError` where the recipe's settings are others."""
        folder, data = RunFolder(self.before), self.data
        recipe, earlier, before = folder.recipe(), self._config_before(), self.load_processor(self.before)
        config = self._config(earlier.text_config, {"sink_order": data["order"], "feedback": data["feedback"]})
        kept = [key for key in self.model_group if key not in (*TextModelKeys.model_fields, *_FREE)]
        reader, retrieval = before.statistics_reader, recipe["data"].get("retrieval") or {}
        self.refuse_changes(
            [
                *((f"model.{key}", self.model_group[key], recipe["model"].get(key)) for key in _OF_WEIGHTS),
                *((f"model.{key}", getattr(config, key), getattr(earlier, key)) for key in kept),
            ]
        )
        unread = self.statistics_kept(self.log, () if reader is None else reader.names)
        fitted = ("value_levels", "statistics_reader", "statistic_bounds", "feedback_labels", "sink_token_id")
        same = {name: getattr(before, name) for name in fitted}
        own, found = (
            one.to_dict() for one in (self._processor(before.tokenizer, earlier.text_config, **same), before)
        )
        if data["max_length"] is recipe["data"].get("max_length") is None:  # a default that was another one
            own["max_length"] = found["max_length"]
        prompts = own["prompt"].keys() | found["prompt"].keys()
        self.refuse_changes(
            [
                *((f"data.prompt.{key}", own["prompt"].get(key), found["prompt"].get(key)) for key in sorted(prompts)),
                *((f"data.{'order' if key == 'sink_order' else key}", own[key], found[key]) for key in found),
            ]
        )
        if before.needs_similarity:
            encoder = (data["retrieval"] or {}).get("encoder")
            self.refuse_changes([("data.retrieval.encoder", encoder, retrieval.get("encoder"))])
        self._value_levels()  # graded feedback that is read must be there
        self._check_feedback(before, self.before)
        before.statistics_reader = self.statistics_reader(reader)
        self.extended = f"texts, sinks and statistics are read as they were{unread}"
        self.say_times(self.log.time, self.splits)
        return before

    def _labels_of_feedback(self) -> list[int] | None:
        """[`LogInput.feedback_labels`] by the prompt's codes; None where it does not describe the log's."""
        labels = self.feedback_labels()
        try:
            codes = feedback_codes(self.log.feedback_names, Prompt.load(self.data["prompt"]))
        except ValueError:  # refused where they are read
            return None
        if labels is None:
            return None
        found = dict(zip(codes.tolist(), labels))
        return [found.get(code, -1) for code in range(max(found) + 1)]

    def _check_feedback(self, processor: CTRSinkProcessor, folder: Path) -> None:
        """Raises `ValueError` where kinds of feedback, which the prompt knows by their order only, stand in another than in a run's data."""
        if not processor.needs_feedback:
            return
        own = list(self.log.feedback_names)
        named = set(own[1:]) <= set(processor.prompt.feedback_names)
        codes = (RunFolder(folder).data() or {}).get("feedback_names", [])[: len(own)]
        if not named and codes != own[: len(codes)]:
            names = [*codes[1:], *(name for name in own[1:] if name not in codes)]
            place = "columns.feedback of the schema"
            if not is_schema(self.data["name"]):
                place = (
                    "data.options.columns.feedback"
                    if "columns" in self.data["options"]
                    else "feedback_names of the log"
                )
            way = f"name them in that order, new ones at the end: names: [{', '.join(names)}] in {place}"
            if len(names) >= len(processor.prompt.feedback_names):
                way = "the prompt has words for no more: leave out the events of new kinds, or train anew"
            raise ValueError(
                f"{self.log.info.name!r} has the kinds of feedback {', '.join(own)}, those of {folder} were {', '.join(codes)}; {way}"
            )

    def _config_before(self) -> CTRSinkConfig:
        return CTRSinkConfig.from_pretrained(self.before)

    def _tokenizer(self) -> PreTrainedTokenizerBase:
        """The recipe's tokenizer: the backbone's own, a named one, or one trained on the training part."""
        wanted, backbone = self.model_group["tokenizer"], self.model_group["backbone"]
        if isinstance(wanted, dict):
            return train_tokenizer(
                self._training_texts(),
                wanted["type"],
                wanted["vocab_size"],
                lowercase=wanted["lowercase"],
                min_frequency=wanted["min_frequency"],
                use_template=wanted["type"] == "wordpiece" or not _is_causal(backbone["model_type"]),
            )
        if isinstance(backbone, str):
            # an unknown backbone is told as such, not as one without tokenizer
            pretrained_text_config(self.model_group)
        key, name = ("model.backbone", backbone) if wanted is None else ("model.tokenizer", wanted)
        try:
            tokenizer = AutoTokenizer.from_pretrained(resolve_backbone(name))
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{key}: no tokenizer can be loaded from {name!r} ({error})") from error
        # transformers makes it of a folder without one
        if len(tokenizer.get_vocab()) <= len(tokenizer.all_special_ids):
            raise ValueError(
                f"{key}: {name!r} holds no tokenizer (its vocabulary would be empty); set model.tokenizer"
            )
        if tokenizer.pad_token is tokenizer.eos_token is None:
            raise ValueError(
                f"{key}: {name!r} has neither a padding token nor an end token; set its pad_token and save it anew"
            )
        if tokenizer.pad_token is None:  # Llama, GPT-2; padding is masked, so any token does that no text has
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer

    def _statistic_bounds(self, reader: StatisticsReader | None) -> dict[str, list[float]]:
        """The bins of the statistics that sinks carry, equally frequent among the behaviours that training shows."""
        model = self.model_group
        found = behavior_statistics(self.log, reader, statistic_signals(signals_of(model["sink_signal"] or "")))
        shown, most = self.log.seen_events(self.splits.train), min(32, model["num_sink_buckets"] - 2)
        return {name: fit_statistic_bounds(values[shown], most) for name, values in found.items()}

    def _value_levels(self) -> list[float] | None:
        """What stands for graded feedback, from what training shows of it; None where neither sinks nor words carry it."""
        log, model, prompt = self.log, self.model_group, Prompt.load(self.data["prompt"])
        if "feedback_value" in signals_of(model["sink_signal"] or ""):
            key = "model.sink_signal holds feedback_value"
        elif self.data["feedback"] == "inline" and prompt.tells_values:
            key = f"data.prompt: a feedback word of {prompt.name!r} holds {{value}}"
        else:
            return None
        if (
            log.feedback_values is None
            or np.isnan(known := log.feedback_values[log.seen_events(self.splits.train)]).all()
        ):
            raise ValueError(
                f"{key}, but {log.info.name!r} has no graded feedback in its training part; name a column of numbers (stars, watched "
                "share) as columns.feedback_values of its schema, or use the feedback alone"
            )
        return fit_value_levels(known, most=min(32, model["num_sink_buckets"] - 1))

    def _training_texts(self) -> list[str]:
        """Texts that a tokenizer from scratch may learn from: the items of the training samples and of their histories,
        and the prompt's own texts."""
        log, prompt = self.log, Prompt.load(self.data["prompt"])
        catalogue = log.catalogue.take(np.unique(log.item[log.seen_events(self.splits.train)]))
        texts = prompt.item_texts(catalogue)
        if prompt.behavior_item is not None:
            texts += prompt.behavior_texts(catalogue)
        values = prompt.to_dict()
        texts += [values.get(key) for key in ("head", "separator", "target", "empty_history")]
        levels = (self._value_levels() if prompt.tells_values else None) or [None]
        texts += [text for entry in prompt.feedback for text in (*map(entry.word_for, levels), entry.header)]
        return [text for text in texts if text]

    def load_processor(self, folder: Path) -> CTRSinkProcessor:
        check_tokenizer_files(folder)
        return CTRSinkProcessor.from_pretrained(folder)

    def open(self, processor: Any, parts: tuple[str, ...] = PARTS, run: RunContext = ALONE) -> None:
        if run.measures:
            self._check_labels(parts)
        events = np.concatenate([self.splits[part] for part in parts])
        folder = None if run.folder is None else run.folder / "retriever"
        if run.writes and not run.is_first:  # it reads what the first process computes and stores
            run.wait()
        retrieval = self.retrieve(processor, events, folder, run.writes)
        if run.writes and run.is_first:
            run.wait()
        if run.folder is not None:
            self._check_feedback(processor, run.folder)
        self.view = TextView(self.log, processor, retrieval, samples=events)

    def retrieve(
        self, processor: Any, events: np.ndarray, folder: Path | None, writes: bool = False
    ) -> Retrieval | None:
        """Similar behaviours of each event, where the processor's order or signals need them; else None.

        Args:
            folder: of the run's retriever. With `writes`, results are cached there, and the retriever is saved beside them, so that
                predictions from raw texts use the same vectors; without, the retriever that it holds is used.

        TF-IDF learns from the training part's items only; a run that goes on keeps what the earlier one learned.
        """
        if not processor.needs_similarity:
            return None
        wanted = self.data["retrieval"]
        if wanted is None:
            raise ValueError(
                "data.retrieval is missing: the order or a sink signal of this recipe needs similarities; "
                "set it, for example {encoder: tfidf, k: 50}"
            )
        if self.before is not None and writes:  # similarities keep their meaning
            kept = RunFolder(self.before).retriever
        else:
            kept = folder if folder is not None and not writes and folder.is_dir() else None
        result = build_retrieval(
            self.log,
            events,
            encoder=TextRetriever.from_pretrained(kept) if kept else resolve_backbone(wanted["encoder"]),
            k=max(wanted["k"], processor.num_behaviors),
            cache_dir=folder if writes else None,
            train_events=self.splits.train,
            processor=processor,
        )
        if writes:
            result.retriever.save_pretrained(folder)
        return result

    def dataset(self, part: str) -> TextDataset:
        return TextDataset(self.view, self.splits[part])

    def collator(self, half_precision: bool) -> Callable[[list], dict]:
        return TextCollator(self.view, pad_to_multiple_of=8 if half_precision else None)

    def describe(self, say: Callable[[str], None] = lambda line: None) -> dict[str, Any]:
        result = super().describe(say)
        cuts = {name: self.view.truncation(events) for name, events in self.splits.items() if len(events)}
        self._tell_unknown(result["unknown_by_field"].get("train", {}), say)
        result |= {"truncation": cuts, "fingerprint": log_fingerprint(self.log, self.splits)}
        result |= self._statistics_read()
        if cuts.get("train"):
            cut = cuts["train"]
            say(
                f"tokens per training sample: mean {cut['mean_length']:.0f}, longest {cut['longest']}; "
                f"{cut['share_truncated']:.1%} of samples lost behaviours to max_length"
            )
            if cut["share_emptied"]:
                prompt = self.view.processor.prompt
                names = ", ".join(ItemTemplate(prompt.behavior_item or prompt.item).columns)
                say(
                    f"  {cut['share_emptied']:.1%} of samples lost their whole history: a behaviour longer than the room that "
                    f"data.max_length ({cut['max_length']}) leaves beside the target drops itself and all before it; raise data.max_length, or "
                    f"shorten {names} (the prompt's behavior_item may read less than item)"
                )
        return result

    def _tell_unknown(self, shares: Mapping[str, float], say: Callable[[str], None]) -> None:
        """Say what of the training's texts becomes the one token that stands for all that a tokenizer does not know."""
        processor = self.view.processor
        of_prompt = float(np.mean(processor.encode_items([]).values == processor.tokenizer.unk_token_id))
        known = {"the prompt": of_prompt} | {name: own for name, own in shares.items() if name.startswith("tokens")}
        told = [f"{share:.1%} of {name}" for name, share in known.items() if share >= _MUCH_UNKNOWN]
        if told:
            say(
                f"the tokenizer does not know {', '.join(told)} (training): it reads all of that as {processor.tokenizer.unk_token or 'nothing'}, "
                "whatever it says; where that is words, take a backbone of their language"
            )

    # ---- model ----

    def model(self, processor: Any) -> CTRSinkForCTR:
        model, backbone = self.model_group, self.model_group["backbone"]
        values = {
            "sink_order": self.data["order"],
            "feedback": self.data["feedback"],
            "max_sinks": processor.max_sinks,
            "max_elements": processor.max_elements,
            "processor_fingerprint": processor.fingerprint,
        }
        if processor.layout == "fields":
            values["num_history_fields"] = len(processor.prompt.feedback)
            values["num_target_fields"] = processor.num_target_fields
        reader = processor.statistics_reader
        values["num_statistics"] = 0 if reader is None else len(reader.names)
        if self.before is not None:  # its weights come from the earlier run
            text_config = self._config_before().text_config
        elif isinstance(backbone, str):
            return CTRSinkForCTR.from_backbone(
                resolve_backbone(backbone),
                text_config_values=model["text_config_values"],
                attn_implementation=model["attn_implementation"],
                **self._config_keys(),
                **values,
            )
        else:
            text_config = scratch_text_config(backbone, processor.tokenizer, processor.sink_token_id)
        config = self._config(text_config, values)
        if model["attn_implementation"] is not None:
            config._attn_implementation = model["attn_implementation"]
        return CTRSinkForCTR(config)

    def _config_keys(self) -> dict[str, Any]:
        """What the recipe says of the configuration itself."""
        return {key: value for key, value in self.model_group.items() if key not in TextModelKeys.model_fields}

    def _config(self, text_config: Any, values: Mapping[str, Any]) -> CTRSinkConfig:
        return CTRSinkConfig(text_config=copy.deepcopy(text_config), **self._config_keys(), **values)

    def describe_model(self, model: Any) -> str:
        return f"{type(plain_model(model)).__name__} on {model.config.text_config.model_type}"
