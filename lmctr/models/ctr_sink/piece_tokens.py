"""Piecewise tokenisation: each text of a prompt and each item text on its own, so that token ids can be kept and joined."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from transformers import PreTrainedTokenizerBase

from lmctr.utils.ragged import Ragged, offsets_from_lengths

from .prompt import Prompt


def tokenize(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], split_special_tokens: bool = True
) -> list[list[int]]:
    """Token ids of texts without the tokenizer's template. By default nothing in a text is read as a special token."""
    if not texts:
        return []
    off = ("add_special_tokens", "return_attention_mask", "return_token_type_ids", "padding", "truncation", "verbose")
    return tokenizer(texts, split_special_tokens=split_special_tokens, **dict.fromkeys(off, False))["input_ids"]


class TokenCache:
    """Token ids of texts that were tokenised before. Bounded: of two generations the older goes when the newer is full.

    Args:
        max_tokens: of a generation. A text counts as 32 more, about what it takes beside its ids.
    """

    def __init__(self, max_tokens: int = 2**20):
        self.max_tokens, self._count = max_tokens, 0
        self._newer: dict[str | None, np.ndarray] = {}
        self._older: dict[str | None, np.ndarray] = {}

    def __len__(self) -> int:
        return len(self._newer) + len(self._older)

    def __reduce__(self) -> tuple:
        # copies begin empty: a processor that is copied, saved or sent holds no texts
        return TokenCache, (self.max_tokens,)

    def rows(self, texts: Iterable[str | None], encode: Callable[[list[str | None]], Ragged]) -> Ragged:
        """Ids of different texts; `encode` gives those of texts that are not known."""
        found = {text: self._newer.get(text, self._older.get(text)) for text in texts}
        new = [text for text, ids in found.items() if ids is None]
        if new:
            made = encode(new)
            found |= {text: made[number].copy() for number, text in enumerate(new)}
        for text, ids in found.items():
            if text in self._newer:
                continue
            if self._count + len(ids) + 32 > self.max_tokens:
                self._newer, self._older, self._count = {}, self._newer, 0
            self._newer[text] = ids
            self._count += len(ids) + 32
        rows = list(found.values())
        return Ragged(
            np.concatenate([np.zeros(0, np.int32), *rows]), offsets_from_lengths(np.array([*map(len, rows)]))
        )


def drop_special(tokenizer: PreTrainedTokenizerBase, rows: Ragged, sink_token_id: int | None) -> Ragged:
    """Drop special ids that a tokenizer yields for plain text all the same (one that splits at blanks only finds "[SEP]" as
    a word of its vocabulary). The unknown token stays."""
    named = ("bos_token_id", "eos_token_id", "sep_token_id", "pad_token_id", "cls_token_id", "mask_token_id")
    special = {*tokenizer.all_special_ids, sink_token_id} - {tokenizer.unk_token_id, None}
    special |= {getattr(tokenizer, name) for name in named} - {None}
    wrong = np.isin(rows.values, list(special))
    if not wrong.any():
        return rows
    row = np.repeat(np.arange(len(rows)), rows.lengths)[~wrong]
    return Ragged(rows.values[~wrong], offsets_from_lengths(np.bincount(row, minlength=len(rows))))


def special_layout(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Ids that the tokenizer's template puts before and after a text.

    Raises:
        ValueError: a tokenizer that changes a text's own tokens when it adds special ones.
    """
    for probe in ("a", "1", "x y"):
        plain = tokenizer(probe, add_special_tokens=False)["input_ids"]
        whole = tokenizer(probe, add_special_tokens=True)["input_ids"]
        for start in range(len(whole) - len(plain) + 1):
            if plain and whole[start : start + len(plain)] == plain:
                return list(whole[:start]), list(whole[start + len(plain) :])
    raise ValueError(
        f"{type(tokenizer).__name__} changes a text's own tokens when it adds special tokens; such a tokenizer cannot be "
        f"used piece by piece"
    )


def piece_blanks(prompt: Prompt, feedback: str, levels: Sequence[float] = ()) -> dict[str, bool]:
    """Whether a blank stands before a piece, by the ends of all texts that it can follow.

    Args:
        feedback: "none", "groups", "inline" or "sink"; decides which pieces follow which.
        levels: values that words tell.

    Returns:
        By piece: "item", "target_prefix", "empty_history", "word i v", "header i".

    Raises:
        ValueError: a piece that can follow texts of which some end with a blank and some do not.
    """
    headers = [f"header {i}" for i in range(len(prompt.feedback))] if feedback == "groups" else []
    texts = prompt_texts(prompt, levels)
    words = [key for key in texts if key.startswith("word ")] if feedback == "inline" else []
    before_behavior = [*headers, "separator"] if headers else ["head", "separator"]
    before_target = ["separator", "empty_history"]
    follows = {
        "empty_history": ["head"],
        "target_prefix": before_target,
        "item": [*before_behavior, *words, *(["target_prefix"] if prompt.target_prefix else before_target)],
        **{word: before_behavior for word in words},  # noqa: C420
        **{header: ["head", "separator"] for header in headers},
    }
    blanks = {}
    for piece, befores in follows.items():
        ends = {before: texts[before].endswith(" ") for before in befores if texts[before]}
        if len(set(ends.values())) > 1:
            listed = ", ".join(f"{before} {texts[before]!r}" for before in ends)
            raise ValueError(
                f"prompt {prompt.name!r}: {piece} can follow texts of which some end with a blank and some do not "
                f"({listed}); end all of them with a blank, or none"
            )
        blanks[piece] = any(ends.values())
    return blanks


def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    blanks: dict[str, bool],
    sink_token: str,
    levels: Sequence[float] = (),
) -> dict[str, list[int]]:
    """Token ids of the prompt's pieces. Unlike item texts they may hold the tokenizer's own special tokens.

    Raises:
        ValueError: the sink token in a text of the prompt.
    """
    texts = prompt_texts(prompt, levels)
    for key, text in texts.items():
        if sink_token in text:
            raise ValueError(f"prompt {prompt.name!r}: {key} holds the sink token {sink_token!r}; take it out")
        if key != "target_suffix" and text.endswith(" "):  # goes to the front of the following piece
            text = text[:-1]
        texts[key] = " " + text if text and blanks.get(key) else text
    ids = tokenize(tokenizer, list(texts.values()), split_special_tokens=False)
    return {key: list(row) if texts[key] else [] for key, row in zip(texts, ids)}


def prompt_texts(prompt: Prompt, levels: Sequence[float] = ()) -> dict[str, str]:
    """All fixed texts of a prompt by piece. "word i v" is entry i's word for value bucket v (0: unknown), where words tell values;
    else there is "word i 0" alone."""
    texts = {
        "head": prompt.head,
        "separator": prompt.separator,
        "empty_history": prompt.empty_history,
        "target_prefix": prompt.target_prefix,
        "target_suffix": prompt.target_suffix,
    }
    told = (None, *levels) if prompt.tells_values else (None,)
    for i, entry in enumerate(prompt.feedback):
        texts |= {f"word {i} {v}": entry.word_for(value) for v, value in enumerate(told)}
    return texts | {f"header {i}": entry.header for i, entry in enumerate(prompt.feedback)}
