"""A model goes on with the weights and the optimiser's state of an earlier one whose tables had other rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lmctr.models.common.boosted_trees import ValueRates
from lmctr.models.common.embeddings import FieldGroup, PretrainedVectors
from lmctr.models.common.table_bank import table_banks
from lmctr.models.common.tabular import UNKNOWN
from lmctr.training.sharded import whole_row_states


def table_rows(
    before: torch.nn.Module, after: torch.nn.Module, sources: Sequence[np.ndarray]
) -> dict[str, torch.Tensor]:
    """By the name of each table's weight, (V,) int64: the row that each of its rows was in the earlier model, -1 for new ones. The rate of a
    new value, alone or in a pair, is that of the unknown ones, among which it was.

    Args:
        before, after: models of one tabular family and of equal fields.
        sources: by vocabulary, the id that each id was, see [`~lmctr.data.features.extend.id_sources`].
    """
    old, found = dict(before.named_modules()), {}
    for name, group in after.named_modules():
        if isinstance(group, PretrainedVectors):
            found[f"{name}.bank.weight"] = torch.from_numpy(sources[group.vocabulary])
        if isinstance(group, ValueRates):
            known = [np.where(own >= 0, own, UNKNOWN) for own in sources]
            sizes, parts = old[name].sizes, []
            for own, start in zip(group.fields, old[name].starts):
                rows = known[group.vocabularies[own[0]]]
                for field in own[1:]:
                    rows = np.add.outer(rows * sizes[field], known[field]).ravel()
                parts.append(torch.from_numpy(rows + start))
            found[f"{name}.table"] = torch.cat(parts)
        if not isinstance(group, FieldGroup) or group.table is None:
            continue
        rows = torch.full((group.table.num_embeddings,), -1)
        for vocabulary, own in group.rows_of.items():
            # one row only where vectors were made elsewhere
            source = torch.from_numpy(sources[vocabulary])[: len(own)]
            rows[own.start : own.stop] = torch.where(source >= 0, source + old[name].rows_of[vocabulary].start, -1)
        found[f"{name}.table.weight"] = rows
    return found


def bank_rows(after: torch.nn.Module, sources: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """The same of a model of a log, whose tables have a vocabulary each; `sources` by its name."""
    banks = {name: bank.vocabulary for name, bank in table_banks(after).items()}
    return {name: torch.from_numpy(sources[own]) for name, own in banks.items() if own is not None}


def _gathered(old: torch.Tensor, rows: torch.Tensor, fresh: torch.Tensor) -> torch.Tensor:
    """Rows of an earlier tensor in their new places, and those of `fresh` where there was none."""
    known = rows >= 0
    result = fresh.clone()
    result[known] = old[rows[known]].to(result.dtype)
    return result


@torch.no_grad()
def carry_weights(before: torch.nn.Module, after: torch.nn.Module, rows: Mapping[str, torch.Tensor]) -> None:
    """Give a model all weights and buffers of an earlier one; new rows of tables keep their initial weights.

    Raises:
        ValueError: a tensor that the earlier model has not, or has in another shape.
    """
    old = before.state_dict()
    for name, tensor in after.state_dict().items():
        found = old.get(name)
        if found is not None and name in rows and found.shape[1:] == tensor.shape[1:]:
            tensor.copy_(_gathered(found, rows[name], tensor))
        elif found is not None and found.shape == tensor.shape:
            tensor.copy_(found)
        else:
            shape = "no such weights" if found is None else f"shape {tuple(found.shape)}"
            raise ValueError(
                f"the model cannot go on from the earlier run: {name} has shape {tuple(tensor.shape)} here and {shape} there; keep family "
                "and sizes as they were"
            )


def carry_optimizer(
    file: Path,
    optimizer: torch.optim.Optimizer,
    before: torch.nn.Module,
    after: torch.nn.Module,
    rows: Mapping[str, torch.Tensor],
) -> list[str]:
    """Give an optimiser the state that an earlier one left in a checkpoint; new rows of tables have none, which is zeros.

    Rates and other settings stay the optimiser's own.

    Returns:
        Names of the parameters that the checkpoint has no state of.

    Raises:
        ValueError: another kind of optimiser, or one of other parameters.
    """
    names = {id(parameter): name for name, parameter in after.named_parameters()}
    shapes = {name: parameter.shape for name, parameter in before.named_parameters()}
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    saved = torch.load(file, map_location="cpu", weights_only=True)
    old = [place for group in saved["param_groups"] for place in group["params"]]
    states: dict[int, dict[str, Any]] = {}
    apart = whole_row_states(file.parent)
    for place, parameter in zip(old, parameters):
        name = names[id(parameter)]
        for key, value in (saved["state"].get(place) or apart.get(name, {})).items():
            if value.dim() and (len(value) != shapes[name][0] or not (value.shape == shapes[name] or name in rows)):
                raise ValueError(_other(file))
            if value.dim() and name in rows:
                fresh = value.new_zeros((len(parameter), *value.shape[1:]))
                value = _gathered(value, rows[name], fresh)
            states.setdefault(place, {})[key] = value
    if len(old) != len(parameters) or len(saved["param_groups"]) != len(optimizer.param_groups) or not states:
        raise ValueError(_other(file))
    groups, kept = optimizer.state_dict()["param_groups"], iter(old)
    for group in groups:
        group["params"] = [next(kept) for _ in group["params"]]
    optimizer.load_state_dict({"state": states, "param_groups": groups})
    return [names[id(parameter)] for place, parameter in zip(old, parameters) if place not in states]


def _other(file: Path) -> str:
    return f"{file} holds the state of another optimiser: keep training.optim and training.embedding_optimizer, or set training.from_optimizer: false"
