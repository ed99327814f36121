"""Criteo display advertising: the Kaggle file, and the x1 split of the BARS benchmark."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from lmctr.data.logs.log import DatasetInfo
from lmctr.data.tables.source import SplitRule, TableSource
from lmctr.utils.files import expanded

from .files import ALL_PARTS, check_variant, find_variant, split_pieces

NUMERIC = tuple(f"I{number}" for number in range(1, 14))
CATEGORICAL = tuple(f"C{number}" for number in range(1, 27))
_KAGGLE = DatasetInfo(
    name="criteo-kaggle",
    url="https://www.kaggle.com/c/criteo-display-ad-challenge/data",
    licence="Criteo's terms of the Kaggle display advertising challenge: research use, no redistribution of the raw file.",
    citation="Criteo Labs. 2014. Display Advertising Challenge. Kaggle.",
    label_rule="column label of the file: 1 = the ad was clicked",
    notes="45,840,617 rows of seven days (train.txt); the challenge's own test.txt has no labels",
    extra={"published_rows": 45_840_617},
)
_X1 = replace(
    _KAGGLE,
    name="criteo-x1",
    url="https://huggingface.co/datasets/reczoo/Criteo_x1",
    citation="W. Cheng, Y. Shen, L. Huang. 2020. Adaptive Factorization Network. AAAI. Jieming Zhu et al. 2022. BARS. SIGIR.",
    notes="given random split 7:2:1; numbers are floats scaled by its authors; min count 1",
    extra={"published_rows": {"train": 33_003_326, "validation": 8_250_124, "test": 4_587_167}},
)
INFO = {"kaggle": _KAGGLE, "x1": _X1}


def load_criteo(
    path: str | os.PathLike,
    variant: str | None = None,
    *,
    min_count: int | None = None,
    numeric: str | None = None,
    split: str = "random",
    fractions: Sequence[float] = (0.8, 0.1, 0.1),
    seed: int = 0,
    memory_limit: int | None = None,
) -> TableSource:
    """Criteo's data as a source.

    Args:
        path: Kaggle: `train.txt` (or .gz) or its folder, tab-separated without a header line: label, I1 to I13, C1 to C26
            (hexadecimal), empty cells missing. x1: the folder of `train.csv`, `valid.csv`, `test.csv` with a header line.
        variant: "kaggle" or "x1"; default: by the files found.
        min_count: of the categorical fields; default 10 for Kaggle, 1 for x1 (as in BARS).
        numeric: transform of the numeric fields; default "log1p" for Kaggle, "raw" for x1.
        split: rule for the Kaggle file ("random" or "rows", which is the order of time); x1 has a split of its own.
        fractions: its shares.
        seed: its seed.
        memory_limit: bytes that reading may take.

    Raises:
        FileNotFoundError: no files; the message says where to get them.
        ValueError: an unknown variant.
    """
    check_variant(variant, INFO)
    path = expanded(path)
    if not path.is_file():
        variant, files = find_variant(path, variant, {"x1": ALL_PARTS, "kaggle": {"train": ["train.txt"]}}, INFO)
    elif variant == "x1":
        raise ValueError(f"{path}: the x1 split is a folder with train.csv, valid.csv and test.csv.")
    else:
        variant, files = "kaggle", {"train": path}
    count = min_count if min_count is not None else (1 if variant == "x1" else 10)
    transform = numeric or ("raw" if variant == "x1" else "log1p")
    fields = [{"name": name, "type": "numeric", "transform": transform} for name in NUMERIC]
    fields += [{"name": name, "type": "categorical", "min_count": count} for name in CATEGORICAL]
    given = SplitRule(split, tuple(fractions), seed)
    options = {} if variant == "x1" else {"format": "tsv", "names": ["label", *NUMERIC, *CATEGORICAL]}
    pieces, rule = split_pieces(files, memory_limit, given, **options)
    return TableSource(pieces, tuple(fields), label="label", split=rule, info=INFO[variant])
