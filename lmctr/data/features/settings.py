"""What the processors share as feature extractors: settings, and files from a folder or the Hub."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from transformers import FeatureExtractionMixin

from lmctr.utils.hub_uploads import upload_modified_files
from lmctr.utils.in_package import stays_in_package
from lmctr.utils.integrity import resealing
from lmctr.utils.kept import forget_kept
from lmctr.utils.suggest import refuse_misspelt, refuse_unknown

from .fields import Field

_IGNORED = ("feature_extractor_type", "processor_class", "transformers_version", "auto_map")
_HUB_KEYS = ("cache_dir", "force_download", "local_files_only", "token", "revision", "subfolder", "proxies")


class FittedExtractor(FeatureExtractionMixin):
    """A feature extractor whose settings stand in `preprocessor_config.json` and whose fitted values in side files. What it keeps of them
    goes when one is set anew.

    Attributes:
        settings: names of the settings: the arguments of `__init__` that are not in `fitted`.
        fitted: names of the arguments that the side files hold.
        is_fitted: whether the fitted values are there.
    """

    settings: ClassVar[tuple[str, ...]]
    fitted: ClassVar[tuple[str, ...]] = ()
    is_fitted: bool
    register_for_auto_class = classmethod(stays_in_package)
    _upload_modified_files = upload_modified_files

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        names = inspect.signature(cls.__init__).parameters
        cls.settings = tuple(name for name in names if name not in ("self", "kwargs", *cls.fitted))

    def __init__(self, **kwargs: Any) -> None:
        refuse_unknown((key for key in kwargs if key not in _IGNORED), self.settings, type(self).__name__)
        super().__init__()

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name in (*self.settings, *self.fitted, "state"):
            forget_kept(self)

    def to_dict(self) -> dict[str, Any]:
        """The settings, as `preprocessor_config.json` holds them; what was fitted goes to side files."""
        name = type(self).__name__
        return self._settings() | {"feature_extractor_type": name, "processor_class": name}

    def _settings(self) -> dict[str, Any]:
        return {name: copy.deepcopy(getattr(self, name)) for name in self.settings}

    def _require_fitted(self) -> None:
        if not self.is_fitted:
            raise ValueError("this processor is not fitted; call fit(source) first, or load a fitted one.")

    def save_pretrained(
        self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs: Any
    ) -> list[str]:
        """Writes `preprocessor_config.json` and the side files; gives their paths."""
        self._require_fitted()
        os.makedirs(save_directory, exist_ok=True)
        with resealing(save_directory):
            side = self._side_files = self._write_side(save_directory)
            return super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs) + side

    def _get_files_timestamps(self, working_dir: str | os.PathLike) -> dict[str, float]:
        """As in the parent, which uploads what is newer: the side files that `save_pretrained` has just written are."""
        new = {os.path.basename(path) for path in getattr(self, "_side_files", ())}
        return {name: time for name, time in super()._get_files_timestamps(working_dir).items() if name not in new}

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: str | os.PathLike, **kwargs: Any) -> Self:
        """Loads a processor from a folder or from the Hub; keywords as in `FeatureExtractionMixin.from_pretrained`.

        Raises:
            OSError: a file is absent.
            ValueError: the files do not belong together; a misspelt setting.
        """
        hub = cls._hub_options(kwargs)
        processor = super().from_pretrained(pretrained_model_name_or_path, **kwargs)
        processor._read_side(pretrained_model_name_or_path, hub)
        return processor

    def _write_side(self, directory: str | os.PathLike) -> list[str]:
        """Write the side files; gives their paths."""
        raise NotImplementedError

    def _read_side(self, place: str | os.PathLike, hub: Mapping[str, Any]) -> None:
        """Read the side files; `hub` goes to `cached_file`."""
        raise NotImplementedError

    @classmethod
    def _hub_options(cls, kwargs: dict[str, Any]) -> dict[str, Any]:
        """Of the keywords of `from_pretrained`, those that the side files need too; takes out what is said to all kinds of processors."""
        for key in ("trust_remote_code", "use_fast"):
            kwargs.pop(key, None)
        refuse_misspelt(
            (key for key in kwargs if key not in _HUB_KEYS), cls.settings, f"{cls.__name__}.from_pretrained"
        )
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
