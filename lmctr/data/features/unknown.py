"""Values that a processor does not know: how many are too many.

Fitting keeps the share of unknown values of each field in the training part, building a store that in the validation part. A later table is
held against them: a share far above is a warning, one above the limit (`max_unknown` of the field; default 0.95, or half-way from the
validation's share to 1) an error, because a model that sees next to no known value of a field is not the model that was measured, unless that
saw hardly any either. Causes are a renamed code, another id space, a column in another field's place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .transform import add_counts, merged_examples

MAX_UNKNOWN = 0.95
_USELESS = 0.9  # of validation's values unknown: the field told nothing there, and tells nothing more if the rest is unknown too
FEWEST = 100  # values from which on a share says something
_DISTINCT = 10  # unknown values that must differ: many rows of one new user are no fault of the data


def num_present(counts: Mapping[str, int]) -> int:
    """How many values were there."""
    return counts["values"] - counts.get("missing", 0)


def share_unknown(counts: Mapping[str, int]) -> float | None:
    """Share of the unknown among the values that were there; None where there was none."""
    present = num_present(counts)
    return counts["unknown"] / present if present else None


def shares_of(parts: Mapping[str, Mapping[str, Mapping[str, int]]]) -> dict[str, dict[str, float]]:
    """Share of unknown values by part and field, of their counts; without what had no value."""
    found = {part: {name: share_unknown(own) for name, own in counts.items()} for part, counts in parts.items()}
    return {
        part: {name: share for name, share in own.items() if share is not None} for part, own in found.items() if own
    }


@dataclass(frozen=True)
class _KeptShares:
    """What [`check_unknown`] asks of a processor, for items and tokens of a log: the shares that a training kept, by part and name."""

    shares: Mapping[str, Mapping[str, float]]

    def usual_unknown(self, name: str) -> float | None:
        return next(
            (self.shares[part][name] for part in ("validation", "train") if name in self.shares.get(part, ())), None
        )

    def unknown_limit(self, name: str) -> float | None:
        return None

    def num_known(self, name: str) -> int:
        return 2 * _DISTINCT


def kept_shares(processor: Any, kept: Mapping[str, Mapping[str, float]] | None) -> Any:
    """What knows the shares of a training by name (`usual_unknown`): the processor, or what the run's folder `kept` where it knows none."""
    return processor if hasattr(processor, "usual_unknown") else _KeptShares(kept or {})


class UnknownValues:
    """Counts what was unknown in blocks of rows.

    Args:
        processor: a [`~lmctr.data.features.processor.TabularFeatureProcessor`] or an
            [`~lmctr.data.processors.impressions.ImpressionProcessor`], which keep the shares of their fields, or another one.
        kept: as of [`check_unknown`].

    Attributes:
        counts: by field, as the processor's `oov_counts`. examples: by field some of the unknown values, as canonical texts.
    """

    def __init__(self, processor: Any, kept: Mapping[str, Mapping[str, float]] | None = None) -> None:
        self.processor, self.kept = processor, kept
        self.counts: dict[str, dict[str, int]] = {}
        self.examples: dict[str, list[str]] = {}

    def add(
        self, counts: Mapping[str, Mapping[str, int]] | None = None, examples: Mapping[str, list[str]] | None = None
    ) -> None:
        """Counts what is given, or what the processor has just seen."""
        self.counts = add_counts([self.counts, self.processor.oov_counts if counts is None else counts])
        own = self.processor.unknown_examples if examples is None else examples
        self.examples = merged_examples([self.examples, own])

    def check(self, where: str, allowed: bool = False, **more: bool) -> list[str]:
        """[`check_unknown`] of what was counted."""
        return check_unknown(self.processor, self.counts, self.examples, where, allowed, self.kept, **more)


def check_unknown(
    processor: Any,
    counts: Mapping[str, Mapping[str, int]],
    examples: Mapping[str, list[str]],
    where: str,
    allowed: bool = False,
    kept: Mapping[str, Mapping[str, float]] | None = None,
    rare: bool = False,
) -> list[str]:
    """Warnings about fields with far more unknown values than the validation part had.

    Args:
        processor: a fitted one. counts, examples: of the unknown values, by field.
        where: what holds the rows, for messages.
        allowed: whether a share above the limit is a warning too.
        kept: shares by part and name, for a processor that keeps none; what has no share there is not checked.
        rare: whether rare values stand there as often as others, as in a list of all items: a share is too large only where no value is known.

    Raises:
        ValueError: fields above their limit, with their shares and examples.
    """
    if (shares := kept_shares(processor, kept)) is not processor:
        processor = shares
        counts = {name: own for name, own in counts.items() if processor.usual_unknown(name) is not None}
    warnings, errors = [], []
    for name, own in counts.items():
        share, usual = share_unknown(own), processor.usual_unknown(name)
        if share is None or num_present(own) < FEWEST:
            continue
        limit, size = processor.unknown_limit(name), processor.num_known(name)
        if limit is None:
            limit = max(MAX_UNKNOWN, (1 + (usual or 0.0)) / 2) if (usual or 0.0) < _USELESS else 1.0
        limit = 1 - 0.5 / num_present(own) if rare else limit
        found = examples.get(name, [])
        shown = f" ({', '.join(f'{value!r:.60}' for value in found[:3])}, ...)" if found else ""
        text = f"field {name!r}: {share:.1%} of the values are unknown{shown}"
        text += "" if usual is None else f", {usual:.1%} in validation"
        if share > limit and len(found) >= min(_DISTINCT, max(size // 2, 1)):
            errors.append(f"{text}; the limit is {limit:.1%}")
        elif share > max(2 * (usual or 0.0), (usual or 0.0) + 0.1) + 1.5 / math.sqrt(own["values"]):
            warnings.append(f"{where}: {text}")
    if errors and not allowed:
        raise ValueError(
            f"{where}: {'; '.join(errors)}. Are these the columns, and the codes, that the model was trained on? If so, train anew on "
            "them, raise max_unknown of a table's field in data.features, or score all the same with --allow-unknown (in Python allow_unknown=True)."
        )
    return warnings + [f"{where}: {error}" for error in errors]
