"""The facts of a model card by the kind of input; its sentences stand in `model_cards/template.md`, those on families in `lmctr.models.families`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator
from dataclasses import fields
from typing import Any, ClassVar

from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.models.common.configuration import CTRConfig, SequenceCTRConfig, TabularCTRConfig
from lmctr.models.families import Family, families
from lmctr.runs.about import as_text, shown
from lmctr.runs.examples import example_rows
from lmctr.runs.folder import ITEM_STATISTICS, RunFolder
from lmctr.runs.loading import load_config

_BUFFERS = re.compile(r"trees\.|\.(running_(mean|var)|num_batches_tracked)$")


class CardFamily(ABC):
    """The parts of a card that depend on the family.

    Args:
        row: the family's row. folder, recipe: of the run.

    Attributes:
        pipeline_tag, task: of the Hub.
        logits: the shape of the logits of one task, in words.
    """

    pipeline_tag: ClassVar[str] = "tabular-classification"
    task: ClassVar[str] = "Click-through rate prediction"
    logits: ClassVar[str] = "(rows)"

    def __init__(self, row: Family, folder: RunFolder, recipe: dict[str, Any] | None):
        self.row, self.folder, self.config = row, folder, folder.config
        self.recipe = recipe or {}

    def facts(self) -> list[tuple[str, str]]:
        """(title, value) rows: sizes, and the keys of the configuration that say how the model is made."""
        rows, trees = [("Model type", f"`{self.folder.model_type}`"), *self.sizes()], self.config.get("boosted_trees")
        if trees:
            share = f"their share in the logits is {trees['share']:g}, the network's {1 - trees['share']:g}"
            rows.append(("Boosted trees", f"{trees['trees']} on {self.tree_columns}; {share}"))
        added = self.config.get("calibration")
        if added:
            shown = ", ".join(f"{own:+.3f}" for own in added)
            rows.append(("Calibration", f"{shown} on the logit, by the clicks of the validation part"))
        return rows

    def words(self) -> dict[str, Any]:
        """What the template's sentences about this kind of model need."""
        return {}

    @property
    def output(self) -> str:
        """The line of the example that reads the model's output."""
        tasks, shape = self.config.get("task_names") or [], self.logits
        if len(tasks) > 1:
            shape = f"{shape.removesuffix(')')}, {len(tasks)}): {as_text(_listed(tasks))}"
        return f"probability = model(**batch).logits.sigmoid()  # {shape}"

    @property
    def tree_columns(self) -> str:
        """What boosted trees beside the network read."""
        if self.config.get("use_numeric_skip", True):
            return "the statistics"
        known, names = self.config["boosted_trees"].get("rated_fields", ()), self.config.get("field_names")
        count, numbers = len(self.config.get("vocab_sizes") or ()), self.config.get("num_numeric", 0)
        rated, pairs = ([own for own in known if isinstance(own, list) is paired] for paired in (False, True))
        lists = [[place + numbers] for place in rated if place >= count]  # whose names stand behind those of numbers
        rated = [[place] for place in rated if place < count]
        told = [" with ".join(str(p) if names is None else names[p] for p in own) for own in [*rated, *pairs, *lists]]
        if rated and len(rated) == count:
            told[: len(rated)] = ["all categorical ones"]
        rates = ", ".join(told)
        return "the numbers and ids of the fields" + (f" and the rates of {rates}" if rates else "")

    @abstractmethod
    def sizes(self) -> Iterator[tuple[str, str]]:
        """The facts after the model type."""

    def given(self, group: str, key: str) -> Any:
        """A value of the recipe, or None."""
        return (self.recipe.get(group) or {}).get(key)

    @property
    def trained(self) -> dict[str, int]:
        """Parameters by name, as a training counts them: boosted trees and running means of normalisations are none."""
        counts = self.folder.num_parameters
        return {name: count for name, count in counts.items() if not _BUFFERS.search(name)}

    def parameters(self, where: str, *in_tables: str) -> tuple[str, str]:
        """How many parameters there are, and how many of them in tables, whose names hold one of some words."""
        counts = self.trained
        tables = sum(count for name, count in counts.items() if any(part in name for part in in_tables))
        return "Parameters", f"{sum(counts.values()):,}, of which {tables:,} are in {where}"

    def fields(self, side: str = "") -> str:
        """How many fields of each type a row, or one side of an impression, has."""
        config, sizes = self.config, self.config.get(f"{side}vocab_sizes") or []
        parts = [f"{len(sizes)} categorical ({sum(sizes):,} values)", f"{config.get(f'{side}num_numeric', 0)} numeric"]
        if config.get(f"{side}num_sequences"):
            parts.append(f"{config[f'{side}num_sequences']} sequence")
        return ", ".join(parts)

    def own_keys(
        self, base: type[CTRConfig], hidden: Collection[str] = (), kept: Collection[str] = ()
    ) -> Iterator[tuple[str, str]]:
        """The keys of the family's own configuration as they are; nearly all of its `base` say how the data look."""
        of_base = {field.name for field in fields(base)} - {"initializer_range", *kept}
        hidden = {*hidden, *of_base, *CTRConfig().to_dict(), "use_cache"}
        for key, value in self.config.items():
            if key not in hidden and value is not None:
                yield f"`{key}`", _listed(value)


def _listed(value: Any, by: str = ", ") -> str:
    return by.join(map(str, value)) if isinstance(value, list) else str(value)


class TextCard(CardFamily):
    """Of a language model that reads histories as text."""

    pipeline_tag = "text-classification"

    def words(self) -> dict[str, Any]:
        encoder = (self.given("data", "retrieval") or {}).get("encoder")
        return {
            "sinks": _sinks(self.config),
            "needs_similarity": "similarity" in example_rows(self.folder)["histories"][0][0],
            "has_retriever": self.folder.has_retriever,
            "encoder": encoder and shown(encoder),
            "statistics": (self.folder.processor.get("statistics_reader") or {}).get("names"),
            "has_item_table": (self.folder.path / ITEM_STATISTICS).is_file(),
        }

    def sizes(self) -> Iterator[tuple[str, str]]:
        counts, text = self.trained, self.config.get("text_config") or {}
        backbone, origin = self.given("model", "backbone"), ""
        if backbone is not None:
            is_name = isinstance(backbone, str)
            origin = f", started from `{shown(backbone)}`" if is_name else ", trained from scratch"
        words = {"num_hidden_layers": "layers", "hidden_size": "wide"}
        size = ", ".join(f"{text[key]} {word}" for key, word in words.items() if key in text)
        yield "Backbone", f"{text.get('model_type', 'unknown')}{f' ({size})' if size else ''}{origin}"
        own = sum(count for name, count in counts.items() if "language_model." not in name)
        yield "Parameters", f"{sum(counts.values()):,}, of which {own:,} are not the backbone's"
        for values, key, title in (
            (self.config, "sink_kind", "Sink kind"),
            (self.config, "sink_signal", "Sink signal"),
            (self.config, "sink_order", "Order of behaviours"),
            (self.config, "feedback", "Feedback"),
            (self.folder.processor, "num_behaviors", "Behaviours read"),
            (self.folder.processor, "max_length", "Most tokens"),
        ):
            if values.get(key) is not None:
                yield title, _listed(values[key], " + ")
        prompt = (self.folder.processor.get("prompt") or {}).get("name")
        if prompt:
            yield "Prompt", f"`{prompt}`"


def _sinks(config: dict[str, Any]) -> str:
    kind, signal = config.get("sink_kind", "sink"), config.get("sink_signal")
    signals = [signal] if isinstance(signal, str) else list(signal or [])
    if kind == "none":
        return "the plain LM-CTR baseline, without attention sinks"
    if kind == "cls":
        return "the variant with the backbone's own [CLS] token after each behaviour"
    carried = "no signal" if signals in ([], ["none"]) else " and ".join(signals)
    return f"a [SINK] token after each behaviour, whose embedding carries {carried}"


_TASK_KEYS = {  # what a head of several tasks reads besides
    "mmoe": {"task_expert_units", "num_task_experts"},
    "ple": {"task_expert_units", "num_task_experts", "num_own_experts", "num_task_levels"},
}


class TabularCard(CardFamily):
    """Of a model that reads rows of a table."""

    def sizes(self) -> Iterator[tuple[str, str]]:
        dims = self.config.get("embedding_dim")
        if isinstance(dims, list):
            dims = dims[0] if len(set(dims)) == 1 else f"by field, {min(dims)} to {max(dims)}"
        yield "Fields", self.fields()
        yield self.parameters("embedding tables", "table.weight")
        yield "Embedding size", str(dims)
        kept = {"embedding_regularization", "numeric_encoding"}
        if len(self.config.get("task_names") or []) > 1:
            yield "Predicts", _listed(self.config["task_names"])
            kept |= {"task_weights", "task_head", "task_units"} | _TASK_KEYS.get(self.config["task_head"], set())
        yield from self.own_keys(TabularCTRConfig, kept=kept)


class SequenceCard(CardFamily):
    """Of a model that reads sequences of events."""

    logits = "(users, candidates)"

    def sizes(self) -> Iterator[tuple[str, str]]:
        config = self.config
        yield "Items", f"{config.get('item_vocab_size', 0) - 2:,} known items"
        for key, title in (
            ("behavior_names", "Behaviours"),
            ("scenario_names", "Scenarios"),
            ("task_names", "Predicts"),
        ):
            yield title, _listed(config.get(key) or [])
        yield self.parameters(
            "tables of items, features and users",
            "item_embedding.items.weight",
            "item_embedding.features.",
            "user_features.",
        )
        for key, title in (("item_feature_names", "Features of items"), ("user_feature_names", "Features of users")):
            if config.get(key):
                yield title, _listed(config[key])
        strategies = config.get("strategies")
        if strategies and config.get("use_partitioning", True):
            yield "Strategies", "; ".join(_strategy(entry) for entry in strategies)
        weights = config.get("task_weights") or []
        if len(weights) > 1:
            yield "Task weights", _listed(weights)
        # What the card says in words, or what says nothing about the model's make.
        yield from self.own_keys(
            SequenceCTRConfig,
            hidden={"micro_batch_size", "preset", "serving_micro_batch_size", "strategies"},
            kept={"max_history_length"},
        )

    def words(self) -> dict[str, Any]:
        processor = SequenceProcessor.from_pretrained(self.folder.path)
        return {"statistics": processor.statistics, "prior": processor.statistics_prior}


def _strategy(entry: dict[str, Any]) -> str:
    parts = []
    for key in ("behaviors", "scenarios"):
        value = entry.get(key)
        if value is not None:
            parts.append(f"{key} {value if isinstance(value, str) else ', '.join(map(str, value))}")
    for unit in ("seconds", "days"):
        if entry.get(f"window_{unit}") is not None:
            parts.append(f"the last {entry[f'window_{unit}']} {unit}")
    return f"{entry['name']} ({'; '.join(parts) or 'all events'})"


class RetrievalCard(CardFamily):
    """Of a model that ranks the ads of impressions."""

    pipeline_tag = "tabular-regression"
    task = "Ad retrieval"
    output = "scores = model(**batch).logits  # (impressions, ads), higher is better"

    def sizes(self) -> Iterator[tuple[str, str]]:
        config = self.config
        yield "Fields of the user", self.fields("user_")
        yield "Fields of the ad", self.fields("ad_")
        yield self.parameters("embedding tables", "embedding")
        yield "Embedding size", str(config.get("embedding_dim"))
        yield "`hidden_units`", _listed(config.get("hidden_units") or [])
        for key in ("loss", "arf_top_m", "arf_top_k", "arf_tau", "arf_target_tau", "positive_from"):
            if config.get(key) is not None:
                yield f"`{key}`", str(config[key])
        metrics = self.given("data", "metrics")
        if metrics:
            yield "Metrics count", ", ".join(f"{key} = {value}" for key, value in metrics.items())


_CARDS: dict[str, type[CardFamily]] = {
    "text": TextCard,
    "tabular": TabularCard,
    "sequence": SequenceCard,
    "impressions": RetrievalCard,
}


def card_family(folder: RunFolder, recipe: dict[str, Any] | None) -> CardFamily:
    """What the card of a folder says of its family.

    Raises:
        ValueError: no card is known for its model type; its configuration is no valid one, which facts could not be told of.
    """
    for row in families():
        if row.model_type == folder.model_type:
            load_config(folder)
            return _CARDS[row.input](row, folder, recipe)
    raise ValueError(f"{folder.path}: no card is known for model_type {folder.model_type!r}")
