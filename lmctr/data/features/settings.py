"""What the processors of tables and of impressions share as feature extractors: settings, and files from a folder or the Hub."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from transformers import FeatureExtractionMixin

from lmctr.utils.suggest import unknown_key_message

from .fields import Field

__all__ = ["FittedExtractor", "sequence_tables"]

_IGNORED = ("feature_extractor_type", "processor_class", "transformers_version", "auto_map")
_HUB_KEYS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class FittedExtractor(FeatureExtractionMixin):
    """A feature extractor whose settings stand in `preprocessor_config.json` and whose fitted values in side files.

    Attributes:
        settings: names of the settings.
    """

    settings: ClassVar[tuple[str, ...]]

    def __init__(self, **kwargs: Any) -> None:
        for key in kwargs:
            if key not in _IGNORED:
                raise ValueError(unknown_key_message(key, self.settings, type(self).__name__))
        super().__init__()

    def to_dict(self) -> dict[str, Any]:
        """The settings, as `preprocessor_config.json` holds them; what was fitted goes to side files."""
        values: dict[str, Any] = {name: copy.deepcopy(getattr(self, name)) for name in self.settings}
        values["feature_extractor_type"] = values["processor_class"] = type(self).__name__
        return values

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise ValueError("this processor is not fitted; call fit(source) first, or load a fitted one.")

    @staticmethod
    def _hub_options(kwargs: dict[str, Any]) -> dict[str, Any]:
        """Of the keywords of `from_pretrained`, those that the side files need too; takes out what the settings do not know."""
        kwargs.pop("trust_remote_code", None)
        return {key: kwargs[key] for key in _HUB_KEYS if key in kwargs}


def sequence_tables(
    lists: Sequence[Field], places: Mapping[str, int], first_own: int, borrowed: Mapping[str, int] | None = None
) -> tuple[list[int], list[str]]:
    """The embedding table that each sequence reads, and the fields that need a table of their own.

    Args:
        lists: the sequence and multi-value fields. places: tables of the categorical fields. first_own: number of the first further table.
            borrowed: tables of another processor's fields, by the field that reads them.
    """
    places, borrowed, tables, own = dict(places), borrowed or {}, [], []
    for field in lists:
        key = field.share_with or field.name
        if field.name not in borrowed and key not in places:
            places[key] = first_own + len(own)
            own.append(key)
        tables.append(borrowed[field.name] if field.name in borrowed else places[key])
    return tables, own
