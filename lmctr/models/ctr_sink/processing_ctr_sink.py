"""Processor of CTR-Sink: user histories and target items to token ids, sink buckets and target masks.

The text of a sample is tokenised piece by piece: every text of the prompt and every item text on its own, then the
token ids are put together. So a catalogue that was tokenised once and raw texts give the same ids, and text that users
or sellers wrote is never read as a special token.
"""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from tokenizers import AddedToken
from transformers import BatchFeature, PreTrainedTokenizerBase, ProcessorMixin

from lmctr.statistics import StatisticsReader
from lmctr.utils.hub_uploads import upload_modified_files
from lmctr.utils.in_package import stays_in_package
from lmctr.utils.integrity import resealing
from lmctr.utils.kept import forget_kept
from lmctr.utils.outside import check_text
from lmctr.utils.ragged import Ragged, blocks, offsets_from_lengths
from lmctr.utils.rows import (
    check_kind,
    check_list,
    each,
    each_kind,
    graded_value,
    is_whole,
    plain_seconds,
    plain_values,
    whole_seconds,
)
from lmctr.utils.suggest import refuse_misspelt, refuse_unknown

from .assembly import AssemblySettings, Candidates, EventTable, Pieces, Samples, assemble, make_plan
from .configuration_ctr_sink import (
    check_feedback_settings,
    check_sink_settings,
    reads_feedback,
    signals_of,
    statistic_signals,
    usual_signal,
)
from .piece_tokens import TokenCache, drop_special, encode_prompt, piece_blanks, special_layout, tokenize
from .prompt import Prompt
from .raw_rows import (
    BEHAVIOR_KEYS,
    FEEDBACK_KEYS,
    behavior_statistic,
    check_behavior,
    check_times,
    feedback_code,
    similarity_of,
    target_statistics,
    target_text,
)

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["CTRSinkProcessor"]

_NO_LIMIT = 10**6  # tokenizers without a limit of their own report a huge one
_CHUNK = 8192  # texts per tokenizer call


class CTRSinkProcessor(ProcessorMixin):
    r"""Builds the inputs of [`CTRSinkForCTR`] from texts.

    A sample reads: opening special tokens, the prompt's head, then per behaviour [feedback word] item text, separator,
    sink, then the prompt's target text with the target item in it, closing special tokens. Special tokens stand where
    the tokenizer's own template puts them (none for Qwen). An empty history shows the prompt's `empty_history`.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): copied, so the caller's own stays as it is. It needs a padding token.
        prompt (`str`, `dict` or `Prompt`, defaults to `"movielens/en"`):
            Name of a shipped prompt, a YAML file, or its values (`base` names a prompt to start from). The whole prompt
            is saved with the processor.
        num_behaviors (`int`, defaults to 50): behaviours K per sample; per group with `feedback="groups"`.
        sink_kind (`str`, defaults to `"sink"`): `"none"` (Eq. 1), `"cls"`: the tokenizer's own [CLS] (Eq. 2), `"sink"`
            (Eq. 3).
        sink_signal (`str` or `list[str]`, *optional*): what a sink carries, one bucket per signal. `"recency"` (default
            for `sink_kind="sink"`): ordinal distance to the target in the full history, 0 = latest. `"ordinal"`: number in the full history, 0 = first,
            floor(n ln(1 + number) / ln(1 + 10^7)): how much is known of the user. `"elapsed"`: time to
            the target, floor(n ln(1 + seconds) / ln(1 + 3650 days)). `"similarity"`: cosine in n equal buckets over
            [-1, 1]. `"feedback"`: the behaviour's feedback code. `"feedback_value"`: its graded feedback (stars, watched share), 0
            unknown, else 1 + the number of the nearest of the `value_levels`. `"random"`: a hash of (target time, history length,
            target text, place counted from the target), the same in every epoch. `"statistic:NAME"`: a statistic of the behaviour at its
            time, 0 unknown, else 1 + the number of its `statistic_bounds` that it reaches. `"none"`: bucket 0. n is
            `num_sink_buckets`; everything beyond the last bucket falls into it.
        sink_order (`str`, defaults to `"recent"`): `"recent"`: the last K behaviours. `"similarity"`: the K most similar
            to the target in ascending order, so that the most similar stands next to the target (the paper). `"time"`:
            the same K in chronological order. Of equally similar behaviours the later one counts as more similar.
        num_sink_buckets (`int`, defaults to 100): buckets per signal.
        feedback (`str`, defaults to `"none"`): `"groups"`: one list per feedback, each under its own header, K behaviours
            each (the paper's data); inside a group the order is `sink_order`'s. `"inline"`: a word before each
            behaviour, which may tell graded feedback too. `"sink"`: in the sinks only, by the signal `"feedback"`, `"feedback_value"`
            or both.
        value_levels (`list[float]`, *optional*): ascending values that stand for graded feedback, where sinks or words carry it; each
            value counts as the nearest. `fit_value_levels` of `sink_signals` finds them.
        statistic_bounds (`dict[str, list[float]]`, *optional*): ascending bounds of the bins of each statistic that sinks carry;
            `fit_statistic_bounds` of `sink_signals` finds them.
        trailing_sink (`bool`, defaults to `True`): whether the last behaviour has a sink too (n behaviours, n sinks);
            `False` reproduces the authors' code.
        max_length (`int`, *optional*): most tokens of a sample; default: the tokenizer's `model_max_length`. What does
            not fit is dropped in whole behaviours: the oldest-placed first; with groups, the one farthest from the end
            of its own group first. The target is never cut.
        layout (`str`, defaults to `"single"`): as the model's. `"split"` adds `field_ids` (B, N) int64 to a batch: the number of
            the element that each token belongs to, -1 for padding. The elements of a row, in text order: the opening special
            tokens with the prompt's head, each header, each behaviour (feedback word, item text, separator), each sink, the
            text of an empty history, the target with the prompt's text around it. `max_length` still counts the whole row;
            only each element and the number of elements need positions in the backbone, so it may be raised. `"fields"` (with
            `feedback="groups"`) adds it too: the number of the text field. Fields are the groups, the last feedback's first, each with
            its header even where it is empty, then the lines of the target's text; each has the tokenizer's special tokens of
            its own. The prompt's item template gives a target its lines, its `behavior_item` behaviours texts of one line, whatever
            the columns hold: breaks in them are blanks, and a line of columns without a value stays, empty. The prompt's
            `empty_history` is not read.
        sink_token (`str`, defaults to `"[SINK]"`): text of the sink token, added to the tokenizer. The model never looks
            its id up, so the language model's vocabulary need not grow.
        sink_token_id (`int`, *optional*): set when a saved processor is loaded; the tokenizer must hold `sink_token` there.
        statistics_reader (`StatisticsReader` or its `dict`, *optional*): the statistics of a sample that the model reads, as
            they are scaled; adds `statistics` (B, Fs) float32 to a batch.
        feedback_labels (`list[int]`, *optional*): label (0, 1, or -1 for none) of each feedback code, where a code says it; with
            it, statistics are counted from behaviours' feedback where they do not state their `label`.
        chat_template (`str`, *optional*): kept for transformers, unused.

    Raises:
        ValueError: unknown keyword or value, a tokenizer that already holds `sink_token`, lacks a padding token or, for
            `sink_kind="cls"`, a [CLS] token, signals that do not apply, a prompt whose blanks do not agree.

    Example:

    ```python
    >>> processor = CTRSinkProcessor(tokenizer, prompt="movielens/en", feedback="inline")
    >>> batch = processor(
    ...     histories=[[{"text": "Heat (1995)", "time": 10, "feedback": "liked"}]],
    ...     targets=[{"text": "Casino (1995)"}],
    ...     times=[20],
    ... )
    >>> sorted(batch)
    ['attention_mask', 'input_ids', 'sink_buckets', 'target_mask']
    ```
    """

    register_for_auto_class = classmethod(stays_in_package)
    _upload_modified_files = upload_modified_files
    request_kind: ClassVar[str] = "text"

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        prompt: str | Mapping[str, Any] | Prompt = "movielens/en",
        num_behaviors: int = 50,
        sink_kind: str = "sink",
        sink_signal: str | Sequence[str] | None = None,
        sink_order: str = "recent",
        num_sink_buckets: int = 100,
        feedback: str = "none",
        trailing_sink: bool = True,
        max_length: int | None = None,
        sink_token: str = "[SINK]",
        sink_token_id: int | None = None,
        layout: str = "single",
        value_levels: Sequence[float] | None = None,
        statistics_reader: StatisticsReader | Mapping[str, Any] | None = None,
        feedback_labels: Sequence[int] | None = None,
        statistic_bounds: Mapping[str, Sequence[float]] | None = None,
        chat_template: str | None = None,
        **kwargs,
    ):
        refuse_unknown(kwargs, _settings_names(), type(self).__name__)
        self.prompt = Prompt.load(prompt)
        self.num_behaviors = num_behaviors
        self.sink_kind = sink_kind
        if sink_signal is None:
            sink_signal = usual_signal(sink_kind)
        given = {"value_levels": value_levels, "feedback_labels": feedback_labels, "sink_signal": sink_signal}
        for name, value in given.items():
            if value is not None and not (name == "sink_signal" and isinstance(value, str)):
                check_list(value, name, "names" if name == "sink_signal" else "numbers")
        self.sink_signal = sink_signal if isinstance(sink_signal, str) else list(sink_signal)
        self.sink_order = sink_order
        self.num_sink_buckets = num_sink_buckets
        self.feedback = feedback
        self.trailing_sink = trailing_sink
        self.max_length = max_length
        self.sink_token = sink_token
        self.layout = layout
        self.value_levels = None if value_levels is None else [float(level) for level in value_levels]
        bounds = {} if statistic_bounds is None else statistic_bounds
        check_kind(bounds, Mapping, "statistic_bounds")
        self.statistic_bounds = {name: [float(bound) for bound in own] for name, own in bounds.items()} or None
        if isinstance(statistics_reader, Mapping):
            statistics_reader = StatisticsReader.from_dict(statistics_reader)
        self.statistics_reader = statistics_reader
        self.feedback_labels = None if feedback_labels is None else [int(label) for label in feedback_labels]
        self._check_settings()
        if isinstance(tokenizer, PreTrainedTokenizerBase):
            tokenizer = copy.deepcopy(tokenizer)
            self.sink_token_id = self._prepare_sink_token(tokenizer, sink_token_id)
        super().__init__(tokenizer, chat_template=chat_template)
        if tokenizer.pad_token_id is None:
            raise ValueError(
                "the tokenizer has no padding token; set tokenizer.pad_token, for example to its eos_token"
            )
        _ = self._num_tokens, self._prompt_ids  # a prompt that cannot be tokenised fails here, not in the first batch

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "tokenizer" or name in _settings_names():
            forget_kept(self)

    # settings

    @property
    def max_sinks(self) -> int | None:
        """Most sinks of a row, for the model's `max_sinks`; None without sinks."""
        lists = len(self.prompt.feedback) if self.feedback == "groups" else 1
        return None if self.sink_kind == "none" else self.num_behaviors * lists

    @property
    def max_elements(self) -> int | None:
        """Most elements of a row with `layout="split"`, for the model's `max_elements`; None with another layout."""
        headers = len(self.prompt.feedback) if self.feedback == "groups" else 0
        behaviors = self.num_behaviors * max(headers, 1)
        # The prompt's opening and the target; per list its header; behaviours, and their sinks.
        return 2 + headers + behaviors + (self.max_sinks or 0) if self.layout == "split" else None

    @property
    def signals(self) -> tuple[str, ...]:
        """The sink signals, always as a tuple."""
        return signals_of(self.sink_signal)

    @property
    def effective_max_length(self) -> int | None:
        """`max_length`, or the tokenizer's own limit, or None when there is no limit."""
        if self.max_length is not None:
            return self.max_length
        limit = self.tokenizer.model_max_length
        return int(limit) if limit is not None and limit < _NO_LIMIT else None

    @property
    def needs_similarity(self) -> bool:
        """Whether behaviours must come with their similarity to the target."""
        return self.sink_order != "recent" or "similarity" in self.signals

    @property
    def needs_feedback(self) -> bool:
        return reads_feedback(self.feedback, self.signals)

    @property
    def needs_values(self) -> bool:
        """Whether the graded feedback of behaviours is read."""
        return "feedback_value" in self.signals or (self.feedback == "inline" and self.prompt.tells_values)

    @property
    def sink_statistics(self) -> list[str]:
        """The statistics of behaviours that the sinks carry."""
        return statistic_signals(self.signals)

    @property
    def fingerprint(self) -> str:
        """Hex digest of what the weights know the meaning of: the vocabulary, the prompt, the bins of sinks and words, the scale of the
        statistics; models keep it as `processor_fingerprint`. Lengths and the limits of statistics may change: they are no part of it."""
        told = self.to_dict()
        told = {key: told[key] for key in ("prompt", "value_levels", "statistic_bounds", "statistics_reader")}
        if (reader := self.statistics_reader) is not None:
            told["statistics_reader"] = dataclasses.replace(reader, low=(), high=()).to_dict()
        text = json.dumps([sorted(self.tokenizer.get_vocab().items()), told], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def largest_id(self) -> int:
        """The largest id that the backbone looks up. Special tokens count only where the template or the prompt has them: no item's text
        gives one, and tokenizers come with some that their backbone has no embedding for (images in Gemma 3)."""
        special = {number for number, token in self.tokenizer.added_tokens_decoder.items() if token.special}
        shown = {*self.encode_items([""]).values.tolist()} - {self.sink_token_id, self._break_id}
        return max({*self.tokenizer.get_vocab().values()} - special | shown | {self.tokenizer.pad_token_id})

    @property
    def model_input_names(self) -> list[str]:
        """Keys of a batch."""
        names = ["input_ids", "attention_mask", "sink_buckets", "target_mask"]
        names += ["field_ids"] if self.layout != "single" else []
        return names + (["statistics"] if self.statistics_reader is not None else [])

    @property
    def settings(self) -> AssemblySettings:
        """The settings as the assembly functions take them."""
        sink_id = {"none": None, "cls": self.tokenizer.cls_token_id, "sink": self.sink_token_id}[self.sink_kind]
        return AssemblySettings(
            num_behaviors=self.num_behaviors,
            order=self.sink_order,
            feedback=self.feedback,
            signals=self.signals,
            num_sink_buckets=self.num_sink_buckets,
            sink_id=sink_id,
            trailing_sink=self.trailing_sink,
            max_length=self.effective_max_length,
            pad_id=self.tokenizer.pad_token_id,
            padding_side=self.tokenizer.padding_side,
            feedback_codes=len(self.prompt.feedback_names),
            layout=self.layout,
            value_levels=tuple(self.value_levels or ()),
            words_per_code=self._words_per_code,
            statistic_bounds=tuple((name, tuple(self.statistic_bounds[name])) for name in self.sink_statistics),
            break_id=self._break_id,
            num_fields=len(self.prompt.feedback) + self.num_target_fields,
        )

    @property
    def num_target_fields(self) -> int:
        """Lines of a target's text, by the prompt's item template."""
        return self.prompt.item.count("\n") + 1

    @property
    def _break_id(self) -> int | None:
        """An id that stands for no token: a text field ends before it, the next begins behind it."""
        return max(self.tokenizer.get_vocab().values()) + 1 if self.layout == "fields" else None

    @cached_property
    def _field_break(self) -> list[int]:
        if self.layout != "fields":
            return []
        prefix, suffix = self._special_layout
        return [*suffix, self._break_id, *prefix]

    @property
    def _words_per_code(self) -> int:
        return 1 + len(self.value_levels) if self.feedback == "inline" and self.prompt.tells_values else 1

    def _check_settings(self) -> None:
        def require(condition: bool, key: str, accepted: str) -> None:
            if not condition:
                raise ValueError(
                    f"{type(self).__name__}: {key}={getattr(self, key)!r} is not accepted; use {accepted}"
                )

        for key in ("num_behaviors", "num_sink_buckets", "max_length"):
            value = getattr(self, key)
            require(is_whole(value) or (key == "max_length" and value is None), key, "a whole number of at least 1")
        require(isinstance(self.trailing_sink, bool), "trailing_sink", "true or false")
        require(isinstance(self.sink_token, str) and self.sink_token.strip() != "", "sink_token", "a text")
        check_sink_settings(self, require)
        check_feedback_settings(self, require)
        signals = self.signals
        if self.needs_feedback and not self.prompt.feedback:
            raise ValueError(
                f"the prompt {self.prompt.name!r} describes no feedback, which feedback={self.feedback!r} needs; "
                f"add its `feedback` list (name, word, header)"
            )
        if self.layout == "fields" and "\n" in (self.prompt.behavior_item or self.prompt.item):
            raise ValueError(
                f"the prompt {self.prompt.name!r} writes behaviours of several lines, which are fields with layout='fields'; give it a "
                "`behavior_item` of one line, such as '{title}'"
            )
        if "feedback" in signals and self.num_sink_buckets < len(self.prompt.feedback_names):
            raise ValueError(
                f"{type(self).__name__}: num_sink_buckets={self.num_sink_buckets} is less than the "
                f"{len(self.prompt.feedback_names)} feedback codes of the prompt"
            )
        levels = self.value_levels
        if levels is not None or self.needs_values:
            ascending = bool(levels) and np.isfinite(levels).all() and (np.diff(levels) > 0).all()
            require(ascending, "value_levels", "ascending finite numbers, such as those of `fit_value_levels`")
        if "feedback_value" in signals and self.num_sink_buckets < 1 + len(levels):
            raise ValueError(
                f"{type(self).__name__}: num_sink_buckets={self.num_sink_buckets} is less than the {1 + len(levels)} buckets of the "
                f"graded feedback (unknown and {len(levels)} levels)"
            )

        for name in self.sink_statistics:
            bounds = (self.statistic_bounds or {}).get(name)
            ascending = bounds is not None and np.isfinite(bounds).all() and (np.diff(bounds) > 0).all()
            accepted = f"ascending finite numbers for {name!r}, at most num_sink_buckets - 2 of them"
            require(ascending and len(bounds) + 2 <= self.num_sink_buckets, "statistic_bounds", accepted)

    def _prepare_sink_token(self, tokenizer: PreTrainedTokenizerBase, saved_id: int | None) -> int | None:
        if self.sink_kind == "cls" and tokenizer.cls_token_id is None:
            raise ValueError(
                f"sink_kind='cls' needs a tokenizer with a [CLS] token, and {type(tokenizer).__name__} has none; "
                f"use sink_kind='sink'"
            )
        held = tokenizer.get_vocab().get(self.sink_token)
        if saved_id is not None:
            if held != saved_id:
                raise ValueError(
                    f"sink_token_id={saved_id} was given, but the tokenizer holds {self.sink_token!r} at {held}; the "
                    f"tokenizer files do not belong to this processor (leave sink_token_id out to build a new one)"
                )
            return saved_id
        if self.sink_kind != "sink":
            return None
        if held is not None:
            raise ValueError(
                f"the tokenizer's vocabulary already holds {self.sink_token!r} (id {held}); choose another text, for "
                f"example sink_token='[CTR_SINK]', or load a saved processor with CTRSinkProcessor.from_pretrained"
            )
        token = AddedToken(self.sink_token, special=True, normalized=False)
        tokenizer.add_tokens([token], special_tokens=True)
        return int(tokenizer.convert_tokens_to_ids(self.sink_token))

    # saving and loading

    def to_dict(self) -> dict[str, Any]:
        """Settings with the whole prompt, as they are written to `processor_config.json`."""
        output = super().to_dict()
        output.pop("auto_map", None)  # of a download: `lmctr push` writes it with the file that it names
        output["prompt"] = self.prompt.to_dict()
        reader = self.statistics_reader
        output["statistics_reader"] = None if reader is None else reader.to_dict()
        return output

    @cached_property
    def canonical_settings(self) -> str:
        """The settings as one text."""
        return json.dumps(self.to_dict(), sort_keys=True, default=str)

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs) -> list[str]:
        """Write `processor_config.json` and the tokenizer's files, with the padding side that is set now (transformers
        itself would write the side that the tokenizer was loaded with)."""
        self.tokenizer.init_kwargs["padding_side"] = self.tokenizer.padding_side
        with resealing(save_directory):
            return super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)

    @classmethod
    def from_args_and_dict(cls, args: Sequence[Any], processor_dict: dict[str, Any], **kwargs) -> CTRSinkProcessor:
        """As in transformers, but an unknown saved key or a misspelt setting is an error."""
        known = _settings_names()
        saved = (key for key in processor_dict if key not in ("processor_class", "auto_map"))
        refuse_unknown(saved, known, "processor_config.json")
        others = (key for key in kwargs if not hasattr(args[0], key))  # the tokenizer's
        refuse_misspelt(others, known, f"{cls.__name__}.from_pretrained")
        return super().from_args_and_dict(args, processor_dict, **kwargs)

    # tokenising

    def item_texts(self, catalogue: pa.Table) -> list[str]:
        """Texts of a catalogue's items by the prompt's item template."""
        return self.prompt.item_texts(catalogue, keep_lines=self.layout == "fields")

    def behavior_texts(self, catalogue: pa.Table) -> list[str]:
        """Texts of a catalogue's items as behaviours, by the prompt's template for them."""
        return self.prompt.behavior_texts(catalogue, keep_lines=self.layout == "fields")

    def encode_items(self, texts: Sequence[str | None]) -> Pieces:
        """Tokenise item texts once.

        Args:
            texts: one text per item; None counts as an empty text. An empty text has no tokens, a behaviour with it
                still has its separator and sink.

        Returns:
            The items' and the prompt's token ids, as `assemble` and `plan_lengths` take them.
        """
        self._follow_tokenizer()
        return self._pieces(self._item_tokens(texts))

    def _item_tokens(self, texts: Sequence[str | None]) -> Ragged:
        blank = " " if self._blanks["item"] else ""
        clean = ["" if text is None else check_text(str(text), "an item's text") for text in texts]
        counts = np.ones(len(clean), dtype=np.int64)
        if self.layout == "fields":
            lines = [text.split("\n") for text in clean]
            counts = np.array([len(parts) for parts in lines], dtype=np.int64)
            clean = [line for parts in lines for line in parts]
        clean = [text.strip() for text in clean]
        # Lines are fields, which begin a text of their own; what has one line stands in a text.
        clean = [
            blank + text if text and not opens else text for text, opens in zip(clean, np.repeat(counts > 1, counts))
        ]
        rows: list[list[int]] = [[]] * len(clean)
        filled = [row for row, text in enumerate(clean) if text]
        for some in (filled[part] for part in blocks(len(filled), _CHUNK)):
            for row, ids in zip(some, tokenize(self.tokenizer, [clean[row] for row in some])):
                rows[row] = ids
        found = drop_special(self.tokenizer, Ragged.from_rows(rows), self.sink_token_id)
        if len(clean) == len(counts):
            return found
        joined = [
            np.concatenate([part for line in range(at, at + count) for part in (self._field_break, found[line])][1:])
            for at, count in zip(np.cumsum(counts) - counts, counts)
        ]
        return Ragged.from_rows([row.astype(np.int32).tolist() for row in joined])

    def _pieces(self, items: Ragged) -> Pieces:
        tail = [*self._prompt_ids["separator"], *([] if self.settings.sink_id is None else [self.settings.sink_id])]
        prefix, suffix = self._special_layout
        codes, told = range(len(self.prompt.feedback)), range(self._words_per_code)
        return Pieces.build(
            items,
            head=[*prefix, *self._prompt_ids["head"]],
            empty=[] if self.layout == "fields" else self._prompt_ids["empty_history"],
            prefix=[*self._field_break, *self._prompt_ids["target_prefix"]],
            suffix=[*self._prompt_ids["target_suffix"], *suffix],
            suffix_text=len(self._prompt_ids["target_suffix"]),
            tail=tail,
            words=[
                *([] for _ in told),
                *(self._prompt_ids[f"word {code} {value}"] for code in codes for value in told),
            ],
            headers=[
                [],
                *([*(self._field_break if code else []), *self._prompt_ids[f"header {code}"]] for code in codes),
            ],
        )

    @cached_property
    def _num_tokens(self) -> int:
        return len(self.tokenizer)

    def _follow_tokenizer(self) -> None:
        """Forget what was tokenised before tokens were added."""
        if len(self.tokenizer) != self._num_tokens:
            forget_kept(self)

    @cached_property
    def _special_layout(self) -> tuple[list[int], list[int]]:
        return special_layout(self.tokenizer)

    @cached_property
    def _known_tokens(self) -> TokenCache:
        return TokenCache()

    @cached_property
    def _blanks(self) -> dict[str, bool]:
        blanks = piece_blanks(self.prompt, self.feedback, self.value_levels or ())
        if self.layout == "fields":  # a header begins a text of its own
            blanks |= {piece: False for piece in blanks if piece.startswith("header ")}
        return blanks

    @cached_property
    def _prompt_ids(self) -> dict[str, list[int]]:
        levels = self.value_levels or ()
        return encode_prompt(self.tokenizer, self.prompt, self._blanks, self.sink_token, levels)

    # batches

    def event_table(
        self,
        item: np.ndarray,
        time: np.ndarray,
        feedback: np.ndarray | None = None,
        value: np.ndarray | None = None,
        statistics: Mapping[str, np.ndarray] | None = None,
    ) -> EventTable:
        """Behaviours as histories are slices of: item rows (E,), seconds (E,) int64, feedback codes (E,), graded feedback (E,) and the
        `sink_statistics` (E,) by name, with NaN where they are unknown."""
        return EventTable.build(item, time, feedback, self.settings, value, statistics)

    def assemble(
        self,
        pieces: Pieces,
        events: EventTable,
        *,
        start: np.ndarray,
        end: np.ndarray,
        target: np.ndarray,
        time: np.ndarray,
        candidates: Sequence[np.ndarray] | None = None,
        pad_to_multiple_of: int | None = None,
    ) -> dict[str, np.ndarray]:
        """Build a batch from token ids that are already there: array operations only, no tokenizer call.

        Args:
            pieces: from `encode_items`. events: from `event_table`.
            start, end: (B,) the history of row b is events [start[b], end[b]), all before the target's time.
            target: (B,) item row of the target. time: (B,) int64 seconds of the target.
            candidates: (offsets (B + 1,), event (C,), similarity (C,)) when `needs_similarity`: the behaviours to choose
                from, or for the order "recent" at least the latest K.
            pad_to_multiple_of: pad the rows to a multiple of this many tokens, and never beyond `max_length`.

        Returns:
            The four keys of `__call__` as numpy arrays, and `num_dropped` (B,) int64: behaviours dropped by truncation.
        """
        candidates = None if candidates is None else Candidates(*candidates)
        samples = Samples(start, end, target, time)
        return assemble(self.settings, pieces, events, samples, candidates, pad_to_multiple_of)

    def plan_lengths(
        self, pieces: Pieces, events: EventTable, *, candidates: Sequence[np.ndarray] | None = None, **rows: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Exact numbers of tokens (B,), behaviours shown (B,) and behaviours dropped (B,) of rows, without building them.

        Takes `start`, `end`, `target`, `time` and `candidates` as `assemble` does.
        """
        candidates = None if candidates is None else Candidates(*candidates)
        plan = make_plan(self.settings, pieces, events, Samples(**rows), candidates)
        return plan.length, np.diff(plan.offsets), plan.dropped

    def read_rows(
        self,
        histories: Sequence[Sequence[Mapping[str, Any]]],
        targets: Sequence[Mapping[str, Any] | str],
        times: Sequence[int | float],
    ) -> tuple[Pieces, EventTable, np.ndarray, np.ndarray, np.ndarray]:
        """Check raw rows as `__call__` takes them, and tokenise each different text once; texts of earlier rows are known.

        Args:
            histories: H histories. targets: T targets, of which there may be another number. times: H times of targets.

        Returns:
            Pieces and events; offsets (H + 1,) of the histories in the events; item rows (T,) of the targets; times (H,) int64.

        Raises:
            ValueError: what `__call__` refuses in a row.
        """
        for b, history in enumerate(histories):
            check_list(history, f"histories[{b}]", "behaviours, oldest first")
        offsets = offsets_from_lengths(np.array([len(history) for history in histories], dtype=np.int64))
        flat = [(b, i, entry) for b, history in enumerate(histories) for i, entry in enumerate(history)]
        entries = [entry for _, _, entry in flat]
        codes = each_kind(entries, FEEDBACK_KEYS, BEHAVIOR_KEYS, lambda entry, _: self._feedback_of(entry, 0, 0))
        seconds = None if codes is None else plain_seconds(entries)
        plain = seconds is not None and {type(entry.get("text", 0)) for entry in entries} <= {str, type(None)}
        for b, i, entry in flat if not plain else ():
            check_behavior(entry, b, i)
        target_time = np.array([whole_seconds(time, f"times[{b}]") for b, time in enumerate(times)], dtype=np.int64)
        if not plain:
            seconds = [whole_seconds(entry["time"], f"histories[{b}][{i}]['time']") for b, i, entry in flat]
        time = np.array(seconds, dtype=np.int64)
        check_times(time, target_time, offsets)
        texts = [self._one_line(entry["text"]) for entry in entries]
        texts += [self._all_lines(target_text(t, b)) for b, t in enumerate(targets)]
        unique = {text: number for number, text in enumerate(dict.fromkeys(texts))}
        item = np.array([unique[text] for text in texts], dtype=np.int64)
        feedback = value = None
        if self.needs_values:
            value = plain_values(entries) if plain else None
            if value is None:
                value = [graded_value(entry, f"histories[{b}][{i}]") for b, i, entry in flat]
            value = np.array(value, dtype=np.float64)
        if self.needs_feedback:
            codes = codes if plain else [self._feedback_of(entry, b, i) for b, i, entry in flat]
            feedback = np.array(codes, dtype=np.int64)
        statistics = {
            name: np.array([behavior_statistic(e, name, b, i) for b, i, e in flat], dtype=np.float64)
            for name in self.sink_statistics
        }
        events = self.event_table(item[: len(flat)], time, feedback, value, statistics)
        self._follow_tokenizer()
        pieces = self._pieces(self._known_tokens.rows(unique, self._item_tokens))
        return pieces, events, offsets, item[len(flat) :], target_time

    def _feedback_of(self, entry: Mapping[str, Any], row: int, number: int) -> int:
        """Code of a behaviour's feedback, 0 where none is read."""
        return feedback_code(entry, self.prompt.feedback_names, row, number) if self.needs_feedback else 0

    def _one_line(self, text: str | None) -> str | None:
        """A behaviour's text, which is part of a field, as the prompt writes those of a catalogue."""
        return text.replace("\n", " ") if text is not None and self.layout == "fields" else text

    def _all_lines(self, text: str | None) -> str | None:
        """A target's text: lines without text that the item template gives count, others at its ends do not."""
        if self.layout != "fields" or (text is not None and text.count("\n") + 1 == self.num_target_fields):
            return text
        return (text or "").strip() or "\n" * (self.num_target_fields - 1)

    @staticmethod
    def as_target(text: Any) -> dict[str, Any]:
        """A target that is given as a text, as a dict."""
        return {"text": text}

    def statistics_events(
        self, behaviors: Sequence[Mapping[str, Any]]
    ) -> tuple[list[Any], list[int], list[int], list[float]]:
        """What statistics count of behaviours: items' ids, times in seconds, labels (0, 1, -1 for none), graded values.

        Raises:
            ValueError: a behaviour without `item` or `time`; one without `label` where its feedback does not say it.
        """
        read = self._statistics_event
        told = each_kind(behaviors, (*FEEDBACK_KEYS, "label"), BEHAVIOR_KEYS, lambda entry, _: read((0, entry), ""))
        if told is not None and all("item" in entry for entry in behaviors):
            times, values = plain_seconds(behaviors), plain_values(behaviors)
            if times is not None and values is not None:
                return [entry["item"] for entry in behaviors], times, [event[2] for event in told], values
        events = each(enumerate(behaviors), "histories[0][{}]".format, read)
        return tuple(map(list, zip(*events))) if events else ([], [], [], [])

    def _statistics_event(self, numbered: tuple[int, Mapping[str, Any]], where: str) -> tuple[Any, int, int, float]:
        number, entry = numbered
        if "item" not in entry:
            raise ValueError(f"{where} has no 'item'; statistics are counted by the items' ids")
        if "time" not in entry:
            raise ValueError(f"{where} has no 'time'; a behaviour needs 'text' and 'time'")
        label = entry.get("label")
        if label is None and "label" not in entry:
            code = feedback_code(entry, self.prompt.feedback_names, 0, number)
            if code and (self.feedback_labels is None or code >= len(self.feedback_labels)):
                raise ValueError(
                    f"{where} has no 'label', which its feedback does not say here; give 0, 1 or null for none"
                )
            label = -1 if self.feedback_labels is None else self.feedback_labels[code]
        elif label is not None and label not in (0, 1):
            raise ValueError(f"{where}: label {label!r} is not accepted; use 0, 1 or null for none")
        time = whole_seconds(entry["time"], f"{where}['time']")
        return entry["item"], time, -1 if label is None else int(label), graded_value(entry, where)

    def scaled_statistics(self, targets: Sequence[Mapping[str, Any] | str]) -> np.ndarray:
        """(B, Fs) float32 statistics of raw targets, as the model takes them."""
        names = self.statistics_reader.names
        return self.statistics_reader.scaled(np.array([target_statistics(t, b, names) for b, t in enumerate(targets)]))

    def __call__(
        self,
        histories: Sequence[Sequence[Mapping[str, Any]]],
        targets: Sequence[Mapping[str, Any] | str],
        times: Sequence[int | float],
        return_tensors: str | None = "pt",
        pad_to_multiple_of: int | None = None,
        return_num_dropped: bool = False,
    ) -> BatchFeature:
        """Build a batch from texts.

        Args:
            histories: per row the **full** history, oldest first; the processor selects the K behaviours itself. A
                behaviour holds `text` (None or "" is an empty text), `time` (seconds; fractions are cut off), and where
                the settings ask for it `feedback` (code, name of the prompt, True / False / None) or `group` (name),
                `value` (graded feedback; without it, or None, unknown), `similarity` (cosine with the target) and `statistics` (an
                object of the raw `sink_statistics` at its time).
            targets: per row the target as `{"text": ...}` or a text; with a `statistics_reader` also its `statistics`, raw numbers in
                the order of the reader's names, None or NaN where one is not known.
            times: per row the target's time in seconds. All behaviours must be strictly earlier.
            return_tensors: `"pt"`, `"np"` or None (numpy).
            pad_to_multiple_of: pad the rows to a multiple of this many tokens, and never beyond `max_length`.
            return_num_dropped: add `num_dropped` (B,), the behaviours that truncation dropped.

        Returns:
            `input_ids`, `attention_mask`, `sink_buckets` (B, N) int64 (`sink_buckets` (B, N, S) for S >= 2 signals, -1
            where the token is no sink) and `target_mask` (B, N) bool: the tokens of the target item's text; of the
            prompt's text around it when that is empty. With `layout="split"` also `field_ids` (B, N) int64; with a
            `statistics_reader` also `statistics` (B, Fs) float32, scaled.

        Raises:
            ValueError: lists of different length, missing or unknown keys, times that are not ascending or not before
                the target, unknown feedback, a target that alone exceeds `max_length`. Messages name row and behaviour.
        """
        if return_tensors not in ("pt", "np", None):
            raise ValueError(f"return_tensors must be 'pt' or 'np' (None: numpy too), got {return_tensors!r}")
        for name, values in (("histories", histories), ("targets", targets), ("times", times)):
            check_list(values, name, f"{name}, one per row")
        if not len(histories) == len(targets) == len(times):
            raise ValueError(
                f"histories, targets and times must have one entry per row, got {len(histories)}, {len(targets)} and "
                f"{len(times)}"
            )
        if not len(histories):
            raise ValueError("the batch is empty; give at least one row")
        pieces, events, offsets, target, target_time = self.read_rows(histories, targets, times)
        candidates = None
        if self.needs_similarity:
            similarity = [similarity_of(e, b, i) for b, history in enumerate(histories) for i, e in enumerate(history)]
            candidates = Candidates(offsets, np.arange(offsets[-1]), np.array(similarity, dtype=np.float64))
        batch = self.assemble(
            pieces,
            events,
            start=offsets[:-1],
            end=offsets[1:],
            target=target,
            time=target_time,
            candidates=candidates,
            pad_to_multiple_of=pad_to_multiple_of,
        )
        if self.statistics_reader is not None:
            batch["statistics"] = self.scaled_statistics(targets)
        if not return_num_dropped:
            del batch["num_dropped"]
        return BatchFeature(batch, tensor_type=return_tensors)


def _settings_names() -> list[str]:
    init = CTRSinkProcessor.__init__.__code__
    return [name for name in init.co_varnames[1 : init.co_argcount] if name != "tokenizer"]
