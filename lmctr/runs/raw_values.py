"""Raw values of the data in what is shared: which of them an example may show, and which fields' vocabularies go with a model.

An example shows a value only where it is a category: at least 20 rows of the training, and one in a hundred, have it, and neither the
field's name nor the value itself speaks of a person or of one row.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.vocabulary import Vocabulary
from lmctr.runs.folder import ITEM_STATISTICS, RunFolder
from lmctr.statistics import ItemStatistics
from lmctr.utils.files import for_arrow

_LEAST_ROWS, _LEAST_SHARE, _LOOKED_AT = 20, 0.01, 100
_PERSONAL = re.compile(  # any word of a field's name
    "birthday|cookie|dob|emails?|firstname|guid|iban|imei|ip|lastname|mails?|mobile|msisdn|passport|password|phones?|session|ssn|surname|"
    "tel|telephone|uid|userid|username|uuid"
)
_IDENTIFYING = re.compile(  # its last word: user_gender tells a category, user a person
    "(account|address|buyer|client|customer|hash|id|key|member|name|nickname|no|number|patient|person|seller|street|subscriber|token|user|"
    "viewer|visitor)s?"
)
_TABLES = ("tabular_vocabularies.parquet", "user_tabular_vocabularies.parquet", "ad_tabular_vocabularies.parquet")


def is_category_name(name: str) -> bool:
    """Whether the name of a field does not say that its values stand for persons, or for one thing each."""
    words = re.findall(r"[a-z]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())
    return not any(map(_PERSONAL.fullmatch, words)) and not (words and _IDENTIFYING.fullmatch(words[-1]))


def is_category_value(value: str) -> bool:
    """Whether a value does not look like an address, a number of somebody or something, or a text."""
    return len(value) <= 40 and "@" not in value and re.search(r"\d[\d .()/:-]{4,}\d|[0-9a-fA-F]{12}", value) is None


def num_rows(processor: TabularFeatureProcessor) -> int:
    """How many rows a processor was fitted on, as far as its vocabularies tell: those that counted most."""
    known = processor.state.vocabularies.values()
    return max((int(one.counts.sum()) for one in known if one.counts is not None), default=0)


def categories(names: Sequence[str], vocabulary: Vocabulary, rows: int) -> list[str]:
    """The values of a vocabulary that an example may show, the first ones first. `names`: all that its field is called by."""
    if vocabulary.counts is None or not all(is_category_name(name) for name in names):
        return []
    least = max(_LEAST_ROWS, _LEAST_SHARE * rows)
    values = vocabulary.values[:_LOOKED_AT].to_pylist()
    return [value for value, count in zip(values, vocabulary.counts) if count >= least and is_category_value(value)]


def shared_vocabularies(folder: RunFolder) -> dict[str, int]:
    """Fields of which the shared files hold the raw values, with how many; those with the most first.

    Raises:
        ValueError: one of these files is no parquet file; names it.
    """
    sizes: Counter[str] = Counter()
    for name in map(str, folder.upload_files()):
        path = folder.path / name
        try:
            if name in _TABLES:
                side = name.removesuffix(_TABLES[0]).replace("_", " ")
                sizes.update({side + field: count for field, count in _counted(path, "field").items()})
            elif name == "sequence_features.parquet":
                sizes.update(_counted(path, "feature"))
            elif name in ("sequence_items.parquet", ITEM_STATISTICS):
                sizes["items"] = max(sizes["items"], pq.read_metadata(for_arrow(path)).num_rows)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{path} is no parquet file, or a damaged one ({error}); put the run's own back"
            ) from error
    return dict(sizes.most_common())


def told_events(folder: RunFolder) -> int:
    """How many events the shared table of items' statistics tells one by one, by item and second, with their label."""
    path = folder.path / ITEM_STATISTICS
    return ItemStatistics.load(path).num_told if path.is_file() else 0


def coarse_table(folder: RunFolder, every: int) -> dict[str, bytes]:
    """The table with every n-th step of the items' courses only, see [`ItemStatistics.coarse`], by its file's name.

    Raises:
        ValueError: `every` below 2; a run without such a table.
    """
    path = folder.path / ITEM_STATISTICS
    if not path.is_file():
        raise ValueError(f"coarse_statistics: {folder.path} has no {path.name}, which tells of events; leave it out")
    with TemporaryDirectory() as place:
        ItemStatistics.load(path).coarse(every).save(Path(place) / path.name)
        return {path.name: (Path(place) / path.name).read_bytes()}


def _counted(path: Path, column: str) -> Counter[Any]:
    found: Counter[Any] = Counter()
    with pq.ParquetFile(for_arrow(path), read_dictionary=[column]) as file:
        for batch in file.iter_batches(columns=[column]):
            counts = batch.column(0).value_counts()
            found.update(dict(zip(counts.field(0).to_pylist(), counts.field(1).to_pylist())))
    return found
