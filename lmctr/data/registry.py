"""Every data set by name, and the doors to them.

A data set is an interaction log, a table or a set of impressions. [`load`] finds out which; [`load_log`], [`load_tabular`] and
[`load_impressions`] accept one kind only. [`register_dataset`] adds a name. The readers are imported when they are first used.
"""

from __future__ import annotations

import inspect
import itertools
import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lmctr.utils.files import expanded, holds_parquet, read_yaml
from lmctr.utils.lazy import load_target
from lmctr.utils.suggest import did_you_mean, refuse_unknown

if TYPE_CHECKING:
    from lmctr.data.impressions.source import ImpressionSource
    from lmctr.data.logs.log import InteractionLog
    from lmctr.data.tables.source import TableSource

logger = logging.getLogger(__name__)

DATASETS: dict[str, dict[str, str | Callable[..., Any]]] = {
    "log": {
        "30music": "lmctr.data.builders.thirty_music:load_thirty_music",
        "collm_ml1m": "lmctr.data.builders.collm:load_collm_ml1m",
        "amazon_book": "lmctr.data.builders.amazon_book:load_amazon_book",
        "frappe_log": "lmctr.data.builders.frappe:load_frappe_log",
        "movielens": "lmctr.data.builders.movielens:load_movielens",
        "kuairec": "lmctr.data.builders.kuairec:load_kuairec",
        "spotify_sessions": "lmctr.data.builders.spotify:load_spotify_sessions",
        "synthetic": "lmctr.data.synthetic.log:synthetic_log",
        "synthetic_sequence": "lmctr.data.synthetic.sequence:synthetic_sequence_log",
    },
    "table": {
        "avazu": "lmctr.data.builders.avazu:load_avazu",
        "criteo": "lmctr.data.builders.criteo:load_criteo",
        "frappe": "lmctr.data.builders.frappe:load_frappe",
        "kuaivideo": "lmctr.data.builders.kuaivideo:load_kuaivideo",
        "movielens": "lmctr.data.builders.movielens_table:load_movielens_table",
        "synthetic_table": "lmctr.data.synthetic.tables:synthetic_table",
        "taobao_ad": "lmctr.data.builders.taobao_ad:load_taobao_ad",
    },
    "impressions": {
        "recflow": "lmctr.data.builders.recflow:load_recflow",
        "synthetic_cascade": "lmctr.data.synthetic.cascade:synthetic_cascade",
    },
}
"""Data sets by kind and name: the function that reads or makes each, whose parameters are the options."""

_WORDS = {"log": "data set", "table": "table", "impressions": "impressions"}
_DOORS = {"log": "load_log", "table": "load_tabular", "impressions": "load_impressions"}
_PATHS = {
    "log": "; or a folder of `lmctr data prepare`, a schema .yaml file, or hf://user/name on the Hub",
    "table": "; or a schema .yaml file, a data file, or hf://user/name on the Hub",
    "impressions": "; or a schema .yaml file (see lmctr.data.impressions.load), or a data file with such options",
    None: "; or a folder of `lmctr data prepare`, a schema .yaml file, a data file, or hf://user/name on the Hub",
}
_SCHEMA_READERS = {
    "log": "lmctr.data.logs.table:load_table",
    "table": "lmctr.data.tables.load:source_from_schema",
    "impressions": "lmctr.data.impressions.load:impressions_from_schema",
}

_NOUNS = {"log": "an interaction log", "table": "a table", "impressions": "impressions"}


@dataclass(frozen=True)
class Loader:
    """What reads a data set.

    Attributes:
        kind: "log", "table" or "impressions". function: the reader. fixed: the arguments that the path sets. where: how messages call its
            options.
    """

    kind: str
    function: Callable[..., Any]
    where: str
    fixed: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def options(self) -> list[str]:
        """Names of the options."""
        return [name for name in inspect.signature(self.function).parameters if name not in self.fixed]

    def __call__(self, **options: Any) -> Any:
        """The data. Raises `ValueError` for an unknown option, with the nearest known one."""
        refuse_unknown(options, self.options, self.where)
        return self.function(**self.fixed, **options)


def register_dataset(name: str, kind: str, target: str | Callable[..., Any]) -> None:
    """Add a data set, which recipes, `lmctr data` and the functions of this module then know by its name.

    Args:
        name: the name.
        kind: what the function gives: "log" (an [`InteractionLog`]), "table" (a [`TableSource`]) or "impressions" (an
            [`ImpressionSource`]). A name may stand for one data set of each kind.
        target: the function, or "module:function", which is imported when the data are first asked for.

    Raises:
        ValueError: an unknown kind, a target that is neither, a name of this kind that another function has.

    Example:
        ```python
        register_dataset("shop", "log", "shop.data:load_shop")
        lmctr.data.load("shop", year=2024)
        ```
    """
    _check_kind(kind)
    if not callable(target) and not (isinstance(target, str) and target.count(":") == 1):
        raise ValueError(f'target: got {target!r}, accepted: a function, or "module:function".')
    if DATASETS[kind].setdefault(name, target) != target:
        raise ValueError(f"name: {name!r} is taken: {DATASETS[kind][name]}; choose another name.")


def load(name_or_path: str | os.PathLike, *, kind: str | None = None, **options: Any) -> Any:
    """Loads any data set.

    Args:
        name_or_path: a name of `DATASETS`; a folder of `lmctr data prepare`, which is a log; a schema file (`.yaml`), which describes a table
            when it has the key `files` and a log otherwise; a CSV, TSV, Parquet or JSON lines file, whose columns are looked at as `lmctr init`
            does (a warning says what was taken for what), or which with a kind or options is a table; or "hf://user/name", a data set of the
            Hub, read as a table unless the kind says log (see [`lmctr.data.builders.hub`]).
        kind: "log", "table" or "impressions"; needed only to read as a table what is a log too, such as "movielens".
        options: of the data set: the parameters of its function.

    Returns:
        An [`InteractionLog`], a [`TableSource`] or an [`ImpressionSource`].

    Raises:
        ValueError: the name, the kind or an option is unknown (with the nearest known one).
        FileNotFoundError: the data are absent.
    """
    loader = find(name_or_path, kind)
    if kind is None and not options and "data" in loader.fixed:  # of a data file
        loader, options, lines = looked_at(name_or_path)
        logger.warning(
            "\n".join([*lines, f"guessed; `lmctr init {os.fspath(name_or_path)}` writes a schema, to be mended"])
        )
    return loader(**options)


def looked_at(path: str | os.PathLike, kind: str | None = None) -> tuple[Loader, dict[str, Any], list[str]]:
    """What reads a data file whose columns are guessed, as the log or table that it seems to be; the options; and which column is what, and why.

    Raises:
        FileNotFoundError, ValueError: as [`lmctr.data.guess.guess_files`] does; what no column tells is stated to `lmctr init`.
    """
    from lmctr.data.guess import NotToldError, guess_files, guess_impressions

    try:
        guess = guess_impressions(path) if kind == "impressions" else guess_files(path, kind=kind)
    except NotToldError as error:
        end = "" if str(error).endswith(".") else "."
        told = f"{' and '.join(error.options)} with `lmctr init`, which writes a schema to inspect."
        raise ValueError(f"{error}{end} Give {told}") from None
    return find(path, guess.kind), guess.options(), guess.lines()


def load_log(name_or_path: str | os.PathLike, **options: Any) -> InteractionLog:
    """[`load`] for interaction logs only.

    Args:
        name_or_path: a log of `DATASETS`, a folder of a saved log, or a schema file (see [`lmctr.data.logs.table`]).
        options: keyword arguments of the builder: see [`~lmctr.data.builders.movielens.load_movielens`],
            [`~lmctr.data.builders.kuairec.load_kuairec`], [`~lmctr.data.synthetic.log.synthetic_log`], [`InteractionLog.load`] and
            [`~lmctr.data.logs.table.load_table`].

    Example:
        ```python
        from lmctr.data import load_log

        log = load_log("movielens", path="ml-latest-small")
        log.num_users, log.num_events
        ```
    """
    return find(name_or_path, "log")(**options)


def load_tabular(name_or_path: str | os.PathLike, **options: Any) -> TableSource:
    """[`load`] for tables only.

    Args:
        name_or_path: a table of `DATASETS`, a schema file (see [`lmctr.data.tables.load`]), or a CSV, TSV, Parquet or JSON lines file.
        options: of a known table, the arguments of its function; of a schema file `path` (another folder for its files, or file), `split`,
            `fractions`, `seed`, `memory_limit`; of a data file the arguments of [`~lmctr.data.tables.load.table_source`].

    Example:
        ```python
        source = load_tabular("criteo", path="criteo/train.txt")
        store = TabularStore.build(source, directory="cache")
        ```
    """
    return find(name_or_path, "table")(**options)


def load_impressions(name: str, **options: Any) -> ImpressionSource:
    """[`load`] for impressions only: `name` is one of `DATASETS`, and `options` are the arguments of its function."""
    return find(name, "impressions")(**options)


def find(name_or_path: str | os.PathLike, kind: str | None = None) -> Loader:
    """What [`load`] would call for this name or path.

    Raises:
        ValueError: nothing of this name and kind. FileNotFoundError: no such file.
    """
    if kind is not None:
        _check_kind(kind)
    if not isinstance(name_or_path, (str, os.PathLike)) or not os.fspath(name_or_path):
        raise ValueError(
            f"name_or_path: got {type(name_or_path).__name__} {str(name_or_path)[:40]!r}, accepted: the name of a data set, or a path; data in "
            "memory become a log by InteractionLog.from_columns, from_dataset, or a table by table_source"
        )
    name = os.fspath(name_or_path)
    for own in DATASETS if kind is None else (kind,):
        if name in DATASETS[own]:
            return Loader(own, _resolve(DATASETS[own][name]), f"options of the {_WORDS[own]} {name!r}")
    path = expanded(name)
    if name.startswith("hf://"):
        return _of_hub(name, kind)
    if is_schema(path):
        return _schema(path, kind)
    # unlike Path's methods, os.path takes a name that is too long for one that is not there
    if os.path.isfile(path / "config.json"):
        raise ValueError(
            f"{path}: the folder of a model, which holds no data; accepted: the name or the path of a data set. What it was trained on "
            "stands in its recipe.yaml: data.name, data.path and data.options."
        )
    if os.path.exists(path):
        if kind == "impressions":
            reader = _resolve("lmctr.data.impressions.load:impressions_from_file")
            return Loader(kind, reader, f"options of the file {path}", {"impressions": path})
        return _log_folder(path) if kind == "log" or (kind is None and _may_be_log(path)) else _data_file(path)
    raise ValueError(_unknown(name, kind))


def _of_hub(name: str, kind: str | None) -> Loader:
    if kind == "impressions":
        raise ValueError(f"{name}: a data set of the Hub is read as a log or a table, not as impressions.")
    reader = "log_from_hub" if kind == "log" else "table_from_hub"
    where = f"options of the data set {name} of the Hub"
    return Loader(kind or "table", _resolve(f"lmctr.data.builders.hub:{reader}"), where, {"dataset": name})


def _check_kind(kind: str) -> None:
    if kind not in DATASETS:
        raise ValueError(f"kind: got {kind!r}, accepted: {', '.join(DATASETS)}.")


def _schema(path: Path, kind: str | None) -> Loader:
    if not path.is_file():
        where = "" if path.is_absolute() else f" in {Path.cwd()}, where relative paths begin"
        raise FileNotFoundError(f"{path}: no such schema file{where}.")
    values = read_yaml(path)
    named = values if isinstance(values, dict) else {}
    found = "impressions" if "impressions" in named else "table" if "files" in named else "log"
    kind = kind or found
    if kind != found and "impressions" in (kind, found):
        readers = {
            "log": "every other family",
            "table": "tabular families",
            "impressions": "retrieval families, such as two_tower",
        }
        raise ValueError(
            f"{path} is the schema of {_NOUNS[found]}, which {readers[found]} read, and that of {_NOUNS[kind]} is wanted here (see "
            f"{_SCHEMA_READERS[kind].partition(':')[0]})."
        )
    return Loader(kind, _resolve(_SCHEMA_READERS[kind]), f"options of the schema file {path}", {"schema": path})


def is_schema(path: str | os.PathLike) -> bool:
    """Whether a path is that of a schema, by its suffix."""
    return Path(path).suffix.lower() in (".yaml", ".yml")


def _may_be_log(path: Path) -> bool:
    """Whether a path is a folder, and not one of Parquet files that are one table."""
    from lmctr.data.logs.log import LOG_FILE

    return path.is_dir() and ((path / LOG_FILE).is_file() or not holds_parquet(path))


def _log_folder(path: Path) -> Loader:
    from lmctr.data.logs.log import LOG_FILE, InteractionLog

    if (path / LOG_FILE).is_file():
        return Loader("log", InteractionLog.load, f"options of the saved log {path}", {"directory": path})
    if path.is_dir() and not holds_parquet(path):
        raise FileNotFoundError(
            f"{path}: no {LOG_FILE} in this folder. For raw files, name the data set, such as movielens, and give the folder as its path "
            "(--path or --data.path; path= in Python)."
        )
    reader = _resolve("lmctr.data.logs.table:log_from_file")
    return Loader("log", reader, f"options of the file {path}", {"events": path})


def is_own_log(name: str | os.PathLike, options: Mapping[str, Any]) -> bool:
    """Whether a name that is no known one leads to an interaction log: a folder of `lmctr data prepare`, the schema of a log, or a data file
    whose options say which column is what."""
    from lmctr.data.logs.log import LOG_FILE

    path = expanded(name)
    if os.fspath(name).startswith("hf://"):
        return "columns" in options
    if is_schema(path):
        return os.path.isfile(path) and _schema(path, None).kind == "log"
    return os.path.isfile(path / LOG_FILE) or (os.path.exists(path) and "columns" in options)


def is_log(name: str | os.PathLike, options: Mapping[str, Any]) -> bool:
    """Whether a name leads to an interaction log: a known one, or see [`is_own_log`]."""
    return name in DATASETS["log"] or is_own_log(name, options)


def _data_file(path: Path) -> Loader:
    if path.is_dir() and not holds_parquet(path):
        raise ValueError(f"{path}: a folder; name the file in it, or the table and give the folder as its path.")
    reader = _resolve("lmctr.data.tables.load:table_source")
    return Loader("table", reader, f"options of the file {path}", {"data": path})


def _unknown(name: str, kind: str | None) -> str:
    for other, names in DATASETS.items():
        if name in names:
            own, wanted = (kind if kind == "impressions" else f"a {kind}" for kind in (other, kind))
            return f"{name!r} names {own}, not {wanted}; load it with lmctr.data.{_DOORS[other]}."
    kinds = DATASETS if kind is None else {kind: DATASETS[kind]}
    known = list(dict.fromkeys(itertools.chain.from_iterable(kinds.values())))
    hint = did_you_mean(name, known)
    return (
        f"{_WORDS[kind or 'log']} {name!r:.200}: neither a known name nor an existing path.{hint} Known names: {', '.join(known)}"
        f"{_PATHS[kind]}."
    )


def _resolve(target: str | Callable[..., Any]) -> Callable[..., Any]:
    return target if callable(target) else load_target(target)
