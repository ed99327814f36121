"""Living vocabularies: ids for the values of new rows, and no more ids for values that are gone.

Known values keep their vectors, though not always their ids: the ids of a vocabulary stay without gaps, so that where a value goes, those
behind it move up. [`id_sources`] says which id each one was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .columns import Rows, count_labels, field_numbers, list_entries, text_codes
from .fields import Field
from .fit import FittedState
from .transform import coded_values
from .vocabulary import CountAccumulator, Vocabulary


def extend_state(
    fields: Sequence[Field], labels: Sequence[str], state: FittedState, stream: Iterable[Rows]
) -> tuple[FittedState, dict[str, dict[str, int]]]:
    """The state with the values of new rows, and by vocabulary how many values were "added", "met" again and "evicted", and its "size".

    A value that is new needs `min_count` rows among these ones. A known value that was absent in the last `max_idle` extensions goes; where
    more than `max_size` are left, those absent longest go first, of them the rarest. Types of values, bounds of bins, means and deviations
    stay as they were fitted: what the weights mean by them does not change. Least and most hold the new rows, too.

    Raises:
        ValueError: no rows; values that fit no field, see [`~lmctr.data.features.processor.TabularFeatureProcessor.fit`].
    """
    counts = {field.name: CountAccumulator() for field in fields if field.owns_vocabulary}
    moments = dict(state.moments)
    num_rows = labelled = positives = 0
    for rows in stream:
        num_rows += len(rows)
        if labels:
            known, clicked = count_labels(rows, labels)
            labelled, positives = labelled + known, positives + clicked
        for field in fields:
            if len(moments.get(field.name, ())) == 4:
                values, (mean, deviation, low, high) = field.curved(field_numbers(field, rows)), moments[field.name]
                low, high = np.fmin.reduce(values, initial=low), np.fmax.reduce(values, initial=high)
                moments[field.name] = mean, deviation, float(low), float(high)
            own = counts.get(field.share_with or field.name) if field.type != "numeric" else None
            if own is None:
                continue
            if field.kind == "list":
                values = list_entries(field, rows)[0]
                codes, words = text_codes(values, field, rows, state.value_types.get(field.name))
            else:
                codes, words = coded_values(field, state, rows)
            own.add(words, np.bincount(codes + 1, minlength=len(words) + 1)[1:])
    if not num_rows:
        raise ValueError("extend: there are no rows to extend the vocabularies by.")
    by_name, report = {field.name: field for field in fields}, {}
    vocabularies = {}
    for name, seen in counts.items():
        vocabularies[name], report[name] = _extended(state.vocabularies[name], by_name[name], *seen.result())
    return _with(replace(state, moments=moments), vocabularies, num_rows, labelled, positives), report


def _extended(
    known: Vocabulary, field: Field, values: pa.Array, counts: np.ndarray
) -> tuple[Vocabulary, dict[str, int]]:
    """A vocabulary with the distinct values of new rows, the most frequent first."""
    place = pc.index_in(values, value_set=known.values)
    is_new = place.is_null().to_numpy(zero_copy_only=False)
    old = np.zeros(len(known), np.int64) if known.counts is None else known.counts.astype(np.int64)
    idle = np.zeros(len(known), np.int64) if known.idle is None else known.idle
    seen = np.zeros(len(known), np.int64)
    seen[place.drop_null().to_numpy()] = counts[~is_new]
    added = is_new & (counts >= field.min_count)
    all_values = pa.concat_arrays([known.values, values.filter(pa.array(added)).cast(pa.large_string())])
    all_counts = np.concatenate([old + seen, counts[added]])
    all_idle = np.concatenate([np.where(seen > 0, 0, idle + 1), np.zeros(int(added.sum()), np.int64)])
    kept = np.ones(len(all_values), bool) if field.max_idle is None else all_idle < field.max_idle
    if field.max_size is not None and kept.sum() > field.max_size:
        order = np.lexsort((np.arange(len(kept)), -all_counts, all_idle, ~kept))  # what stays first
        kept[order[field.max_size :]] = False
    dropped = known.num_dropped + int(is_new.sum() - added.sum()) + int((~kept).sum())
    vocabulary = Vocabulary(
        all_values.filter(pa.array(kept)), known.first_id, all_counts[kept], dropped, all_idle[kept]
    )
    gained, lost = int(kept[len(known) :].sum()), int((~kept[: len(known)]).sum())
    return vocabulary, {"added": gained, "met": int((seen > 0).sum()), "evicted": lost, "size": len(vocabulary)}


def _with(
    state: FittedState, vocabularies: dict[str, Vocabulary], num_rows: int, labelled: int, positives: int
) -> FittedState:
    """The state with these vocabularies, and statistics of the rows since the first fit."""
    statistics: dict[str, Any] = {key: value for key, value in state.statistics.items() if key != "unknown"}
    before = statistics.get("num_rows", 0)
    if "positive_rate" in statistics and labelled:  # of the new rows: the prior of today
        statistics["positive_rate"] = positives / labelled
    statistics |= {"num_rows": before + num_rows, "extensions": statistics.get("extensions", 0) + 1}
    of_fields = {name: dict(entry) for name, entry in statistics.get("fields", {}).items()}
    for name, vocabulary in vocabularies.items():
        own = {"distinct": len(vocabulary) + vocabulary.num_dropped, "kept": len(vocabulary)}
        of_fields[name] = of_fields.get(name, {}) | own
    statistics["fields"] = of_fields
    return FittedState(vocabularies, dict(state.bounds), dict(state.moments), statistics)


def id_sources(before: Any, after: Any) -> list[np.ndarray]:
    """By vocabulary of a model (`vocab_sizes`, then `sequence_vocab_sizes`), the id that each id of a processor was in an earlier one.

    Args:
        before, after: processors of equal fields, the second one [`~TabularFeatureProcessor.extend`]ed from the first, once or more often.

    Returns:
        (V,) int64 for each, -1 for ids of new values.
    """
    return [_sources(before, after, name) for name in after.vocabulary_fields()]


def _sources(before: Any, after: Any, name: str) -> np.ndarray:
    size = after.vocab_size(name)
    owner = after.vocabulary_of(name)
    if owner is None:  # hashed or binned: ids mean what they meant
        return np.arange(size)
    old, new = before.state.vocabularies[owner], after.state.vocabularies[owner]
    found = old.lookup(new.values).astype(np.int64)
    return np.concatenate([np.arange(new.first_id), np.where(found >= old.first_id, found, -1)])
