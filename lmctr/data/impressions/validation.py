"""Signs that impressions give their ranks away. See [`lmctr.data.leaks`]."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.guess.sample import is_called_label
from lmctr.data.leaks import Finding, duplicate_rows, row_hashes, settle, times_in_another_unit

from .store import AD_INPUTS, USER_INPUTS, ImpressionStore

_SURE = 0.98  # share of pairs of ads that one field puts in the right order
_IMPRESSIONS = 1000
_TWICE = 0.01  # share of ads that may be alike in all fields and their rank


def validate_impressions(store: ImpressionStore, allow: Mapping[str, str] | None = None) -> list[str]:
    """Checks impressions for leaks; arguments, result and errors as of [`~lmctr.data.tables.validation.validate_table`]."""
    return settle(impression_findings(store), allow, store.info.name or "impressions")


def impression_findings(store: ImpressionStore) -> list[Finding]:
    """Everything that [`validate_impressions`] looks for."""
    findings = []
    if store.times is not None:
        findings += times_in_another_unit(np.asarray(store.times))
    train, held = store.splits["train"], np.concatenate([store.splits["validation"], store.splits["test"]])
    ads = [getattr(store, name) for name in AD_INPUTS if getattr(store, name) is not None]
    users = [getattr(store, name) for name in (*USER_INPUTS, "groups", "times") if getattr(store, name) is not None]
    if not len(train) or not len(held) or not ads:
        return findings
    counts = np.asarray(store.counts, dtype=np.int64)
    with np.errstate(over="ignore"):
        of_ads = np.add.reduceat(
            row_hashes([*ads, np.arange(store.num_ads) - np.repeat(store.offsets[:-1], counts)]), store.offsets[:-1]
        )
    hashes = row_hashes([*users, counts, of_ads])
    firsts = np.asarray(store.ranks)[store.offsets[:-1]]
    findings += duplicate_rows(hashes, (firsts > np.median(firsts)).astype(np.int8), train, held)
    findings += _repeated_ads(store, ads)
    ordering = _ordering_fields(store, held)
    found = {finding.name for finding in ordering}
    return findings + ordering + [own for own in _called_labels(store) if own.name not in found]


def _repeated_ads(store: ImpressionStore, ads: list[np.ndarray]) -> list[Finding]:
    """Ads that stand twice in an impression, with equal fields and ranks."""
    which = np.repeat(np.arange(len(store.counts)), np.asarray(store.counts, dtype=np.int64))
    hashes = row_hashes([*ads, np.asarray(store.ranks), which])
    twice = len(hashes) - len(np.unique(hashes))
    if twice <= _TWICE * len(hashes):
        return []
    text = f"{twice:,} of {len(hashes):,} ads stand in their impression a second time, with equal fields and ranks"
    return [Finding("duplicates", "ads", text)]


def _called_labels(store: ImpressionStore) -> list[Finding]:
    """Fields of ads whose name says what came after the impression."""
    names = {field.name: field.source_column for field in store.processor.ad.ordered_fields()}
    return [
        Finding("field", f"ad.{name}", f"the field 'ad.{name}' is called like what a user did once the ads were shown")
        for name, column in names.items()
        if is_called_label(column)
    ]


def _ordering_fields(store: ImpressionStore, held: np.ndarray) -> list[Finding]:
    """Numbers of ads, codes among them, that put nearly all pairs of an impression's ads in the order of their ranks."""
    names = [field.name for field in store.processor.ad.ordered_fields() if field.kind == "value"]
    codes = _codes(store.processor.ad)
    names += codes
    if not names:
        return []
    rows = held[:: max(1, len(held) // _IMPRESSIONS)]
    right, pairs = np.zeros(len(names)), 0
    for row in rows:
        own = slice(store.offsets[row], store.offsets[row + 1])
        ranks, values = (
            np.asarray(store.ranks[own]),
            [numbers[store.ad_input_ids[own, at]] for at, numbers in codes.values()],
        )
        values = np.column_stack(
            [*(() if store.ad_numeric_values is None else store.ad_numeric_values[own].T), *values]
        )
        order = np.sign(ranks[:, None] - ranks[None])
        pairs += int((order > 0).sum())
        agree = np.nan_to_num(np.sign(values[:, None] - values[None])) * order[..., None]
        right += ((agree > 0).sum(axis=(0, 1)) + 0.5 * ((agree == 0) & (order != 0)[..., None]).sum(axis=(0, 1))) / 2
    if pairs < 200:
        return []
    return [
        Finding(
            "field",
            f"ad.{name}",
            f"the field 'ad.{name}' alone puts {share:.1%} of {pairs:,} pairs of ads in order: it holds the rank",
        )
        for name, share in zip(names, np.maximum(right / pairs, 1 - right / pairs))
        if share > _SURE
    ]


def _codes(ads: TabularFeatureProcessor) -> dict[str, tuple[int, np.ndarray]]:
    """Categorical fields whose values are numbers, as a second column of positions is: place among the ids, and the number of each id, NaN of none."""
    found = {}
    for place, field in enumerate(field for field in ads.ordered_fields() if field.kind == "id"):
        known = ads.state.vocabularies.get(field.name)
        if known is not None and ads.value_types.get(field.name) in ("integer", "number"):
            numbers = np.full(known.first_id + len(known.values), np.nan)
            numbers[known.first_id :] = known.values.cast(pa.float64()).to_numpy(zero_copy_only=False)
            found[field.name] = (place, numbers)
    return found
