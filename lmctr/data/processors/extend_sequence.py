"""Living vocabularies of logs: ids for the items and feature values of newer events, and no more ids for those that are gone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lmctr.data.logs.log import InteractionLog

from .feature_values import FIRST_ID, OOV, as_column, as_matrix, codes_of, distinct, feature_codes, values_of
from .sequence import SequenceProcessor, item_counts


def extend_sequence_processor(
    processor: SequenceProcessor,
    log: InteractionLog,
    train_events: np.ndarray,
    *,
    min_count: int = 1,
    max_idle: int | None = None,
) -> tuple[SequenceProcessor, dict[str, dict[str, int]]]:
    """A processor with the items and values of the training part of a newer log.

    Known ones keep their place, new ones come behind. Behaviours, scenarios and the scales of statistics stay as they were fitted: new
    behaviours count as unknown where there is such, new scenarios are refused.

    Args:
        processor: of the earlier log. log, train_events, min_count: as in [`SequenceProcessor.fit`]; `min_count` is of these events.
        max_idle: items and values that were absent from so many extensions in a row lose their ids; None: none does.

    Returns:
        The processor, and by vocabulary how many values were "added", "met" again and "evicted", and its "size".

    Raises:
        ValueError: no training sample, ids of another kind, a log without a feature's column.
    """
    events = log.positions(train_events)
    if not len(events):
        raise ValueError("train_events: there are none; the vocabulary grows by the training part.")
    ids, known = log.catalogue["item_id"].combine_chunks(), processor.items["item_id"].combine_chunks()
    if pa.types.is_integer(ids.type) != pa.types.is_integer(known.type):
        raise ValueError(
            f"item_id: the log's ids have the type {ids.type}, those of the earlier run {known.type}; write them alike."
        )
    counts, codes = item_counts(log, events), processor.item_codes(ids)
    keep = _Kept(processor, "items", len(known), codes[counts > 0], max_idle)
    added = np.flatnonzero((codes == OOV) & (counts >= min_count))
    absent, report = {"items": keep.absent(len(added))}, {"items": keep.report(len(added))}
    table = {
        "item_id": pa.concat_arrays([known.filter(pa.array(keep.kept)), ids.take(pa.array(added)).cast(known.type)])
    }
    place = np.zeros(len(known) + FIRST_ID, dtype=np.int64) - 1  # of each known item in the log's catalogue
    there = np.flatnonzero(codes >= FIRST_ID)
    place[codes[there]] = there
    place = place[FIRST_ID:][keep.kept]
    is_other = (codes == OOV) & (counts < min_count)  # of the catalogue, in no vocabulary
    is_other[codes >= FIRST_ID] = ~keep.kept[codes[codes >= FIRST_ID] - FIRST_ID]
    rest = np.flatnonzero(is_other) if processor.item_feature_names else added[:0]
    earlier = pa.concat_tables([processor.items.filter(pa.array(~keep.kept)), processor.others])
    is_here = pc.is_in(earlier["item_id"], value_set=ids.cast(known.type))
    earlier = earlier.filter(pc.invert(is_here)) if processor.item_feature_names else earlier.slice(0, 0)
    others = {
        "item_id": pa.concat_arrays([earlier["item_id"].combine_chunks(), ids.take(pa.array(rest)).cast(known.type)])
    }
    features: dict[str, list[str]] = {}
    shown = (counts > 0) & ((codes != OOV) | (counts >= min_count))
    for name in processor.item_feature_names:
        length = processor.list_lengths.get(name)
        values = values_of(log.catalogue, name, "item_features", "the catalogue", length is not None)
        moved = _extended(processor, name, values.filter(pa.array(shown)), max_idle, features, absent, report)
        now, before = feature_codes(values, features[name], length), as_matrix(processor.items[name])[keep.kept]
        known_now = np.where(place[:, None] >= 0, now[place], moved[before])
        table[name] = as_column(np.concatenate([known_now, now[added]]))
        others[name] = as_column(np.concatenate([moved[as_matrix(earlier[name])], now[rest]]))
    trained = np.zeros(log.num_users, dtype=bool)
    trained[log.user[events]] = True
    for name in processor.user_feature_names:
        if log.users is None:
            raise ValueError(f"user_features: the earlier run read {name!r}, but the log has no user table.")
        values = values_of(log.users, name, "user_features", "the user table", name in processor.list_lengths)
        _extended(processor, name, values.filter(pa.array(trained)), max_idle, features, absent, report)
    values = processor._settings()
    tables = {"items": pa.table(table), "others": pa.table(others)}
    return SequenceProcessor(**values, **tables, features=features, absent=absent), report


class _Kept:
    """Which of the known values of a vocabulary keep their ids; `seen`: codes of values of the newer log."""

    def __init__(self, processor: SequenceProcessor, name: str, size: int, seen: np.ndarray, max_idle: int | None):
        self.idle = np.asarray(processor.absent.get(name, np.zeros(size)), dtype=np.int64) + 1
        self.idle[seen[seen >= FIRST_ID] - FIRST_ID] = 0
        self.kept = np.ones(size, dtype=bool) if max_idle is None else self.idle < max_idle

    def absent(self, added: int) -> Sequence[int]:
        """From how many extensions in a row each value of the new vocabulary was absent."""
        return [*self.idle[self.kept].tolist(), *[0] * added]

    def report(self, added: int) -> dict[str, int]:
        kept = int(self.kept.sum())
        met = int((self.idle == 0).sum())
        return {"added": added, "met": met, "evicted": len(self.kept) - kept, "size": kept + added}


def _extended(
    processor: SequenceProcessor,
    name: str,
    values: pa.Array,
    max_idle: int | None,
    features: dict[str, list[str]],
    absent: dict[str, Sequence[int]],
    report: dict[str, dict[str, int]],
) -> np.ndarray:
    """Adds a feature's vocabulary with the values of newer events to `features`. Returns the new code of each old one."""
    known = processor.features[name]
    entries = pc.list_flatten(values) if name in processor.list_lengths else values
    keep = _Kept(processor, name, len(known), codes_of(entries, known), max_idle)
    there = set(known)
    added = [value for value in distinct(values) if value not in there]
    features[name] = [value for value, is_kept in zip(known, keep.kept) if is_kept] + added
    absent[name], report[name] = keep.absent(len(added)), keep.report(len(added))
    moved = np.full(len(known) + FIRST_ID, OOV, dtype=np.int64)
    moved[0] = 0
    moved[FIRST_ID:][keep.kept] = np.arange(int(keep.kept.sum())) + FIRST_ID
    return moved


def sequence_sources(before: SequenceProcessor, after: SequenceProcessor) -> dict[str, np.ndarray]:
    """By vocabulary of a model's tables ([`~lmctr.models.common.table_bank.TableBank`]), the id that each id was in an earlier processor, -1
    for new ones."""
    found = {"items": before.item_codes(after.items["item_id"])}
    for side, names in (("item", after.item_feature_names), ("user", after.user_feature_names)):
        for place, name in enumerate(names):
            values = pa.array(after.features[name], pa.string())
            found[f"{side}_feature.{place}"] = codes_of(values, before.features[name])
    special = np.arange(FIRST_ID)
    return {name: np.concatenate([special, np.where(codes == OOV, -1, codes)]) for name, codes in found.items()}
