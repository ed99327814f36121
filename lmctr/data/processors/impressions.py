"""The feature processor of ad retrieval: the user of an impression, and the ads in it.

```python
processor = ImpressionProcessor(
    user_fields=[
        {"name": "region", "type": "categorical"},
        {"name": "clicked_ads", "type": "sequence", "max_length": 20, "share_with": "ad.ad_id"},
    ],
    ad_fields=[{"name": "ad_id", "type": "categorical"}, {"name": "clicks", "type": "numeric", "transform": "log1p"}],
)
processor.fit(source)                                   # an ImpressionSource: one pass over its training part
inputs = processor(users=[{"region": "north", "clicked_ads": ["7"]}], ads=[[{"ad_id": "7", "clicks": 12}, {"ad_id": "9", "clicks": 0}]])
```

Each side is a [`~lmctr.data.features.processor.TabularFeatureProcessor`], with its rules for missing and unseen values. A sequence of the user may read
an ad's field (`share_with: "ad.<name>"`): it gets the ids of that field, and in a model its vectors.
"""

from __future__ import annotations

import copy
import hashlib
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from transformers import BatchFeature
from transformers.utils import TensorType

from lmctr.data.features.fields import Field
from lmctr.data.features.files import write_state
from lmctr.data.features.fit import FittedState, Fitter
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.settings import FittedExtractor, sequence_tables
from lmctr.data.features.transform import add_counts, merged_examples
from lmctr.utils.ragged import padded_grids
from lmctr.utils.suggest import errors_of

_BORROWS = "ad."


class ImpressionProcessor(FittedExtractor):
    r"""Turns users and the ads of their impressions into the inputs of a retrieval model.

    Args:
        user_fields (`list[dict]`): fields of the user, see [`~lmctr.data.features.fields.Field`] for their keys. `share_with: "ad.<name>"`
            gives a sequence the vocabulary of an ad's categorical field.
        ad_fields (`list[dict]`): fields of an ad: categorical and numeric ones.
        quantile_sample, seed: as in [`~lmctr.data.features.processor.TabularFeatureProcessor`].
        statistics (`dict`, *optional*): written by `fit`, by side.

    Attributes:
        user, ad: the processors of the two sides. oov_counts: of the last call, as of a [`TabularFeatureProcessor`], by "user.<field>"
            and "ad.<field>".

    Raises:
        ValueError: unknown keys and values; a width of a field's own (retrieval models have one `embedding_dim`), times of sequences, a list
            field of an ad, a `share_with` that names no categorical field of the ad.
    """

    model_input_names: ClassVar[list[str]] = [
        "user_input_ids",
        "user_numeric_values",
        "user_sequence_ids",
        "ad_input_ids",
        "ad_numeric_values",
        "ad_mask",
    ]
    request_kind: ClassVar[str] = "impressions"

    def __init__(
        self,
        user_fields: Sequence[Mapping[str, Any]] = (),
        ad_fields: Sequence[Mapping[str, Any]] = (),
        quantile_sample: int = 1 << 18,
        seed: int = 0,
        statistics: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        statistics = dict(statistics or {})
        options = {"label": None, "quantile_sample": quantile_sample, "seed": seed}
        self.quantile_sample, self.seed = quantile_sample, seed
        self.user_fields = [_as_dict(field) for field in user_fields]
        self.ad_fields = [_as_dict(field) for field in ad_fields]
        self.ad = _side("ad_fields", self.ad_fields, options | {"statistics": statistics.get("ad")})
        own, self.borrowed = self._without_borrowing()
        self.user = _side("user_fields", own, options | {"statistics": statistics.get("user")})
        self._check()
        self.oov_counts: dict[str, dict[str, int]] = {}
        self.unknown_examples: dict[str, list[str]] = {}

    def __copy__(self) -> ImpressionProcessor:
        """Another with the same vocabularies, whose calls leave `oov_counts` of this one alone."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__, user=copy.copy(self.user), ad=copy.copy(self.ad))
        return other

    def _without_borrowing(self) -> tuple[list[dict[str, Any]], dict[str, str]]:
        """The user's fields as a processor of their own takes them, and the ad's field that each borrowing one reads."""
        ads = {field.name: field for field in self.ad.fields}
        fields, borrowed = [], {}
        for values in self.user_fields:
            owner = values.get("share_with")
            if isinstance(owner, str) and owner.startswith(_BORROWS):
                name, where = owner.removeprefix(_BORROWS), f"user field {values.get('name')!r}: share_with={owner!r}"
                if name not in ads or ads[name].type != "categorical" or ads[name].share_with is not None:
                    known = [f"ad.{field.name}" for field in ads.values() if field.type == "categorical"]
                    raise ValueError(
                        f"{where}; accepted: a categorical field of the ad with a vocabulary of its own: "
                        f"{', '.join(known) or 'there is none'}."
                    )
                if ads[name].hash_buckets is not None and ads[name].missing == "own_id":
                    raise ValueError(
                        f"{where}, a hashed field whose missing values have an id of their own, which lists have not; leave "
                        "missing='own_id' out there."
                    )
                borrowed[values["name"]] = name
                values = {key: value for key, value in values.items() if key != "share_with"}
                if ads[name].hash_buckets is not None:
                    values["hash_buckets"] = ads[name].hash_buckets
            fields.append(values)
        return fields, borrowed

    def _check(self) -> None:
        for side, processor in (("user", self.user), ("ad", self.ad)):
            for field in processor.fields:
                where = f"{side} field {field.name!r}"
                if field.embedding_dim is not None:
                    raise ValueError(
                        f"{where}: embedding_dim={field.embedding_dim}; retrieval models have one width for all fields: set the model's "
                        "embedding_dim."
                    )
                if field.time_column is not None:
                    raise ValueError(f"{where}: time_column has no use: these models read no times.")
                if side == "ad" and field.kind == "list":
                    raise ValueError(f"{where}: type {field.type!r}; accepted for ads: categorical, numeric.")
        for field in self.user.fields:
            if field.name in self.borrowed and field.kind != "list":
                raise ValueError(
                    f"user field {field.name!r}: only a sequence or multi_value field can share an ad's vocabulary."
                )

    # fitting

    @property
    def is_fitted(self) -> bool:
        """Whether vocabularies are there."""
        return self.user.is_fitted and self.ad.is_fitted

    @property
    def statistics(self) -> dict[str, Any]:
        """Statistics of what was fitted on, by side."""
        return {"user": self.user.statistics, "ad": self.ad.statistics}

    def fit(self, source: Any) -> ImpressionProcessor:
        """Reads the training part of an [`~lmctr.data.impressions.store.ImpressionSource`] once and fits both sides.

        Raises:
            ValueError: no training impressions; a missing column, a value that does not fit its field; a field without any value.
        """
        user, ad = (Fitter(side.fields, None, self.quantile_sample, self.seed) for side in (self.user, self.ad))
        for block in source.blocks("train"):
            for fitter, rows in ((user, block.user_rows()), (ad, block.ad_rows())):
                if len(rows):
                    fitter.add(rows)
        if not ad.num_rows:
            raise ValueError(f"{source.info.name}: the training part has no ads to fit on.")
        self.user._set_state(user.finish())
        self.ad._set_state(ad.finish())
        self._lend()
        return self

    def _lend(self) -> None:
        """Give the borrowing fields the ad's vocabulary."""
        for name, owner in self.borrowed.items():
            if owner in self.ad.state.vocabularies:
                self.user.state.vocabularies[name] = self.ad.state.vocabularies[owner]
            kind = self.ad.state.value_types.get(owner)
            if kind is not None:
                self.user.statistics["value_types"][name] = kind
        self.user.state.__dict__.pop("value_types", None)
        self.user._set_state(self.user.state)

    # transforming

    def __call__(self, users: Any, ads: Sequence[Any], return_tensors: str | TensorType | None = "pt") -> BatchFeature:
        """Impressions to score as a model's inputs.

        Args:
            users: B rows: a list of dicts, a dict of columns or a pyarrow Table. Other columns than the fields' are ignored.
            ads: for each of them its ads, the same way.
            return_tensors: "pt", "np" or None (numpy).

        Returns:
            `user_input_ids` (B, Fu) int32, `user_numeric_values` (B, Nu) float32, `user_sequence_ids` (B, S, L) int32, `ad_input_ids`
            (B, n, Fa) int32, `ad_numeric_values` (B, n, Na) float32, `ad_mask` (B, n) bool, without those that have no field; n is the
            largest number of ads.

        Raises:
            ValueError: no users, another number of lists of ads, a user without ads, a missing column, a value that does not fit.
        """
        self._require_fitted()
        if isinstance(ads, Mapping) or not isinstance(ads, Sequence):
            raise ValueError("ads: expected a list with the ads of each user.")
        user = self.user(users, return_tensors=None)
        unknown, examples = [self._named("oov_counts", "user")], [self._named("unknown_examples", "user")]
        count = len(next(iter(user.values())))
        if len(ads) != count:
            raise ValueError(f"ads: {len(ads)} lists of ads for {count} users; give each user its ads.")
        parts = []
        for place, own in enumerate(ads):
            with errors_of(f"ads of user {place}"):
                if not _num_rows(own):
                    raise ValueError("there is no ad; an impression has one ad at least")
                parts.append(self.ad(own, return_tensors=None))
                unknown.append(self._named("oov_counts", "ad"))
                examples.append(self._named("unknown_examples", "ad"))
        self.oov_counts, self.unknown_examples = add_counts(unknown), merged_examples(examples)
        counts = np.array([len(next(iter(part.values()))) for part in parts])
        rows = {f"user_{key}": values for key, values in user.items()}
        flat = {f"ad_{key}": np.concatenate([part[key] for part in parts]) for key in parts[0]}
        padded, mask = padded_grids(flat, counts)
        batch = rows | padded | {"ad_mask": mask}
        return BatchFeature(
            {key: batch[key] for key in self.model_input_names if key in batch}, tensor_type=return_tensors
        )

    def user_inputs(self, users: Any, return_tensors: str | TensorType | None = "pt") -> BatchFeature:
        """Those of `__call__` that are of users alone, for `user_half` and `score` of a [`~lmctr.serving.SplitRetrievalModel`]. Raises as it."""
        found = self.user(users, return_tensors=None)
        return BatchFeature({f"user_{key}": values for key, values in found.items()}, tensor_type=return_tensors)

    def ad_inputs(self, ads: Any, return_tensors: str | TensorType | None = "pt") -> BatchFeature:
        """Inputs of K ads of no impression: `ad_input_ids` (K, Fa), `ad_numeric_values` (K, Na), as `update` of a
        [`~lmctr.serving.SplitRetrievalModel`] takes them. `ads` and errors are those of the list of a user in `__call__`."""
        found = self.ad(ads, return_tensors=None)
        return BatchFeature({f"ad_{key}": values for key, values in found.items()}, tensor_type=return_tensors)

    def pairs(self, rows: Any, return_tensors: str | TensorType | None = "pt") -> BatchFeature:
        """N rows with the columns of a user and of one ad each, as N impressions of one ad: what `__call__` gives of them."""
        self._require_fitted()
        users, ads = self.user_inputs(rows, None), self.ad_inputs(rows, None)
        self.oov_counts = self._named("oov_counts", "user") | self._named("oov_counts", "ad")
        self.unknown_examples = self._named("unknown_examples", "user") | self._named("unknown_examples", "ad")
        batch = {**users, **{key: values[:, None] for key, values in ads.items()}}
        batch["ad_mask"] = np.ones((len(next(iter(batch.values()))), 1), dtype=bool)
        return BatchFeature(batch, tensor_type=return_tensors)

    def _named(self, what: str, side: str) -> dict[str, Any]:
        """What was missing, or unknown, in the rows that a side saw last, by `side.field`."""
        return {f"{side}.{name}": found for name, found in getattr(getattr(self, side), what).items()}

    def _side_of(self, name: str) -> tuple[TabularFeatureProcessor, str]:
        side, _, field = name.partition(".")
        return getattr(self, side), field

    def usual_unknown(self, name: str) -> float | None:
        """As of a [`TabularFeatureProcessor`], of "user.<field>" and "ad.<field>"."""
        side, field = self._side_of(name)
        return side.usual_unknown(field)

    def unknown_limit(self, name: str) -> float | None:
        """Likewise."""
        side, field = self._side_of(name)
        return side.unknown_limit(field)

    def num_known(self, name: str) -> int:
        """Likewise."""
        side, field = self._side_of(name)
        return side.num_known(field)

    def keep_unknown_of(self, earlier: ImpressionProcessor) -> None:
        """Likewise."""
        self.user.keep_unknown_of(earlier.user)
        self.ad.keep_unknown_of(earlier.ad)

    def user_columns(self) -> dict[str, str]:
        """Columns that the user's fields read, with what they hold."""
        return self.user.input_columns()

    def ad_columns(self) -> dict[str, str]:
        """Columns that the ad's fields read, with what they hold."""
        return self.ad.input_columns()

    # what the model needs to know

    def model_config_values(self) -> dict[str, Any]:
        """The keys of a `RetrievalConfig` that the data decide."""
        user, ad = self.user, self.ad.model_config_values()
        ids = [field for field in user.fields if field.kind == "id"]
        lists = [field for field in user.fields if field.kind == "list"]
        place_of = {field.name: place for place, field in enumerate(ids)}
        ad_place = {name: place for place, name in enumerate(ad["field_names"])}
        borrowed = {name: len(ids) + ad_place[owner] for name, owner in self.borrowed.items()}
        tables, own = sequence_tables(lists, place_of, len(ids) + len(ad["vocab_sizes"]), borrowed)
        return {
            "user_vocab_sizes": [user.vocab_size(field.name) for field in ids],
            "user_num_numeric": sum(field.kind == "value" for field in user.fields),
            "user_field_names": user.field_names,
            "user_num_sequences": len(lists),
            "user_sequence_tables": tables,
            "user_sequence_vocab_sizes": [user.vocab_size(name) for name in own],
            "ad_vocab_sizes": ad["vocab_sizes"],
            "ad_num_numeric": ad["num_numeric"],
            "ad_field_names": ad["field_names"],
            "processor_fingerprint": self.fingerprint,
        }

    @property
    def fingerprint(self) -> str:
        """Hex string over the fields and vocabularies of both sides."""
        text = repr((self.user.fingerprint, self.ad.fingerprint, sorted(self.borrowed.items())))
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    # saving and loading

    def _write_side(self, directory: str | os.PathLike) -> list[str]:
        own = {name: value for name, value in self.user.state.vocabularies.items() if name not in self.borrowed}
        state = FittedState(own, self.user.state.bounds, self.user.state.moments)
        return write_state(state, directory, "user_") + write_state(self.ad.state, directory, "ad_")

    def _read_side(self, place: str | os.PathLike, hub: Mapping[str, Any]) -> None:
        self.ad._read_state(place, hub, "ad_")
        self.user._read_state(place, hub, "user_")
        self._lend()
        for part in (self.ad, self.user):
            part._check_state(str(place))


def _as_dict(field: Any) -> dict[str, Any]:
    return field.to_dict() if isinstance(field, Field) else dict(field)


def _side(name: str, fields: list[dict[str, Any]], options: dict[str, Any]) -> TabularFeatureProcessor:
    with errors_of(name):
        return TabularFeatureProcessor(fields, **options)


def _num_rows(rows: Any) -> int:
    if isinstance(rows, Mapping):
        return len(next(iter(rows.values()), ()))
    return rows.num_rows if hasattr(rows, "num_rows") else len(rows)
