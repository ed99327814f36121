"""Vectors of users, items and categories, to be used elsewhere: what a trained model holds for each value of its fields, and what two towers make of
rows."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from lmctr.data.features.columns import Rows
from lmctr.data.features.unknown import UnknownValues
from lmctr.data.in_memory import arrow_table
from lmctr.data.processors.feature_values import FIRST_ID
from lmctr.data.reading import read_table
from lmctr.models.common.base import evaluation_mode
from lmctr.models.two_tower.modeling_two_tower import TwoTowerForCTR
from lmctr.serving import split_first_layer
from lmctr.serving.retrieval_split import ROWS_AT_ONCE
from lmctr.utils.arrow import held, whole_numbers
from lmctr.utils.files import replacing
from lmctr.utils.ragged import blocks

logger = logging.getLogger(__name__)


def vectors(model: Any, processor: Any, users: Any = None, ads: Any = None) -> dict[str, pa.Table]:
    """[`value_vectors`], or [`tower_vectors`] of the tables that are given: a path, or what [`~lmctr.data.in_memory.arrow_table`] takes."""
    given = {name: rows for name, rows in (("users", users), ("ads", ads)) if rows is not None}
    if not given:
        return value_vectors(model, processor)
    if not isinstance(model, TwoTowerForCTR):
        raise ValueError(
            f"{' and '.join(given)}: two_tower alone has vectors of rows; this is a {type(model).__name__}"
        )
    return tower_vectors(model, processor, {name: _rows(name, rows) for name, rows in given.items()})


def _rows(name: str, given: Any) -> Rows:
    if isinstance(given, (str, Path)):
        return Rows(read_table(given), str(given))
    return Rows(arrow_table(held(given), name), name)


@torch.no_grad()
def tower_vectors(model: TwoTowerForCTR, processor: Any, sides: Mapping[str, Rows]) -> dict[str, pa.Table]:
    """The vectors that two towers make of users and of ads. The inner product of a user's and an ad's is the model's logit, so that an index of
    the ads' vectors by inner product finds the best ads for a user.

    Args:
        sides: rows of "users", of "ads", or of both, with the columns that the fields of that side read, and others.

    Returns:
        By side its table, and last in it `vector`, lists of D float32 numbers.

    Raises:
        ValueError: a column that is missing, or is called `vector`; a value that does not fit its field, with its row.
    """
    towers, found = split_first_layer(model, copy_tables=False), {}
    for name, rows in sides.items():
        if "vector" in rows.table.column_names:
            raise ValueError(
                f"{rows.source}: there is a column 'vector', which is what the vectors are called; rename it"
            )
        of_users = name == "users"
        side, inputs = (processor.user, processor.user_inputs) if of_users else (processor.ad, processor.ad_inputs)
        seen, parts = UnknownValues(side), []
        for some in blocks(len(rows), ROWS_AT_ONCE):
            given = inputs(Rows(rows.table.slice(some.start, some.stop - some.start), rows.source, some.start + 1))
            parts.append(towers.user_half(**given) if of_users else towers.ad_half(**given))
            seen.add()
        for warning in seen.check(rows.source, allowed=True):
            logger.warning(warning)
        found[name] = rows.whole.append_column("vector", _lists(torch.cat(parts)))
    return found


@torch.no_grad()
def value_vectors(model: Any, processor: Any) -> dict[str, pa.Table]:
    """By field, the values that a model has vectors of its own for, as `value` (whole numbers where the field holds such, else texts), and those
    vectors as `vector`, lists of d float32 numbers: what the model reads of a value, without what missing and unknown ones share.

    Of tables: each categorical field and each list with a vocabulary of its own; hashed and binned fields have no values to name. Of events: `item`, with
    what the catalogue says of it (the sum of its vectors, in DIN one behind the other), and each feature of users, `user NAME`.

    Args:
        model, processor: of a family of tables or of sequences.

    Raises:
        ValueError: another family; a model without such a field.
    """
    kinds = {"table": _of_table, "events": _of_events}
    kind = getattr(processor, "request_kind", None)
    if kind not in kinds:
        instead = {
            "text": "texts, whose tokens alone have vectors (model.get_input_embeddings())",
            "impressions": "impressions; of two_tower give users or ads, tables whose rows get a vector each",
        }
        raise ValueError(f"{type(model).__name__} reads {instead.get(kind, 'other inputs')}")
    with evaluation_mode(model):
        found = {
            name: pa.table({"value": values, "vector": _lists(vectors)})
            for name, values, vectors in kinds[kind](model, processor)
        }
    if not found:
        raise ValueError("the model has no field whose values it knows by name: no categorical one that is not hashed")
    return found


def write_vectors(vectors: dict[str, pa.Table], folder: Path) -> list[Path]:
    """Write a Parquet file for each field, as `data.pretrained` reads them, with `_` for blanks in its name."""
    folder.mkdir(parents=True, exist_ok=True)
    names = {name.replace(" ", "_"): name for name in vectors}
    names = names if len(names) == len(vectors) else vectors  # else two would have one name
    files = [folder / f"{quote(name, safe='')}.parquet" for name in names]
    for file, table in zip(files, vectors.values()):
        with replacing(file) as path:
            pq.write_table(table, path)
    return files


def _of_table(model: Any, processor: Any) -> Iterator[tuple[str, pa.Array, torch.Tensor]]:
    names, fields = processor.vocabulary_fields(), {field.name: field for field in processor.fields}
    found = {}
    for group in model.base_model.embedding.groups.values():
        given = {pretrained.vocabulary: pretrained for pretrained in group.pretrained.values()}
        for place, rows in group.rows_of.items():
            field = fields[names[place]]
            known = processor.state.vocabularies.get(field.share_with or field.name)
            if known is None or not len(known):
                continue
            ids = known.first_id + torch.arange(len(known), device=group.table.weight.device)
            vectors = given[place](ids) if place in given else group.table(rows.start + ids)
            values = known.values
            if processor.value_types.get(field.share_with or field.name) == "integer":
                values = whole_numbers(values)
            found[place] = field.name, values, vectors
    yield from (found[place] for place in sorted(found))


def _of_events(model: Any, processor: Any) -> Iterator[tuple[str, pa.Array, torch.Tensor]]:
    items, embedding = processor.items["item_id"].combine_chunks(), model.base_model.item_embedding
    device = embedding.items.weight.device
    ids = torch.arange(FIRST_ID, FIRST_ID + len(items), device=device)
    if len(items):
        features = torch.from_numpy(processor.known_features).to(device)[ids]
        yield "item", items, embedding(ids, features).flatten(1)
    tables = {bank.vocabulary: bank for bank in model.modules() if getattr(bank, "vocabulary", None) is not None}
    for place, name in enumerate(processor.user_feature_names):
        values, bank = processor.features[name], tables[f"user_feature.{place}"]
        ids = torch.arange(FIRST_ID, FIRST_ID + len(values), device=device)
        yield f"user {name}", pa.array(values, pa.string()), bank(ids)


def _lists(vectors: torch.Tensor) -> pa.Array:
    return pa.FixedSizeListArray.from_arrays(pa.array(vectors.float().cpu().numpy().ravel()), vectors.shape[1])
