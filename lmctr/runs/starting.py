"""First recipes for data of one's own: what `lmctr init` writes, and what `lmctr train FILE --model FAMILY` trains."""

from __future__ import annotations

import contextlib
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import yaml

from lmctr.data.features.times import time_keys
from lmctr.data.guess import Ask, LogGuess, guess_files, guess_impressions
from lmctr.data.guess.found import OF_IMPRESSIONS, STATED, TEXT_BOUND
from lmctr.data.logs.splits import split_log
from lmctr.data.logs.validation import validate_log
from lmctr.data.names import names_from
from lmctr.data.reading import printable
from lmctr.data.registry import load_log
from lmctr.data.tables.reading import names_in_file
from lmctr.models.families import families, family_of
from lmctr.runs.find import GROUPS, RECIPE, is_data_file
from lmctr.runs.options import DataFiles, InitOptions, TrainOptions
from lmctr.statistics.table import context_names
from lmctr.utils.files import expanded, read_yaml, write_text
from lmctr.utils.progress import step
from lmctr.utils.suggest import first_of

FAMILIES = tuple(family.model_type for family in families() if family.starts)
_RANKING = tuple(family.model_type for family in families() if family.input == "impressions")
LARGE = 3_000_000  # events, from which on a smaller log for trials is proposed
_FOR_THEM = f"{' and '.join(_RANKING)} rank them"
_FEW_ROWS = 100_000  # of a table, below which three epochs are few steps
_FEW_FOR_AUC = 5_000  # rows of a table, below which validation's AUC lets a network overfit
_FEW_FOR_TREES = 500  # events of a log: beside 24 of 600 the log loss on test fell from 0.579 to 0.501
_FEW_FOR_FACTORS = 1000
_BACKBONE = {
    "model_type": "bert",
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 256,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "initializer_range": 0.1,
}


def init(options: InitOptions, say: Callable[[str], None] = print) -> int:
    """`lmctr init FILE`: guess what the columns are, check the log that follows, and write a schema and three recipes.

    Raises:
        FileNotFoundError, ValueError: a file that cannot be read, columns that cannot be told, a folder with such files.
    """
    events = Path(options.events)
    folder = Path(options.output or events.name.split(".")[0])
    starts = _RANKING if options.kind == "impressions" else FAMILIES
    names = ["schema.yaml", *(f"{family}.yaml" for family in starts)]
    there = [name for name in names if (folder / name).exists()]
    if there and not options.overwrite:
        raise ValueError(
            f"--output {folder}: {', '.join(there)} is there already; name another folder, or pass --overwrite"
        )
    asks = not options.yes and sys.stdin.isatty()
    guess = _guess(options.events, options, _on_terminal if asks else None, options.kind)
    for line in guess.lines():
        say(line)
    is_table, is_log = guess.is_table, guess.kind == "log"
    starts = [family for family in starts if not is_table or family_of(family).input == "tabular"]
    names = ["schema.yaml", *(f"{family}.yaml" for family in starts)]
    content, room = _SCHEMAS[guess.kind]
    schema = {"name": events.name.split(".")[0], **content(guess.schema, folder)}
    folder.mkdir(parents=True, exist_ok=True)
    _write(
        folder / "schema.yaml",
        _SCHEMA_HEAD.format(events=printable(events), room=room) + "".join(f"# {line}\n" for line in guess.lines()),
        schema,
    )
    say("")
    is_large = guess.events.rows > LARGE
    if is_table:
        lacks = f"no {' and no '.join(guess.lacks)}: " if guess.lacks else ""
        stated = (
            f" (where a column holds them: {' '.join(f'--{role} COLUMN' for role in guess.lacks)})"
            if guess.lacks
            else ""
        )
        say(f"{lacks}rows of a table, which tabular families read{stated}")
    elif is_log and not is_large:
        try:
            say(_checked(folder / "schema.yaml"))
        except BaseException:
            if not there:  # the same command, once the file is mended, is not refused for what this one left
                (folder / "schema.yaml").unlink()
                with contextlib.suppress(OSError):  # other files are there
                    folder.rmdir()
            raise
    for family in starts:
        recipe = starting_recipe(family, guess, {"name": "schema.yaml"})
        _write(
            folder / f"{family}.yaml",
            _RECIPE_HEAD.format(family=family, train=printable(_train(folder, family))),
            recipe,
        )
    say(f"wrote {', '.join(str(folder / name) for name in names)}")
    say("\nnext:")
    schema_file, sample_file = (shlex.quote(str(folder / name)) for name in ("schema.yaml", "sample.parquet"))
    if is_log and is_large:
        say(f"  lmctr data sample {schema_file} --share {LARGE / 3 / guess.events.rows:.2g} --output {sample_file}")
        say(
            f"      (about {guess.events.rows:,} events are many for a first try; add --data.path {sample_file} to the lines below)"
        )
    say(f"  lmctr data inspect {schema_file}")
    for family in starts:
        is_bare = family_of(family).input == "text" and guess.title is None
        say(f"  {_train(folder, family)}{'    # items have no titles: there is little to read' * is_bare}")
    *others, last = starts
    if others:
        say(f"  lmctr evaluate {_run(folder, last)} --compare {_run(folder, others[-1])}")
    elif is_table:
        beside = _train(folder, last).partition(" --output-dir")[0]
        say(f"  {beside} --model.family dcnv2 --output-dir {_run(folder, 'dcnv2')}")
    rows, run = "newer" if guess.kind == "impressions" else "impressions", _run(folder, last)
    say(f"  lmctr predict {run} --input {rows}.csv --output scores.csv")
    if guess.kind == "impressions":
        say(f"  lmctr export {run} --format embeddings --ads ads.csv    # vectors for an index, of these rows")
    elif is_log:
        say(f"  lmctr recommend {_run(folder, last)} --top 10 --output best.csv    # for each user")
    if "negatives" in guess.schema:
        come_back = " --seen" * (guess.repeat_share >= _REPEATS)
        say(f"  lmctr analyze next {_run(folder, last)}{come_back}    # what such lists hold of what users took next")
    return 0


def _run(folder: Path, family: str) -> str:
    """The run folder of a recipe of `folder`: runs/<family>, or, where that holds a run of other data, one with the folder's name too."""
    trained = Path("runs", family, RECIPE)
    recipe = read_yaml(trained) if trained.is_file() else None
    data = recipe.get("data") if isinstance(recipe, dict) else None
    is_own = isinstance(data, dict) and data.get("name") == str(folder / "schema.yaml")
    is_free = is_own or not trained.is_file()
    return f"runs/{family}" if is_free else shlex.quote(f"runs/{folder.name}_{family}")


def _train(folder: Path, family: str) -> str:
    run = _run(folder, family)
    return f"lmctr train {shlex.quote(str(folder / f'{family}.yaml'))}{'' if run == f'runs/{family}' else f' --output-dir {run}'}"


@step("looking at the columns")
def _guess(events: str, options: DataFiles, ask: Ask | None, kind: str | None) -> LogGuess:
    named = {role: getattr(options, role) for role in STATED}
    named = {role: column for role, column in named.items() if column is not None}
    if options.negatives is not None and (options.negatives < 1 or options.label is not None):
        accepted = "no --label: every row is a click" if options.label is not None else "a number from 1"
        raise ValueError(f"--negatives {options.negatives}: accepted: {accepted}")
    listed = {"events": "names", "items": "items_names", "users": "users_names"}
    names = {
        role: names_from(text, f"--{own.replace('_', '-')}")
        for role, own in listed.items()
        if (text := getattr(options, own)) is not None
    }
    if kind != "impressions":
        if role := next((role for role in OF_IMPRESSIONS if role in named), None):
            raise ValueError(
                f"--{role} {named[role]}: it is of --kind impressions, with a row for each ad of each; {_FOR_THEM}"
            )
        return guess_files(events, options.items, options.users, named, ask, kind, options.negatives, names)
    for name in ("items", "users", "negatives"):
        if (value := getattr(options, name)) is not None:
            raise ValueError(
                f"--{name} {value}: it is of logs; a file of impressions holds all that is read of users and ads"
            )
    return guess_impressions(events, named, names.get("events"))


def recipe_for_file(options: TrainOptions, say: Callable[[str], None] = print) -> dict[str, Any]:
    """The recipe of the family `options.model` for the data file `options.recipe`; `say` gets what was taken for what. Where it goes on from a
    run of such a file, that run's own, so that a day whose columns look otherwise is read alike."""
    if options.from_run is not None:
        from lmctr.runs.folder import RunFolder  # loads torch, which `lmctr init` has no use for

        earlier = RunFolder(expanded(options.from_run)).recipe()
        again = earlier is not None and is_data_file(earlier["data"]["name"])
        if again and not any(getattr(options, name) is not None for name in DataFiles.__dataclass_fields__):
            if options.model not in (None, earlier["model"]["family"]):
                raise ValueError(
                    f"--model {options.model}: {options.from_run} is a run of {earlier['model']['family']}; leave --model out, or --from"
                )
            say(
                f"{options.recipe}: read and trained on as {earlier['data']['name']} was, by the recipe of {options.from_run}"
                f"{_without_new(options.recipe, earlier['data'])}"
            )
            return {**earlier, "data": {**earlier["data"], "name": options.recipe}}
    if options.model is None:
        if not expanded(options.from_run).exists():
            raise FileNotFoundError(f"--from {options.from_run}: there is no such run folder")
        raise ValueError(
            f"--from {options.from_run}: no run that was trained on a data file; give the recipe that it was trained by, or name the family, "
            "--model"
        )
    reads = family_of(options.model).input
    accepted = {"tabular": ("log", "table"), "impressions": ("impressions",)}.get(reads, ("log",))
    if options.kind not in (None, *accepted):
        why = {"tabular": "tables, or logs", "impressions": "impressions"}.get(reads, "histories, which a log has")
        other = {"table": "a tabular one (--model deepfm)", "impressions": _FOR_THEM}.get(options.kind)
        raise ValueError(
            f"--kind {options.kind}: {options.model} reads {why}; leave --kind out{f', or give another family: {other}' if other else ''}"
        )
    guess = _guess(options.recipe, options, None, options.kind if reads == "tabular" else accepted[0])
    for line in guess.lines():
        say(line)
    say("")
    return starting_recipe(options.model, guess, {"name": guess.schema["events"]["path"], "options": guess.options()})


def _without_new(file: str, earlier: dict[str, Any]) -> str:
    """Words on the columns of a file that the data group of an earlier run's recipe does not read, without those that the file of that run has
    where it is another one."""
    options = earlier["options"]
    reading = {key: options[key] for key in ("format", "delimiter", "names", "decimal", "na_values") if key in options}
    known, first = _words_in(options), expanded(earlier["name"])
    try:
        if first.exists() and not first.samefile(expanded(file)):
            known |= {*names_in_file(first, **reading)}
        unread = [name for name in names_in_file(expanded(file), **reading) if name.strip() and name not in known]
    except (OSError, ValueError):
        return ""  # who reads the file will say so
    return f"; that recipe reads no column {first_of(unread)}: train anew without --from to read it" if unread else ""


def _words_in(value: Any) -> set[str]:
    """All texts of a value of a recipe."""
    if isinstance(value, (dict, list)):
        return set().union(*map(_words_in, value.values() if isinstance(value, dict) else value))
    return {value} if isinstance(value, str) else set()


def relative(schema: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A schema whose paths are seen from a folder."""
    result = dict(schema)
    for part in ("events", "catalogue", "users"):
        if "path" in result.get(part, ()):
            result[part] = _at(result[part], folder)
    return result


def _at(keys: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The keys of a file whose path is seen from a folder."""
    return {**keys, "path": _seen_from(Path(keys["path"]).resolve(), folder.resolve())}


def _table_schema(schema: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a table's schema file in a folder."""
    result = {key: value for key, value in schema.items() if key not in ("events", "time", "time_format")}
    if "joined" in schema:
        result["joined"] = [_at(own, folder) for own in schema["joined"]]
    reading = dict(schema["events"])
    path = Path(reading.pop("path")).resolve()
    time = {"time": time_keys(schema["time"], schema.get("time_format"))} if "time" in schema else {}
    return {"files": _seen_from(path, folder.resolve()), **reading, **time, **result}


def _impression_schema(schema: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The content of a schema file of impressions in a folder."""
    reading = _at(schema["events"], folder)
    return {"impressions": reading.pop("path"), **reading, **{key: schema[key] for key in schema if key != "events"}}


_SCHEMAS = {
    "table": (_table_schema, "tables.load"),
    "impressions": (_impression_schema, "impressions.load"),
    "log": (relative, "logs.table"),
}
"""By kind what a schema file holds, and the module of its keys."""


def _seen_from(path: Path, folder: Path) -> str:
    up = 0
    while not path.is_relative_to(folder):
        folder, up = folder.parent, up + 1
    return "/".join([".."] * up + [path.relative_to(folder).as_posix()])


def _checked(schema: Path) -> str:
    log = load_log(schema)
    splits = split_log(log)
    parts = ", ".join(f"{name} {len(events):,}" for name, events in splits.items())
    note = f" {log.info.notes}" if log.info.notes else ""
    try:
        validate_log(log, splits)
        for name, events in splits.items():
            weight = None if log.weight is None else log.weight[events]
            counted = log.label[events if weight is None else events[weight > 0]]
            if not ((counted == 0).any() and (counted == 1).any()):
                from lmctr.runs.inputs.base import check_part  # which loads torch

                check_part(name, {"label": log.label[events]}, weight)
    except ValueError as error:  # as lmctr train will, which refuses it
        note += f"\nnot fit to train on as it is: {error}"
    return (
        f"checked: {log.num_events:,} events of {log.num_users:,} users on {log.num_items:,} items; samples by time: {parts}; positive "
        f"{(log.label[splits.train] == 1).mean():.1%} of training.{note}"
    )


_SCHEMA_HEAD = (
    "# Which column of {events} is what: guessed by `lmctr init`, to be mended here. Keys: lmctr.data.{room}.\n#\n"
)
_RECIPE_HEAD = (
    "# {family} on the data of schema.yaml: short enough for a first try on two cores.\n#\n#   {train}\n#\n"
    "# Every key: lmctr train --list-keys {family}\n\n"
)


def _write(path: Path, head: str, content: dict[str, Any]) -> None:
    lines = []
    for key, value in content.items():
        inner = value if isinstance(value, dict) and key in (*GROUPS, "columns") else None
        text = _yaml(value if inner else {key: value})
        lines.append(f"{key}:\n{textwrap.indent(text, '  ')}" if inner else text)
    write_text(path, head + "".join(lines))


def _yaml(values: dict[str, Any]) -> str:
    """A key per line, and what is below it on that line where it fits."""
    dump = partial(yaml.safe_dump, sort_keys=False, allow_unicode=True, width=110)
    flow = {True: None, False: False}  # one scalar in a mapping would stand in braces
    return "".join(
        dump({key: value}, default_flow_style=flow[isinstance(value, (dict, list))]) for key, value in values.items()
    )


def _on_terminal(question: str, answers: Sequence[str], guess: str) -> str:
    while True:
        given = input(f"{question} ({', '.join(answers)}) [{guess}] ").strip() or guess
        if given in answers:
            return given
        print(f"  {given!r} is none of them")


# ---- recipes ----


def starting_recipe(family: str, guess: LogGuess, data: dict[str, Any]) -> dict[str, Any]:
    """The groups of a short recipe of a family for data that were guessed; `data` name them."""
    kind = family_of(family).input
    times = guess.schema if guess.is_table else guess.schema["columns"]
    rule = "time" if "time" in times else "random"
    data, own = {**data, "split": rule, "fractions": [0.8, 0.1, 0.1]}, _RECIPES[kind](guess)
    options = {**data.get("options", {}), **own["data"].pop("options", {})}
    data |= own["data"] | ({"options": options} if options else {})
    return {
        "data": data,
        "model": {"family": family, **own["model"], **family_of(family).starting},
        "training": own["training"] | ({"calibration": "intercept"} if "negatives" in guess.schema else {}),
    }


def _text_recipe(guess: LogGuess) -> dict[str, Any]:
    tells_apart = "negatives" not in guess.schema or "feedback" in guess.schema["columns"]
    return {
        "data": {
            "max_train_samples": 20_000,
            "max_eval_samples": 10_000,
            "prompt": {"base": "generic/en", "item": _template(guess), **_feedback_words(guess)},
            "num_behaviors": 8,
            "order": "recent",
            "feedback": "sink" if tells_apart else "none",
            "statistics": _statistics(guess),
        },
        "model": {
            "backbone": dict(_BACKBONE),
            "tokenizer": {"type": "wordpiece", "vocab_size": _vocabulary(guess)},
            "sink_kind": "sink",
            "sink_signal": ["recency", *(["feedback"] if tells_apart else [])],
            "num_sink_buckets": 32,
            "sink_embedding_dim": 32,
        },
        "training": {
            **_trees(guess),
            "stage1_epochs": 1,
            "stage2_epochs": 1,
            "learning_rate": 2e-3,
            "per_device_train_batch_size": 64,
            "per_device_eval_batch_size": 256,
            "seed": 0,
        },
    }


def _vocabulary(guess: LogGuess) -> int:
    """Most tokens of the texts: 2,000, and more where the titles have many characters (Chinese), each of which takes two."""
    sample = guess.events if guess.items is None else guess.items
    if guess.title not in sample.table.column_names:  # there it may have another name
        return 2000
    return max(2000, 1000 + 3 * len(set().union(*sample.values(guess.title).drop_null().to_pylist())))


def _sequence_recipe(guess: LogGuess) -> dict[str, Any]:
    return {
        "data": {
            "max_train_samples": 100_000,
            "max_eval_samples": 50_000,
            "max_history_length": 50,
            "min_count": 2,
            "item_features": list(guess.item_categories),
            "user_features": list(guess.user_categories),
            "statistics": [*_statistics(guess), *_scenario(guess)],
        },
        "model": {},
        "training": {
            **_trees(guess),
            "epochs": 2,
            "learning_rate": 2e-3,
            "weight_decay": 0.01,
            "per_device_train_batch_size": 128,
            "per_device_eval_batch_size": 512,
            "seed": 0,
        },
    }


def _tabular_recipe(guess: LogGuess) -> dict[str, Any]:
    if guess.is_table:  # chosen on validation parts of four public tables, see model_cards/own_tables.md
        model, trees, patience = {"embedding_dim": 16}, {"boosting_share": "auto"}, 2
        best = {"metric_for_best_model": "eval_log_loss"} if guess.events.rows < _FEW_FOR_AUC else {}
    else:
        model, trees, patience = {"embedding_dim": 8, "use_numeric_skip": True}, _trees(guess), 1
        best = {}
    of_log: dict[str, Any] = {}
    if not guess.is_table:
        names = [*_statistics(guess, _MOST_OF_CONTEXT), *_scenario(guess)]
        of_log = {"options": {"history_length": 20, "min_count": 5}, "statistics": names}
    return {
        "data": {**of_log, "max_train_samples": 500_000, "max_eval_samples": 100_000},
        "model": model,
        "training": {
            **trees,
            "epochs": 10 if guess.is_table and guess.events.rows < _FEW_ROWS else 3,
            "learning_rate": 1e-3,
            "weight_decay": 1e-3,
            "per_device_train_batch_size": _batch_size(guess.events.rows) if guess.is_table else 256,
            "per_device_eval_batch_size": 4096,
            "early_stopping_patience": patience,
            **best,
            "seed": 0,
        },
    }


def _batch_size(rows: float, least: int = 32, most: int = 256) -> int:
    """A power of two from `least` to `most` with about twenty steps an epoch: on 500 to 4,000 rows of four public tables better than 256."""
    return min(max(1 << (max(int(rows) // 20, 1).bit_length() - 1), least), most)


_REPEATS = 0.02
"""Share of events with an item that the user has met before, from which on statistics of the pair are read."""
_MOST_OF_CONTEXT = 50
"""Statistics of the context, up to which a table has them beside the context's own fields: the linear way and the trees read them, and each is a field."""
_MANY_FOR_FACTORS = 5_000_000
"""Events of a log, up to which factors are read: those of so many take two minutes and two gigabytes, see `docs/scaling.md`."""


def _impression_recipe(guess: LogGuess) -> dict[str, Any]:
    """Chosen on validation parts of four files, see model_cards/ad_retrieval_losses.md."""
    column = guess.schema["columns"]["impression"]
    counts = pc.value_counts(guess.events.values(column)).field("counts").to_numpy()
    ads, impressions = int(np.median(counts)), guess.events.rows / counts.mean()
    return {
        "data": {"metrics": {"m": max(ads // 4, min(2, ads - 1), 1)}},
        "model": {"loss": "pairwise"},
        "training": {
            "epochs": 10,
            "learning_rate": 1e-3,
            "weight_decay": 1e-3,
            "per_device_train_batch_size": _batch_size(impressions / 6, 16, 64),
            "per_device_eval_batch_size": 512,
            "early_stopping_patience": 3,
            "seed": 0,
        },
    }


_RECIPES = {
    "text": _text_recipe,
    "sequence": _sequence_recipe,
    "tabular": _tabular_recipe,
    "impressions": _impression_recipe,
}


def _statistics(guess: LogGuess, most: int | None = None) -> list[str]:
    """Statistics of users and items, of both where there is something to count, and of the context, where it has so many at most."""
    repeats = ["repeats"] if guess.repeat_share >= _REPEATS else []
    factors = ["factors"] if _FEW_FOR_FACTORS <= guess.events.rows <= _MANY_FOR_FACTORS else []
    given = guess.schema["columns"].get("context") or {}
    columns = [
        own["column"] if isinstance(own, dict) else own
        for own in (given.values() if isinstance(given, dict) else given)
    ]
    few = most is None or len(context_names(guess.events.table.select(columns))) <= most
    context = ["context"] if columns and few else []
    return ["full", *repeats, *factors, *context]


def _scenario(guess: LogGuess) -> list[str]:
    """The statistics of where a candidate is shown, if events say it; requests of texts do not."""
    return ["scenario"] if "scenario" in guess.schema["columns"] else []


def _trees(guess: LogGuess) -> dict[str, Any]:
    """Boosted trees beside the network of a log, where there is something to fit them on."""
    return {"boosting_share": "auto"} if guess.events.rows >= _FEW_FOR_TREES else {}


def _template(guess: LogGuess) -> str:
    """The text of an item: its title and at most two categories, or what there is."""
    categories = guess.item_categories[:2]
    if guess.title is None and not categories:
        return "{item_id}"
    if guess.title is None:
        return "".join(f"{{{name}}}" if not place else f"[, {{{name}}}]" for place, name in enumerate(categories))
    title = f"{guess.title}:.{TEXT_BOUND}" if guess.title_is_long else guess.title
    return f"{{{title}}}" + "".join(f"[, {{{name}}}]" for name in categories)


def _feedback_words(guess: LogGuess) -> dict[str, Any]:
    """The prompt's words for the kinds of feedback of a log that names its own; none where all behaviours are clicks."""
    column = guess.schema["columns"].get("feedback")
    if column is None:
        return {"feedback": []} if "negatives" in guess.schema else {}
    names = sorted(map(str, set(guess.events.values(column).to_pylist()) - {"unknown"}))
    return {"feedback": [{"name": name, "word": f"{name} ", "header": f"{name}: "} for name in names]}
