"""What a model card says of a model by its kind of input; what it says of the family stands in `lmctr.models.families`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import fields
from typing import Any, ClassVar

from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.hub.card_data import shown
from lmctr.hub.examples import example_rows
from lmctr.models.common.configuration import CTRConfig, SequenceCTRConfig, TabularCTRConfig
from lmctr.models.families import Family, families
from lmctr.runs.folder import RunFolder

__all__ = ["CardFamily", "card_family"]


class CardFamily(ABC):
    """The parts of a card that depend on the family.

    Args:
        row: the family's row.

    Attributes:
        pipeline_tag, task: of the Hub.
        kind, answer: the beginning and the end of the summary.
        output: the line of the example that reads the model's output.
        promise: for which inputs that output is meant.
    """

    pipeline_tag: ClassVar[str] = "tabular-classification"
    task: ClassVar[str] = "Click-through rate prediction"
    kind: ClassVar[str]
    answer: ClassVar[str]
    output: ClassVar[str] = "probability = model(**batch).logits.sigmoid()  # one per row"
    promise: ClassVar[str] = "its probabilities hold for samples like those only"

    def __init__(self, row: Family):
        self.row = row
        self.title = row.title
        self.citation = row.paper

    def summary(self, folder: RunFolder) -> str:
        """What the model is, in one or two sentences."""
        return f"{self.kind}: {self.row.says}, after [{self.title}]({self.row.url}). {self.answer}"

    @abstractmethod
    def facts(self, folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
        """(title, value) rows: sizes, and the keys of the configuration that say how the model is made."""

    @abstractmethod
    def usage_note(self, folder: RunFolder, recipe: dict[str, Any] | None) -> str:
        """How the processor is called."""

    @abstractmethod
    def limits(self, folder: RunFolder) -> list[str]:
        """What the model cannot do."""


class TextCard(CardFamily):
    """Of a language model that reads histories as text."""

    pipeline_tag = "text-classification"

    def summary(self, folder: RunFolder) -> str:
        return (
            "A language model that reads a user's history as text and predicts the probability of a positive response "
            f"to a target item, after [{self.title}]({self.row.url}): {_sinks(folder.config)}."
        )

    def facts(self, folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
        config, text = folder.config, folder.config.get("text_config") or {}
        backbone = ((recipe or {}).get("model") or {}).get("backbone")
        if isinstance(backbone, str):
            origin = f", started from `{shown(backbone)}`"
        else:
            origin = ", trained from scratch" if isinstance(backbone, dict) else ""
        size = ", ".join(
            f"{text[key]} {name}"
            for key, name in (("num_hidden_layers", "layers"), ("hidden_size", "wide"))
            if key in text
        )
        total = sum(folder.num_parameters.values())
        own = total - sum(n for name, n in folder.num_parameters.items() if "language_model." in name)
        rows = [
            ("Model type", f"`{folder.model_type}`"),
            ("Backbone", f"{text.get('model_type', 'unknown')}{f' ({size})' if size else ''}{origin}"),
            ("Parameters", f"{total:,}, of which {own:,} are not the backbone's"),
        ]
        for key, title in (
            ("sink_kind", "Sink kind"),
            ("sink_signal", "Sink signal"),
            ("sink_order", "Order of behaviours"),
            ("feedback", "Feedback"),
        ):
            value = config.get(key)
            if value is not None:
                rows.append((title, " + ".join(value) if isinstance(value, list) else str(value)))
        for key, title in (("num_behaviors", "Behaviours read"), ("max_length", "Most tokens")):
            if folder.processor.get(key) is not None:
                rows.append((title, str(folder.processor[key])))
        prompt = (folder.processor.get("prompt") or {}).get("name")
        return rows + ([("Prompt", f"`{prompt}`")] if prompt else [])

    def usage_note(self, folder: RunFolder, recipe: dict[str, Any] | None) -> str:
        note = "`histories` are whole histories, oldest first, with times in unix seconds; the processor picks the behaviours."
        if "similarity" not in example_rows(folder)["histories"][0][0]:
            return note
        note += " `similarity` is a behaviour's cosine with the target"
        if folder.has_retriever:
            return f"{note}, by the encoder in `retriever/` (`lmctr.data.TextRetriever.from_pretrained`)."
        encoder = (((recipe or {}).get("data") or {}).get("retrieval") or {}).get("encoder")
        by = f", by the encoder `{shown(encoder)}`" if encoder else ""
        return f"{note}{by}; this repository does not hold the encoder."

    def limits(self, folder: RunFolder) -> list[str]:
        lines = []
        behaviours = folder.processor.get("num_behaviors")
        if behaviours:
            lines.append(
                f"It reads {behaviours} behaviours of a history at most; what is older, or does not fit, is not seen."
            )
        lines.append(
            "It reads item texts: an item without text, or with another language's text, is judged by little or nothing."
        )
        return lines


def _sinks(config: dict[str, Any]) -> str:
    """The variant of CTR-Sink in words."""
    kind, signal = config.get("sink_kind", "sink"), config.get("sink_signal")
    signals = [signal] if isinstance(signal, str) else list(signal or [])
    if kind == "none":
        return "the plain LM-CTR baseline, without attention sinks"
    if kind == "cls":
        return "the variant with the backbone's own [CLS] token after each behaviour"
    carried = "no signal" if signals in ([], ["none"]) else " and ".join(signals)
    return f"a [SINK] token after each behaviour, whose embedding carries {carried}"


class TabularCard(CardFamily):
    """Of a model that reads rows of a table."""

    kind = "A click-through-rate model for rows of a table"
    answer = "It predicts the probability of a positive response."

    def facts(self, folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
        dims = folder.config.get("embedding_dim")
        if isinstance(dims, list):
            dims = dims[0] if len(set(dims)) == 1 else f"by field, {min(dims)} to {max(dims)}"
        return [
            ("Model type", f"`{folder.model_type}`"),
            ("Fields", _fields(folder.config)),
            ("Parameters", _parameters(folder, "embedding tables", lambda name: name.endswith("table.weight"))),
            ("Embedding size", str(dims)),
            *_key_facts(folder.config, _names_of(TabularCTRConfig) - {"embedding_regularization", "numeric_encoding"}),
        ]

    def usage_note(self, folder: RunFolder, recipe: dict[str, Any] | None) -> str:
        return (
            "The processor takes a list of rows (dicts), a dict of columns or a pyarrow Table with the columns of the raw data; `None` is a "
            "missing value, and a value that was not in the training data gets the id for unknown values. "
            "`lmctr predict` scores whole files (CSV, Parquet, JSON lines)."
        )

    def limits(self, folder: RunFolder) -> list[str]:
        return [
            "It knows the values that were in its training data; new users, items or categories all share one vector, and how often they come "
            "grows with time."
        ]


class SequenceCard(CardFamily):
    """Of a model that reads sequences of events."""

    kind = "A click-through-rate model for users' event sequences"
    answer = "It predicts the probability of a positive response to each candidate item."
    output = "probability = model(**batch).logits.sigmoid()  # (users, candidates); several tasks: one more axis"

    tables = ("item_embedding.items.weight", "item_embedding.features.", "user_features.")
    # Keys of a family that the card says in words, or that say nothing about the model's make.
    not_shown = ("micro_batch_size", "preset", "serving_micro_batch_size", "strategies")

    def facts(self, folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
        config = folder.config
        in_tables = "tables of items, features and users"
        rows = [
            ("Model type", f"`{folder.model_type}`"),
            ("Items", f"{config.get('item_vocab_size', 0) - 2:,} known items"),
            ("Behaviours", ", ".join(config.get("behavior_names") or [])),
            ("Scenarios", ", ".join(config.get("scenario_names") or [])),
            ("Predicts", ", ".join(config.get("task_names") or [])),
            ("Parameters", _parameters(folder, in_tables, lambda name: any(part in name for part in self.tables))),
        ]
        for key, title in (("item_feature_names", "Features of items"), ("user_feature_names", "Features of users")):
            if config.get(key):
                rows.append((title, ", ".join(config[key])))
        strategies = config.get("strategies")
        if strategies and config.get("use_partitioning", True):
            rows.append(("Strategies", "; ".join(_strategy(entry) for entry in strategies)))
        weights = config.get("task_weights") or []
        if len(weights) > 1:
            rows.append(("Task weights", ", ".join(map(str, weights))))
        hidden = _names_of(SequenceCTRConfig) - {"max_history_length"}
        return rows + _key_facts(config, hidden | set(self.not_shown))

    def usage_note(self, folder: RunFolder, recipe: dict[str, Any] | None) -> str:
        note = (
            "`histories` are users' events, oldest first, with the original ids of the items, times in unix seconds, and the names of behaviours and "
            "scenarios; a candidate sees the events before its time. An item that was not in the training data gets the id for unknown items. "
            "`lmctr.serving.score` scores many candidates of one user, and `lmctr predict` whole files of requests."
        )
        processor = SequenceProcessor.from_pretrained(folder.path)
        names, prior = processor.statistics, processor.statistics_prior
        if names:
            rate = "" if prior is None else f", with `prior={prior:.6g}`"
            note += (
                f" `statistics` are the columns {', '.join(f'`{name}`' for name in names)} of each candidate, from what happened before its "
                f"second, as `lmctr.utils.history_features.history_features` counts them on a log{rate}; NaN (null in requests) where one is not known."
            )
        return note

    def limits(self, folder: RunFolder) -> list[str]:
        lines = [
            "It knows the items that were in its training data; new ones share one vector, and how often they come grows with time."
        ]
        longest, length = folder.config.get("max_history_length"), folder.config.get("sequence_length")
        if longest:
            lines.append(f"It reads the latest {longest:,} events of a history; older ones are not seen.")
        if length:
            lines.append(
                f"Its blocks hold {length:,} events in all; what no strategy selects, or does not fit, is not seen."
            )
        return lines


def _strategy(entry: dict[str, Any]) -> str:
    """One extraction strategy in words."""
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
    promise = "its order holds for impressions like those only"

    shown_keys = ("loss", "arf_top_m", "arf_top_k", "arf_tau", "arf_target_tau", "positive_from")

    def summary(self, folder: RunFolder) -> str:
        row = self.row
        return (
            f"A model for ad retrieval, {row.says}, after [{row.paper.partition('.')[0]}]({row.url}). It scores the ads of an impression, so that "
            "the best ones go on to the next stage."
        )

    def facts(self, folder: RunFolder, recipe: dict[str, Any] | None) -> list[tuple[str, str]]:
        config = folder.config
        rows = [
            ("Model type", f"`{folder.model_type}`"),
            ("Fields of the user", _fields(config, "user_")),
            ("Fields of the ad", _fields(config, "ad_")),
            ("Parameters", _parameters(folder, "embedding tables", lambda name: "embedding" in name)),
            ("Embedding size", str(config.get("embedding_dim"))),
            ("`hidden_units`", ", ".join(map(str, config.get("hidden_units") or []))),
        ]
        rows += [(f"`{key}`", str(config[key])) for key in self.shown_keys if config.get(key) is not None]
        metrics = ((recipe or {}).get("data") or {}).get("metrics")
        if metrics:
            rows.append(("Metrics count", ", ".join(f"{key} = {value}" for key, value in metrics.items())))
        return rows

    def usage_note(self, folder: RunFolder, recipe: dict[str, Any] | None) -> str:
        return (
            "The processor takes the users of some impressions and the ads of each; `None` is a missing value, and a value that was not in the "
            "training data gets the id for unknown values. Where users have different numbers of ads, `batch.ad_mask` says where an ad stands. "
            "`lmctr predict` scores JSON lines of `user` and `ads`."
        )

    def limits(self, folder: RunFolder) -> list[str]:
        return [
            "Its scores order the ads of one impression; they are no probabilities, no eCPM, and not comparable between impressions.",
            "It learnt from ads that earlier stages of a cascade had let through; on ads that these would have dropped nothing was measured.",
            "It knows the values that were in its training data; new ads share one vector until it is trained again.",
        ]


def _fields(config: dict[str, Any], side: str = "") -> str:
    """How many fields of each type a row, or one side of an impression, has."""
    sizes = config.get(f"{side}vocab_sizes") or []
    parts = [f"{len(sizes)} categorical ({sum(sizes):,} values)", f"{config.get(f'{side}num_numeric', 0)} numeric"]
    if config.get(f"{side}num_sequences"):
        parts.append(f"{config[f'{side}num_sequences']} sequence")
    return ", ".join(parts)


def _parameters(folder: RunFolder, where: str, is_table: Any) -> str:
    tables = sum(count for name, count in folder.num_parameters.items() if is_table(name))
    return f"{sum(folder.num_parameters.values()):,}, of which {tables:,} are in {where}"


def _names_of(config_class: type) -> set[str]:
    """Keys that the families of a kind share: nearly all say how the data look."""
    return {field.name for field in fields(config_class)} - {"initializer_range"}


def _key_facts(config: dict[str, Any], hidden: Collection[str]) -> list[tuple[str, str]]:
    """The keys of the family's own configuration, as they are."""
    hidden = {*hidden, *CTRConfig().to_dict(), "use_cache"}
    return [
        (f"`{key}`", ", ".join(map(str, value)) if isinstance(value, list) else str(value))
        for key, value in config.items()
        if key not in hidden and value is not None
    ]


_CARDS: dict[str, type[CardFamily]] = {
    "text": TextCard,
    "tabular": TabularCard,
    "sequence": SequenceCard,
    "impressions": RetrievalCard,
}


def card_family(folder: RunFolder) -> CardFamily:
    """What the card of a folder says of its family.

    Raises:
        ValueError: no card is known for its model type.
    """
    for row in families():
        if row.model_type == folder.model_type:
            return _CARDS[row.input](row)
    raise ValueError(f"{folder.path}: no card is known for model_type {folder.model_type!r}")
