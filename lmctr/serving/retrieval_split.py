"""Serving of the retrieval families: the user's half once per request, the ads' halves kept.

"First-layer optimisation" of arXiv 2411.13322 (section 3.4 and Appendix A): W [u; a] = W_u u + W_a a with batch
normalisation folded, W_a a computed once per ad and kept ("Embedding Producer"). Of two towers the ad's vector is kept.

Shapes: B requests, N ads that are kept, n of them that are asked for, H width of a half (of the first layer, or of the towers' vectors).
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn
from transformers import AutoConfig

import lmctr.auto  # noqa: F401 (AutoConfig knows the families)
from lmctr.models.common.configuration import RetrievalConfig
from lmctr.models.common.impressions import ImpressionEmbedding, RetrievalPreTrainedModel
from lmctr.models.common.retrieval import SplitMLP, SplitTowers, fold_mlp, split_mlp
from lmctr.models.retrieval_mlp.modeling_retrieval_mlp import RetrievalMLPForCTR
from lmctr.models.two_tower.modeling_two_tower import TwoTowerForCTR
from lmctr.utils.files import as_path, read_json, replacing, write_json
from lmctr.utils.ragged import blocks
from lmctr.utils.tensors import save_tensors

FORMAT = "lmctr split retrieval model 1"
_FILES = ("split.safetensors", "split.json")
ROWS_AT_ONCE = 8192
"""Pairs of user and ad that run at once: bounds the memory of a request, not its result."""


class SplitRetrievalModel:
    """A retrieval model taken apart for serving, with the ads that it keeps by key. Made by [`split_first_layer`] or `from_pretrained`.

    Args:
        config: of the model. embedding: its inputs. halves: its layers, split and folded. Inference only.

    Scores are the model's in evaluation mode: within 1e-5 in float32, of larger scores than 1 within 1e-5 of their size. Keys are ints or strings. Use it from one thread at a time.

    Example:

    ```python
    >>> served = lmctr.serving.split_first_layer(model)
    >>> served.update([17, 4, 99], ad_input_ids=ids)  # (3, Fa): new ads, or ads that changed
    >>> served.remove([4])
    >>> scores = served.score(user_input_ids=user)  # (1, Fu) to (1, 2), the order is served.keys
    >>> served.save_pretrained("folder")
    ```
    """

    def __init__(self, config: RetrievalConfig, embedding: ImpressionEmbedding, halves: SplitMLP | SplitTowers):
        self.config = config
        self.embedding = embedding.requires_grad_(False).eval()
        self.halves = halves.requires_grad_(False).eval()
        self._place: dict[int | str, int] = {}
        self._keys: list[int | str] = []
        size = halves.ad.out_features if isinstance(halves, SplitMLP) else config.vector_size
        self._kept = next(halves.parameters()).new_empty(0, size)

    # ---- the kept ads ----

    @property
    def keys(self) -> list[int | str]:
        """Keys of the kept ads, in the order of the scores."""
        return list(self._keys)

    @property
    def ad_halves(self) -> torch.Tensor:
        """(N, H), what is kept of the ads, in the order of `keys`; a view."""
        return self._kept[: len(self._keys)]

    def __len__(self) -> int:
        return len(self._keys)

    def __contains__(self, key: int | str) -> bool:
        return key in self._place

    @torch.inference_mode()
    def update(
        self,
        keys: Sequence[int | str],
        ad_input_ids: torch.Tensor | None = None,
        ad_numeric_values: torch.Tensor | None = None,
    ) -> None:
        """Compute the halves of ads and keep them: new ones are added at the end, known ones replaced.

        Args:
            keys: K of them, each once. ad_input_ids: (K, Fa). ad_numeric_values: (K, Na).

        Raises:
            ValueError: a key twice or of another type, another number of ads, inputs that do not fit the fields. Nothing is changed then.
        """
        keys = list(keys)
        for key in keys:
            if isinstance(key, bool) or not isinstance(key, (int, str)):
                raise ValueError(f"keys: {key!r} is not accepted; use ints or strings")
        if len(set(keys)) != len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise ValueError(f"keys: {twice!r} is given twice; give each ad once")
        given = {"ad_input_ids": ad_input_ids, "ad_numeric_values": ad_numeric_values}
        for name, values in given.items():
            if values is not None and len(values) != len(keys):
                raise ValueError(f"{name}: {len(values)} ads for {len(keys)} keys; give one row per key")
        if not keys:
            return
        halves = [
            self.ad_half(*(None if v is None else v[some] for v in given.values()))
            for some in blocks(len(keys), ROWS_AT_ONCE)
        ]
        for key in keys:
            if key not in self._place:
                self._place[key] = len(self._keys)
                self._keys.append(key)
        if len(self._keys) > len(self._kept):
            grown = self._kept.new_empty(max(len(self._keys), 2 * len(self._kept)), self._kept.shape[1])
            grown[: len(self._kept)] = self._kept
            self._kept = grown
        places = torch.tensor([self._place[key] for key in keys], device=self._kept.device)
        self._kept.index_copy_(0, places, torch.cat(halves))

    @torch.inference_mode()
    def remove(self, keys: Iterable[int | str]) -> None:
        """Forget ads. The last ads take the places of the removed ones, so the order of `keys` changes.

        Raises:
            ValueError: a key that is not kept. Nothing is changed then.
        """
        keys = dict.fromkeys(keys)
        self._check_known(keys)
        for key in keys:
            place, last = self._place.pop(key), self._keys.pop()
            if last != key:
                self._keys[place], self._place[last] = last, place
                self._kept[place] = self._kept[len(self._keys)]

    def _check_known(self, keys: Iterable[int | str]) -> None:
        unknown = [key for key in keys if key not in self._place]
        if unknown:
            more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
            raise ValueError(f"keys: {unknown[0]!r}{more} is not among the {len(self)} kept ads; add it with update")

    # ---- requests ----

    @torch.inference_mode()
    def user_half(
        self,
        user_input_ids: torch.Tensor | None = None,
        user_numeric_values: torch.Tensor | None = None,
        user_sequence_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """(B, H) of B users. Inputs and errors as the model's."""
        inputs = self._moved(user_input_ids, user_numeric_values, user_sequence_ids)
        return self.halves.user_half(self.embedding.user(*inputs, dtype=self._kept.dtype))

    @torch.inference_mode()
    def score(
        self,
        user_input_ids: torch.Tensor | None = None,
        user_numeric_values: torch.Tensor | None = None,
        user_sequence_ids: torch.Tensor | None = None,
        keys: Sequence[int | str] | None = None,
    ) -> torch.Tensor:
        """Scores of kept ads for B users, (B, n) float32.

        Args:
            user_input_ids, user_numeric_values, user_sequence_ids: as the model takes them.
            keys: n of the kept ads, the same for all users; default: all, in the order of `self.keys`.

        Raises:
            ValueError: a key that is not kept, inputs that do not fit the fields.
        """
        halves = self.ad_halves
        if keys is not None:
            keys = list(keys)
            self._check_known(keys)
            halves = halves[torch.tensor([self._place[key] for key in keys], dtype=torch.long, device=halves.device)]
        return self.score_halves(self.user_half(user_input_ids, user_numeric_values, user_sequence_ids), halves)

    @torch.inference_mode()
    def score_halves(self, user_half: torch.Tensor, ad_halves: torch.Tensor) -> torch.Tensor:
        """(B, H) of `user_half` and (n, H) of ads to (B, n) float32."""
        size = max(1, ROWS_AT_ONCE // max(1, len(user_half)))
        parts = [self.halves.from_halves(user_half, part) for part in ad_halves.split(size)] if len(ad_halves) else []
        return torch.cat(parts, 1).float() if parts else user_half.new_zeros(len(user_half), 0, dtype=torch.float32)

    @torch.inference_mode()
    def ad_half(
        self, ad_input_ids: torch.Tensor | None = None, ad_numeric_values: torch.Tensor | None = None
    ) -> torch.Tensor:
        """(n, H) of ads that are not kept, from (n, Fa) and (n, Na)."""
        inputs = self._moved(ad_input_ids, ad_numeric_values)
        return self.halves.ad_half(self.embedding.ad(*inputs, dtype=self._kept.dtype))

    def _moved(self, *inputs: torch.Tensor | None) -> list[torch.Tensor | None]:
        return [None if values is None else values.to(self._kept.device) for values in inputs]

    # ---- files ----

    def save_pretrained(self, folder: str | Path) -> None:
        """Write `split.safetensors` (layers, tables, the kept halves) and `split.json` (configuration, keys) to a folder."""
        folder = as_path(folder, "folder")
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {"ad_halves": self.ad_halves}
        for part in ("embedding", "halves"):
            tensors |= {f"{part}.{name}": values for name, values in getattr(self, part).state_dict().items()}
        weights, settings = (folder / name for name in _FILES)
        settings.unlink(missing_ok=True)  # a folder with both files is whole
        with replacing(weights) as temporary:
            save_tensors({name: values.contiguous() for name, values in tensors.items()}, temporary)
        write_json(settings, {"format": FORMAT, "config": self.config.to_dict(), "keys": self._keys})

    @classmethod
    def from_pretrained(cls, folder: str | Path, device: str | torch.device = "cpu") -> SplitRetrievalModel:
        """Read what `save_pretrained` wrote.

        Raises:
            FileNotFoundError: a file is missing. ValueError: a file is damaged or of another kind.
        """
        weights, settings = (as_path(folder, "folder") / name for name in _FILES)
        values = read_json(settings)
        if values.get("format") != FORMAT:
            raise ValueError(f"{settings} holds no split model (format {values.get('format')!r}, not {FORMAT!r})")
        config, keys = AutoConfig.for_model(**values["config"]), values["keys"]
        if config.model_type not in _HALVES:
            raise ValueError(f"{settings}: model_type {config.model_type!r}; accepted: {', '.join(_HALVES)}")
        if not weights.is_file():
            raise FileNotFoundError(f"{weights} is missing: the folder holds half of a split model")
        try:
            tensors = load_file(weights, device=str(device))
            kept = tensors.pop("ad_halves")
            parts = {"embedding": ImpressionEmbedding(config), "halves": _HALVES[config.model_type](config)}
            for name, part in parts.items():
                state = {key.removeprefix(f"{name}."): t for key, t in tensors.items() if key.startswith(f"{name}.")}
                part.to(device, kept.dtype).load_state_dict(state)
        except (SafetensorError, KeyError, RuntimeError) as error:
            raise ValueError(f"{weights} is damaged or belongs to another {settings.name}: {error}") from error
        served = cls(config, **parts)
        if kept.shape != (len(keys), served._kept.shape[1]) or len(set(keys)) != len(keys):
            raise ValueError(
                f"{weights} holds the halves {tuple(kept.shape)} of other ads than the {len(keys)} keys of {settings}"
            )
        served._kept, served._keys = kept, list(keys)
        served._place = {key: place for place, key in enumerate(keys)}
        return served


_HALVES = {
    "retrieval_mlp": lambda config: SplitMLP(config.user_size, config.ad_size, config.hidden_units),
    "two_tower": lambda config: SplitTowers(config.user_size, config.ad_size, config.hidden_units, config.vector_size),
}


@torch.no_grad()
def split_first_layer(model: RetrievalPreTrainedModel, copy_tables: bool = True) -> SplitRetrievalModel:
    """Take a retrieval model apart for serving. It keeps no ads at first: `update` adds them.

    Args:
        model: a [`RetrievalMLPForCTR`] (the first layer is split) or a [`TwoTowerForCTR`] (the towers are); it stays as it is, and its
            evaluation mode is served, whatever mode it is in. A model trained further is split again.
        copy_tables: whether embedding tables are copied. False saves their memory, as long as the model does not change.

    Raises:
        ValueError: another model.
    """
    if isinstance(model, RetrievalMLPForCTR):
        halves: nn.Module = split_mlp(model.model.mlp, model.config.user_size, model.head)
    elif isinstance(model, TwoTowerForCTR):
        halves = _HALVES["two_tower"](model.config).to(model.device, model.dtype)
        halves.user, halves.ad = fold_mlp(model.model.user_tower), fold_mlp(model.model.ad_tower)
        halves.scale.copy_(model.head.log_scale.exp())
    else:
        raise ValueError(
            f"model: {type(model).__name__} has no halves of user and ad; accepted: RetrievalMLPForCTR, TwoTowerForCTR"
        )
    embedding = model.model.embedding
    return SplitRetrievalModel(copy.deepcopy(model.config), _copied(embedding, copy_tables), halves)


def _copied(embedding: ImpressionEmbedding, copy_tables: bool) -> ImpressionEmbedding:
    """A module of its own, so that turning off its gradients leaves the model's on."""
    table = embedding.table
    if table is None:
        return copy.deepcopy(embedding)
    weight = table.weight.detach().clone() if copy_tables else table.weight.detach()
    return copy.deepcopy(embedding, {id(table.weight): nn.Parameter(weight, requires_grad=False)})
