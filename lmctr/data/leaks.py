"""Signs that a data set gives its answers away, of arrays: fields that tell the label, rows in two parts, times in two units.

Each check gives [`Finding`]s; [`settle`] raises for those that nobody has allowed. What stands in a finding is measured, and the bounds are
such that honest data stay below them: a check that cannot tell says nothing.

| check | what it finds |
| --- | --- |
| field | a field that alone ranks held-out rows with an AUC above 0.98, or above 0.9 and far better than every other field; likewise of a log
  how long ago, within an hour, the user's last event was |
| encoding | a number that is the mean label of a category over all rows, those of validation and test included |
| duplicates | rows of validation or test that stand in training too, or rows that stand in a log again and again |
| random_split | rows with a time that are parted at random, so that training looks past the test |
| time_unit | times read in another unit, of all rows or of some |
| future | an attribute of items or users that counts what happens after training |
| processor | a processor that was fitted on more than the training part |
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lmctr.utils.rows import check_kind
from lmctr.utils.suggest import did_you_mean

CHECKS = ("field", "encoding", "duplicates", "random_split", "time_unit", "future", "processor")

_SAMPLE = 200_000
_SURE, _NEAR, _APART = 0.98, 0.9, 0.15  # AUC of a copy of the label; of a noisy one; and its lead over the next field
_FEWEST = 200  # held-out rows from which on an AUC says something
_FEWEST_OF_CLASS = 50  # held-out rows of each label, likewise
_COPY = 256  # values, up to which a category may be a noisy copy of the label; one of more has users or items, some of whom click always
_CASES = 32  # values, above which each may be a case of its own
_OF_EACH = 3  # copies of each label, below which they may be one kind of rows, such as empty visits
_OF_RARER = 0.5  # of the held-out rows of the rarer label, above which copies are repeats all the same: rows repeated to balance labels
_OF_CHANCE = 3.0  # how many times as many copies as chance would make there must be
_BINS = 64
_INSIDE = 1e-3  # of a number's variance that may be left inside the values of a category of which it is a function
_LOOKED_AT = 20_000  # rows


@dataclass(frozen=True)
class Finding:
    """A sign of leakage: the check, what it is about (a field, ..., may be empty), and a sentence with the figures."""

    check: str
    name: str
    text: str

    @property
    def key(self) -> str:
        """What allows it: `field:price`."""
        return f"{self.check}:{self.name}" if self.name else self.check


def settle(findings: Sequence[Finding], allow: Mapping[str, str] | None, where: str) -> list[str]:
    """Raises for findings that are not allowed; gives lines about those that are.

    Args:
        allow: reasons by a check, or by a check and a name (`{"field:price": "known before the impression"}`).
        where: what was checked, for messages.

    Raises:
        ValueError: findings that are not allowed; a key of `allow` that is no check, or a reason that says nothing.
    """
    allow = {} if allow is None else allow
    check_kind(allow, Mapping, "allow")
    for key, reason in allow.items():
        check = str(key).partition(":")[0]
        if check not in CHECKS:
            hint = did_you_mean(check, CHECKS)
            raise ValueError(f"allow_leaks: unknown check {check!r}; accepted: {', '.join(CHECKS)}.{hint}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"allow_leaks: {key} is {reason!r}; accepted: a text that says why this is no leak.")
    refused = [finding for finding in findings if not {finding.key, finding.check} & set(allow)]
    if refused:
        keys = ", ".join(f"{finding.key!r}: <why>" for finding in refused)
        raise ValueError(
            f"{where}: {'; '.join(finding.text for finding in refused)}. Mend the data; if this is as it should be, say why: "
            f"allow_leaks: {{{keys}}} (in a recipe: data.allow_leaks; on the command line: "
            "--data.allow_leaks)."
        )
    return [f"allowed ({allow.get(finding.key, allow.get(finding.check))}): {finding.text}" for finding in findings]


def rank_auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """AUC of scores, ties counted half, as `lmctr.evaluation.metrics.auc`, which this floor does not know; NaN where one class is missing."""
    positive = labels > 0
    count, rest = int(positive.sum()), int((~positive).sum())
    if not count or not rest:
        return float("nan")
    _, place, alike = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(alike) - (alike - 1) / 2)[place]
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * rest))


def some_of(*parts: np.ndarray) -> list[np.ndarray]:
    """Rows of parts that single fields are ranked on: all, or as many as are enough, drawn at random."""
    rng = np.random.default_rng(0)
    return [rows if len(rows) <= _SAMPLE else np.sort(rng.choice(rows, _SAMPLE, replace=False)) for rows in parts]


def are_enough(rows: int, positives: float) -> bool:
    """Whether held-out rows, some of them positive, are enough to rank fields by."""
    return rows >= _FEWEST and min(positives, rows - positives) >= _FEWEST_OF_CLASS


def telling_fields(
    columns: Mapping[str, np.ndarray], labels: np.ndarray, train: np.ndarray, held: np.ndarray, what: str = "field"
) -> list[Finding]:
    """Fields that tell the label alone: by the rate of each value (or of each of 64 bins of numbers) in training.

    Args:
        columns: (N,) integer codes or floats by field. labels: (N,) 0 or 1. train, held: rows of training and of the part to rank.
        what: the columns are, for messages.
    """
    y, held_y = labels[train] > 0, labels[held] > 0
    if not are_enough(len(held), held_y.sum()) or min(y.sum(), (~y).sum()) < 20:
        return []
    found = {name: _auc_alone(values[train], y, values[held], held_y) for name, values in columns.items()}
    ranked = sorted(found.values(), reverse=True)
    rest = [auc for auc in ranked if auc <= _NEAR]
    findings = []
    for name, auc in found.items():
        text = f"the {what} {name!r} alone ranks {len(held):,} held-out rows with an AUC of {auc:.4f}"
        if auc > _SURE:
            cases = _or_cases(columns[name][train]) if what == "field" else ""
            findings.append(Finding("field", name, f"{text}: it holds the label{cases}"))
        elif auc > _NEAR and auc - max(rest, default=0.5) > _APART and _may_copy(columns[name][train]):
            next_best = f"the next {what} has {max(rest):.3f}" if rest else "there is no other"
            findings.append(
                Finding("field", name, f"{text}, and {next_best}: it looks like a noisy copy of the label")
            )
    return findings


def _or_cases(values: np.ndarray) -> str:
    """What else may be where many values each tell their label: rows that stand several times but for a column or two."""
    count = 0 if values.dtype.kind == "f" else len(np.unique(values))
    if count <= _CASES or len(values) < 2 * count:
        return ""
    return (
        f", or the rows of one of its {count:,} values are one case written several times, which two parts then have: keep them in one part "
        "(of a table split: group, with the column as its group) or write each case once"
    )


def _may_copy(values: np.ndarray) -> bool:
    return values.dtype.kind == "f" or len(np.unique(values)) <= _COPY


def _auc_alone(values: np.ndarray, y: np.ndarray, held: np.ndarray, held_y: np.ndarray) -> float:
    if values.dtype.kind == "f":
        own = values[np.isfinite(values)]
        bounds = np.unique(np.quantile(own, np.arange(1, _BINS) / _BINS)) if len(own) else np.zeros(0)
        values, held = (np.searchsorted(bounds, part, side="right") for part in (values, held))
    size = int(max(values.max(), held.max())) + 1
    seen, hits = np.bincount(values, minlength=size), np.bincount(values, y, minlength=size)
    rates = (hits + y.mean()) / (seen + 1)
    return rank_auc(rates[held], held_y)


def encodings(
    numbers: Mapping[str, np.ndarray],
    categories: Mapping[str, np.ndarray],
    labels: np.ndarray,
    train: np.ndarray,
    held: np.ndarray,
) -> list[Finding]:
    """Numbers that follow the mean label of a category over all rows more closely than that over training.

    Args:
        numbers: (N,) floats by field. categories: (N,) codes by field, below 2 where unknown. labels: (N,) 0 or 1.
        train, held: rows of training, and of all other parts.
    """
    findings = []
    alike = {category: _alike(codes) for category, codes in categories.items()}
    for name, values in numbers.items():
        known = values[np.isfinite(values)]
        spread = float(np.var(known)) if len(known) else 0.0
        for category, codes in categories.items():
            if not spread or _differs(values, *alike[category], spread):
                continue
            found = _encodes(values, codes, labels, train, held, spread)
            if found is not None:
                whole, own = found
                text = (
                    f"the field {name!r} follows the mean label of {category!r} over all rows (rank correlation {whole:.4f}; over training "
                    f"rows alone {own:.4f}): it was made with the labels of validation and test"
                )
                findings.append(Finding("encoding", name, text))
                break
    return findings


def _alike(codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Some rows whose known category others of them have too, and the number of the category of each."""
    rows = np.arange(len(codes))
    if len(rows) > _LOOKED_AT:
        rows = np.sort(np.random.default_rng(0).choice(rows, _LOOKED_AT, replace=False))
    _, place, count = np.unique(codes[rows], return_inverse=True, return_counts=True)
    chosen = (codes[rows] > 1) & (count[place] > 1)
    return rows[chosen], place[chosen]


def _differs(values: np.ndarray, rows: np.ndarray, place: np.ndarray, spread: float) -> bool:
    """Whether some rows of the same category (`_alike`) show that the values are no function of it.

    Around their own means they vary at most as around those of all rows, where a function may vary by a hundredth of what this asks for.
    """
    own = values[rows]
    known = np.isfinite(own)
    own, place = own[known], place[known]
    if len(own) < _FEWEST:
        return False
    mean = np.bincount(place, own) / np.maximum(np.bincount(place), 1)
    return bool(np.mean((own - mean[place]) ** 2) > 100 * _INSIDE * spread)


def _encodes(
    values: np.ndarray, codes: np.ndarray, labels: np.ndarray, train: np.ndarray, held: np.ndarray, spread: float
) -> tuple[float, float] | None:
    from scipy.stats import spearmanr  # takes a third of a second, and few data come here

    size = int(codes.max()) + 1
    seen = np.bincount(codes, minlength=size).astype(float)
    seen[:2] = 0
    known = np.isfinite(values)
    total = np.bincount(codes[known], values[known], minlength=size)
    mean = total / np.maximum(np.bincount(codes[known], minlength=size), 1)
    inside = (values[known] - mean[codes[known]])[codes[known] > 1]
    if not len(inside) or np.mean(inside**2) > _INSIDE * spread:  # no function of the category
        return None
    train_seen, held_seen = (np.bincount(codes[rows], minlength=size) for rows in (train, held))
    used = np.flatnonzero((seen > 1) & (train_seen > 0) & (held_seen > 0))
    if len(used) < 30:
        return None
    positive = labels > 0
    hits = np.bincount(codes, positive, minlength=size)
    train_hits = np.bincount(codes[train], positive[train], minlength=size)
    rate, best = positive.mean(), (0.0, 0.0)
    for weight in (0, 1, 5, 10, 20, 50, 100):  # usual smoothing
        whole = (hits + weight * rate)[used] / (seen + weight)[used]
        own = (train_hits + weight * rate)[used] / (train_seen + weight)[used]
        pair = tuple(  # of one value all over, as each user's rate is beside drawn negatives, nothing follows
            abs(float(spearmanr(mean[used], rates).statistic))
            if min(np.ptp(mean[used]), np.ptp(rates)) > 1e-9
            else 0.0
            for rates in (whole, own)
        )
        best = max(best, (pair[0], pair[1]))
        if pair[1] > pair[0] - 0.003 and pair[1] > 0.99:
            return None  # made of training rows
    return best if best[0] > 0.99 else None


def row_hashes(columns: Sequence[np.ndarray]) -> np.ndarray:
    """(N,) uint64 hash of each row over (N, ...) arrays, equal for rows of equal bytes."""
    result = np.full(len(columns[0]), 0x9E3779B97F4A7C15, dtype=np.uint64)
    with np.errstate(over="ignore"):
        for array in columns:
            flat = np.ascontiguousarray(array).reshape(len(array), math.prod(array.shape[1:]))
            if flat.dtype.kind == "f":
                flat = flat.astype(np.float64).view(np.uint64)
            for column in flat.T:
                result = (result ^ column.astype(np.uint64)) * np.uint64(0xC2B2AE3D27D4EB4F)
                result ^= result >> np.uint64(29)
    return result


def duplicate_rows(
    hashes: np.ndarray,
    labels: np.ndarray,
    train: np.ndarray,
    held: np.ndarray,
    chance: Callable[[], float] = float,
) -> list[Finding]:
    """Held-out rows that stand in training too, where rows are otherwise distinct and the copies have the label of the first.

    Args:
        hashes: (N,) of everything in a row but its label. labels: (N,). train, held: rows of training and of the other parts.
        chance: gives how likely two rows are alike where columns have nothing to do with each other: few columns of few values meet so.
    """
    if len(train) < _FEWEST or len(held) < 50:
        return []
    distinct, first = np.unique(hashes[train], return_index=True)
    if len(distinct) < 0.5 * len(train):  # so few fields that rows meet by chance
        return []
    place = np.minimum(np.searchsorted(distinct, hashes[held]), len(distinct) - 1)
    twin = distinct[place] == hashes[held]
    is_positive = labels[held] > 0
    rate = float(is_positive.mean())
    is_rarer = is_positive if rate <= 0.5 else ~is_positive
    count, rarer = int(twin.sum()), int((is_rarer & twin).sum())
    is_balanced = bool(rarer > _OF_RARER * is_rarer.sum() and count - rarer < _OF_EACH)
    if count < max(10, 0.005 * len(held)) or (min(rarer, count - rarer) < _OF_EACH and not is_balanced):
        return []
    agree = float(np.mean(labels[train[first[place[twin]]]] == labels[held[twin]]))
    by_chance = rate**2 + (1 - rate) ** 2
    if agree < max(0.99, by_chance + 0.5 * (1 - by_chance)):
        return []
    if count < _OF_CHANCE * len(held) * -np.expm1(-len(train) * chance()):
        return []
    return [
        Finding(
            "duplicates",
            "",
            f"{count:,} of {len(held):,} rows of validation and test stand in training too, the first is row {int(held[np.argmax(twin)]) + 1}; "
            f"{agree:.1%} of them with the same label"
            + ", the rarer one, as where its rows were repeated to balance labels: drop the copies"
            * is_balanced,
        )
    ]


def times_in_another_unit(times: np.ndarray, name: str = "time") -> list[Finding]:
    """Unix times (seconds) that are thousandths of real ones: all of them (seconds read as milliseconds), or some among others."""
    if len(times) < 20:
        return []
    small = (times > 9e5) & (times < 4.3e6)  # what 1998 to 2106 becomes when it is divided by 1,000
    if small.all():
        text = f"all {len(times):,} times lie in January and February 1970: seconds were read as milliseconds (set the unit to s)"
        return [Finding("time_unit", name, text)]
    real = times > 9e8
    if small.sum() >= 3 and (small | real).mean() > 0.99:
        row = int(np.argmax(small))
        text = (
            f"{int(small.sum()):,} of {len(times):,} times are a thousandth of the others (such as {int(times[row])} at row {row + 1}): the "
            "column mixes units"
        )
        return [Finding("time_unit", name, text)]
    return []


def future_attribute(name: str, values: np.ndarray, past: np.ndarray, future: np.ndarray) -> list[Finding]:
    """A number of items or users that follows what happens to them after training, beyond what happened before.

    Args:
        values: (K,) the attribute. past, future: (K, 2) events and clicks in the time of training, and after it.
    """
    used = np.isfinite(values) & (past.sum(axis=1) + future.sum(axis=1) > 0)
    if used.sum() < 50 or (future[used, 0] > 0).sum() < 30 or np.std(values[used]) == 0:
        return []
    attribute, past, future = values[used].astype(float), past[used].astype(float), future[used].astype(float)
    rate = future[:, 1] / np.maximum(future[:, 0], 1)
    best, which = 0.0, ""
    for what, target in (("events", future[:, 0]), ("clicks", future[:, 1]), ("click rate", rate)):
        for form in (np.asarray, np.log1p) if attribute.min() > -1 else (np.asarray,):
            known = np.column_stack([np.ones(len(past)), form(past)])
            rest = [
                column - known @ np.linalg.lstsq(known, column, rcond=None)[0]
                for column in (form(attribute), form(target))
            ]
            scale = np.linalg.norm(rest[0]) * np.linalg.norm(rest[1])
            found = abs(float(rest[0] @ rest[1])) / scale if scale > 1e-9 * len(past) else 0.0
            best, which = max((best, which), (found, what))
    if best < 0.9:
        return []
    text = f"the attribute {name!r} follows the {which} after training (partial correlation {best:.3f}, given those before): it was counted later"
    return [Finding("future", name, text)]
