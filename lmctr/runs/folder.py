"""The run folder: what `lmctr train` leaves behind and the other verbs read.

RUN/config.json model.safetensors processor_config.json tokenizer*   the best checkpoint
RUN/recipe.yaml               every value of the recipe
RUN/data.json                 origin, licence, counts, split, label rates, truncation
RUN/lmctr_manifest.json       checksums of the files of the run; every load compares them
RUN/metrics.json              metrics, baselines, seed, versions; written last: its presence means "finished"
RUN/reference.safetensors     a few test samples and the model's logits; `lmctr push` compares with them
RUN/predictions/*.parquet     event, user, item, time, label, logit of validation and test
RUN/checkpoints/              the trainer's checkpoints
RUN/item_statistics.parquet   only with statistics: the items' at the end of the log, for requests
RUN/field_vectors.safetensors only with items encoded ahead: the vectors of their texts
RUN/retriever/                only where histories are retrieved
RUN/adapter/                  only with LoRA: what was trained, without the language model
RUN/tensorboard/              only with training.report_to: tensorboard
RUN/analysis/                 what `lmctr analyze` and `lmctr report` wrote
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
import re
import shutil
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import Any

from lmctr import __version__
from lmctr.models.families import ELSEWHERE, ITEM_STATISTICS, families, family_of, side_files
from lmctr.runs.find import GROUPS, RECIPE
from lmctr.runs.recipe import RecipeError, compare_recipes, load_recipe, with_epochs
from lmctr.runs.trust import check_links
from lmctr.training.checkpoints import list_checkpoints
from lmctr.utils.files import local_paths_cut, parse_json, read_json, read_yaml, remove_left, write_json
from lmctr.utils.integrity import MANIFEST, check_files, checksums, read_sealed, sealed
from lmctr.utils.lock import LOCK, owned
from lmctr.utils.suggest import did_you_mean
from lmctr.utils.values import show

logger = logging.getLogger(__name__)

METRICS = "metrics.json"
DATA = "data.json"
SLICES = "slices.csv"
WEIGHTS = "model.safetensors"
WEIGHTS_INDEX = "model.safetensors.index.json"
LOG_STATISTICS = "log_statistics.json"  # what a table made of a log had its statistics from
PROCESSOR_FILES = ("processor_config.json", "preprocessor_config.json")
PICKLE_SUFFIXES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".joblib")
"""Formats that are, or may hold, pickles. A folder with one of them at its top is not shared."""

_UPLOADED = (
    MANIFEST,
    "config.json",
    "generation_config.json",
    *PROCESSOR_FILES,
    WEIGHTS_INDEX,
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    *("tokenizer.model", "spiece.model", "spm.model", "spm_char.model"),  # SentencePiece
    *("sentencepiece.model", "sentencepiece.bpe.model", "tiktoken.model"),
)
# As transformers names them: whole or in shards, perhaps of a variant such as fp16.
_WEIGHT_FILE = re.compile(r"model(\.\w+)?(-\d{5}-of-\d{5})?\.safetensors|model\.safetensors\.index(\.\w+)?\.json")
_RETRIEVER_FILES = ("retriever/retriever.json", "retriever/retriever.safetensors")
_ENCODER_SUFFIXES = (".json", ".safetensors", ".txt", ".model")
_NEVER_UPLOADED = ("reference.safetensors",)
_LONGEST_HEADER = 25_000_000  # bytes of JSON; about 200,000 tensors
_OWN = (  # what a run writes: the sign of a finished one first, then those of one to go on from
    *(METRICS, "checkpoints", ".cache", MANIFEST, DATA, SLICES, "README.md", *_UPLOADED),
    *("tokenizer*", "vocab*", "chat_template*", "model*.safetensors*", *_NEVER_UPLOADED),
    *(
        "*tabular_vocabularies.parquet",
        "*tabular_numbers.safetensors",
        "sequence_*.parquet",
        "field_vectors.safetensors",
        ITEM_STATISTICS,
        LOG_STATISTICS,
    ),
    *("predictions", "retriever", "adapter", "analysis", "tensorboard", ".refit"),
)
# have marks of their own, or change
_UNSEALED = (MANIFEST, "README.md", "checkpoints", "analysis", ".cache", ".refit")
_noted: set[Path] = set()  # folders whose lack of checksums or of an end was told


@dataclass(frozen=True)
class RunFolder:
    """A folder with a run, or with a model: paths, states, and the small files, which are read and checked when asked for.

    Raises (what reads a file):
        FileNotFoundError: it is not there.
        ValueError: it is broken; the message names the file and the problem.
    """

    path: Path

    # ---- a run ----

    @property
    def checkpoints(self) -> Path:
        """Folder of the trainer's checkpoints."""
        return self.path / "checkpoints"

    @property
    def precision(self) -> Path:
        """What `training.bf16: auto` chose, and why."""
        return self.checkpoints / "precision.json"

    @property
    def refit(self) -> Path:
        """Folder of a training on training and validation, with `training.refit`; removed when the run ends."""
        return self.path / ".refit"

    @property
    def refit_optimizer(self) -> Path:
        """What the optimiser of that training ended with, for runs that go on from this one."""
        return self.checkpoints / "refit" / "optimizer.pt"

    @property
    def cache(self) -> Path:
        """Folder for what one process prepares for the others; removed when the run ends."""
        return self.path / ".cache"

    @property
    def retriever(self) -> Path:
        """Folder of the retriever."""
        return self.path / "retriever"

    @property
    def started(self) -> bool:
        """Whether a training was begun here."""
        return (self.path / RECIPE).is_file()

    @property
    def prepared(self) -> bool:
        """Whether the preparation before training was completed."""
        return (self.path / DATA).is_file()

    @property
    def begun(self) -> bool:
        """Whether a training made its first step here, so that there is something to go on from."""
        return self.started and (self.first_step.is_file() or bool(list_checkpoints(self.checkpoints)))

    @property
    def first_step(self) -> Path:
        """A file that says so before the first checkpoint does."""
        return self.cache / "first_step"

    @property
    def finished(self) -> bool:
        """Whether a training was completed here."""
        return (self.path / METRICS).is_file()

    def check_finished(self) -> None:
        """Raises `FileNotFoundError` without a run, `ValueError` where none was completed."""
        if not self.started:
            raise FileNotFoundError(
                f"{self.path} is no run folder: it has no {RECIPE} (train one with `lmctr train RECIPE`){self.run_inside}"
            )
        if not self.finished:
            raise ValueError(self._unfinished)

    @property
    def run_inside(self) -> str:
        """What a message ends with, which names a run in the folder of a search, a grid or a ladder (at depth 1 to 3)."""
        depths = ("*", "*/*", "runs/*/*")
        runs = sorted(file.parent for depth in depths for file in self.path.glob(f"{depth}/config.json"))
        return f"; give a run in it, such as {runs[0]}" if runs else ""

    @property
    def _unfinished(self) -> str:
        return f"the run in {self.path} is not finished (no {METRICS}); continue it with `lmctr train RECIPE --resume`"

    def clear(self) -> None:
        """Delete what a run wrote, and nothing else; the sign of a finished run goes first, and the recipe last, by which a run that was killed
        meanwhile is known as one that came to nothing."""
        for pattern in _own():
            for path in self.path.glob(pattern):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    # ---- checksums ----

    def seal(self, pending: Mapping[str, str] | None = None) -> None:
        """Write the checksums of all that the run wrote here; `pending` are the texts of files that are written next."""
        found = {path for pattern in _own() if pattern not in _UNSEALED for path in self.path.glob(pattern)}
        found |= {inner for path in found for inner in path.rglob("*")}
        names = {path.relative_to(self.path).as_posix() for path in found if path.is_file()}
        texts = {name: text.encode() for name, text in (pending or {}).items()}
        files = checksums(self.path, names - {MANIFEST, *texts})
        files |= {name: _checksum(text) for name, text in texts.items()}
        write_json(self.path / MANIFEST, sealed({"files": files}))

    def unseal(self) -> None:
        """Forget the checksums, before files are changed: a kill in between leaves a folder without them."""
        (self.path / MANIFEST).unlink(missing_ok=True)

    def verify(self, chosen: Callable[[str], bool] = lambda name: True) -> int | None:
        """Compare the files (of the chosen names) with their checksums; what only the run itself needs may be gone.

        Returns:
            How many were compared; None where the folder has no checksums: it was made elsewhere, or by an earlier version.

        Raises:
            FileNotFoundError, ValueError: a file is missing, or is not the one that the run wrote.
        """
        if not (self.path / MANIFEST).is_file():
            return None
        files = {name: entry for name, entry in read_sealed(self.path / MANIFEST)["files"].items() if chosen(name)}
        missing = [name for name in files if is_shared(name) and not (self.path / name).is_file()]
        if missing:
            raise FileNotFoundError(f"{self.path} has no {missing[0]}, which {MANIFEST} lists; put the run's own back")
        present = {name: entry for name, entry in files.items() if (self.path / name).is_file()}
        for name, entry in present.items():
            try:
                check_files(self.path, {name: entry})
            except ValueError as error:
                reader = {".json": read_json, ".safetensors": _read_header}.get(Path(name).suffix, str)
                reader(self.path / name)  # may know better what is wrong
                raise ValueError(f"{self.path}/{error}; {self._remedy()}") from error
        return len(present)

    def _remedy(self) -> str:
        """What to do about a file that is not the one of the checksums; a download's are renewed on the Hub alone."""
        place = self.path.absolute().parent
        if place.name != "snapshots" or not place.parent.name.startswith("models--"):
            return f"put the run's own file back, or delete {self.path / MANIFEST} if it was changed on purpose"
        repo = place.parent.name.removeprefix("models--").replace("--", "/")
        return (
            f"on the Hub, the files of {repo} were changed after its {MANIFEST}: push the model again with `lmctr push`, or delete "
            f"{MANIFEST} from that repository; if nobody changed them, the download is damaged: delete {place.parent} and load it again"
        )

    def shared_manifest(self, changed: Mapping[str, bytes]) -> bytes:
        """The checksums of what is shared, as the file that goes with it; `changed` are files that have another content there."""
        files = read_sealed(self.path / MANIFEST)["files"]
        shared = {name: entry for name, entry in files.items() if is_shared(name)}
        shared |= {name: _checksum(content) for name, content in changed.items() if name in shared}
        return json.dumps(sealed({"files": shared}), indent=2).encode()

    def metrics(self) -> dict[str, Any] | None:
        """`metrics.json`, or None. Raises ValueError also where `split metrics` and `baselines` hold other things than numbers."""
        found = read_json(self.path / METRICS) if self.finished else None
        for key, levels in (("split metrics", ("part", "metric")), ("baselines", ("baseline", "part", "metric"))):
            if found is not None and found.get(key) is not None:
                _check_numbers(found[key], levels, f"{self.path / METRICS}: {key}")
        return found

    def data(self) -> dict[str, Any] | None:
        """`data.json`, or None."""
        return read_json(self.path / DATA) if self.prepared else None

    def unknown_shares(self) -> dict[str, dict[str, float]]:
        """Shares of unknown values by part and field that the training kept; none of a run from before they were kept."""
        return (self.data() or {}).get("unknown_by_field", {})

    def recipe(self) -> dict[str, Any] | None:
        """`recipe.yaml`, or None."""
        value = read_yaml(self.path / RECIPE) if self.started else None
        if not isinstance(value, dict | None):
            raise ValueError(f"{self.path / RECIPE} must hold a YAML mapping, got {type(value).__name__}")
        for group in GROUPS:
            if value is not None and not isinstance(value.get(group, {}), dict):
                raise ValueError(
                    f"{self.path / RECIPE}: group {group} must be a mapping of keys to values, got {show(value[group])}"
                )
        return None if value is None else with_epochs(value)

    def recipe_differences(self, wanted: Mapping[str, Any], apart_from: Collection[str] = ()) -> list[str]:
        """`compare_recipes` of `recipe.yaml`, read as today's lmctr reads it, so that a key that came later counts with its default, and a wanted
        recipe (resolved)."""
        try:
            kept = load_recipe(self.path / RECIPE).resolved()
        except RecipeError:
            kept = self.recipe() or {}
        return compare_recipes(kept, wanted, apart_from)

    # ---- a model ----

    @cached_property
    def config(self) -> dict[str, Any]:
        """`config.json`."""
        if not (self.path / "config.json").is_file():
            checkpoints = sorted(self.path.glob("checkpoints/checkpoint-*/config.json"))
            if checkpoints:
                hint = f"; it has checkpoints but no finished model: continue the training with --resume, or give {checkpoints[-1].parent}"
            elif adapters := of_adapters([path.name for path in self.path.glob("*.json")]):
                hint = adapters
            elif self.started:
                hint = ": it is not the folder of a finished run"
            else:
                hint = f": it is no run folder, nor one of a saved model{self.run_inside}"
            raise FileNotFoundError(f"{self.path} has no config.json{hint}")
        config = read_json(self.path / "config.json")
        if not isinstance(config.get("model_type"), str):
            raise ValueError(f"{self.path / 'config.json'} has no model_type; save the model with save_pretrained")
        check_model_type(config["model_type"], str(self.path / "config.json"))
        return config

    @property
    def shared_config(self) -> dict[str, Any]:
        """`config.json` as it is shared: an earlier version may have left a backbone's folder in it."""
        return local_paths_cut(self.config)

    @property
    def model_type(self) -> str:
        return self.config["model_type"]

    @cached_property
    def weight_files(self) -> tuple[str, ...]:
        """Names of the safetensors files."""
        path, index = self.path, self.path / WEIGHTS_INDEX
        if (path / WEIGHTS).is_file():
            return (WEIGHTS,)
        if not index.is_file() and (path / "adapter_model.safetensors").is_file():
            raise FileNotFoundError(
                f"{path} holds a PEFT adapter without the model that it belongs to; merge it (merge_and_unload) and save the "
                "whole model with save_pretrained"
            )
        if not index.is_file():
            why = "the model was not saved there"
            if (variant := next(path.glob("model.*.safetensors"), None)) is not None:
                why = f"it holds those of a variant alone ({variant.name}); load them by AutoModelForCTR.from_pretrained(..., variant=...), and save them without one"
            raise FileNotFoundError(f"{path} has no {WEIGHTS} (nor {WEIGHTS_INDEX}): {why}")
        weight_map = read_json(index).get("weight_map")
        if not isinstance(weight_map, dict) or not weight_map:
            raise ValueError(f"{index} has no weight_map")
        for name in weight_map.values():
            if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
                raise ValueError(f"{index}: weight_map names {name!r}; accepted: safetensors files in the same folder")
        names = tuple(sorted(set(weight_map.values())))
        missing = [name for name in names if not (path / name).is_file()]
        if missing:
            raise FileNotFoundError(
                f"{path} lacks {len(missing)} of {len(names)} weight files that {WEIGHTS_INDEX} names: {', '.join(missing)}"
            )
        return names

    @cached_property
    def num_parameters(self) -> dict[str, int]:
        """Tensor name to number of values, from the headers of the weight files."""
        return {key: count for name in self.weight_files for key, count in _read_header(self.path / name).items()}

    @property
    def processor_file(self) -> str:
        """The one of `PROCESSOR_FILES` that the processor of such a model writes."""
        return PROCESSOR_FILES[family_of(self.model_type).input != "text"]

    @cached_property
    def processor(self) -> dict[str, Any]:
        """`processor_config.json` (or `preprocessor_config.json`)."""
        for name in PROCESSOR_FILES:
            if (self.path / name).is_file():
                values = read_json(self.path / name)
                if name == PROCESSOR_FILES[0] and not isinstance(values.get("processor_class"), str):
                    raise ValueError(
                        f"{self.path / name} has no processor_class; save it with processor.save_pretrained"
                    )
                return values
        raise FileNotFoundError(
            f"{self.path} has no {self.processor_file}: without the processor nobody can make inputs for the model; "
            "save it with processor.save_pretrained"
        )

    @property
    def has_retriever(self) -> bool:
        """Whether the folder holds the saved text retriever that its behaviours were chosen with."""
        return (self.path / _RETRIEVER_FILES[0]).is_file()

    def upload_files(self) -> list[Path]:
        """The files to share, relative to the folder: weights, configurations, tokenizer, side files of processors and a saved retriever;
        no checkpoints, predictions, caches or reference rows, nor anything that users put there.

        Raises:
            ValueError: weights whose files have names of their own.
        """
        foreign = [name for name in self.weight_files if not is_shared(name)]
        if foreign:
            raise ValueError(
                f"{self.path / WEIGHTS_INDEX} names {foreign[0]!r}; shared are weights by the names that save_pretrained gives them, such "
                "as model-00001-of-00002.safetensors: save the model again"
            )
        places = [self.path.iterdir(), self.retriever.rglob("*") if self.has_retriever else ()]
        names = [path.relative_to(self.path) for found in places for path in found if path.is_file()]
        return sorted(name for name in names if is_shared(name.as_posix()))

    def kept_files(self) -> list[str]:
        """What lies at the top of the folder and is not shared, folders with a slash at their end."""
        found = (path for path in self.path.iterdir() if not path.name.startswith(".") and path.name != LOCK)
        names = (path.name + "/" if path.is_dir() else path.name for path in found)
        whole = {"retriever/"} if self.has_retriever else set()
        return sorted(name for name in names if not is_shared(name) and name not in whole)


def of_adapters(names: Collection[str]) -> str | None:
    """What is said of files without a model that hold adapters; None of others."""
    if "adapter_config.json" not in names:
        return None
    if "ctr_config.json" in names:
        return (
            ": it holds adapters alone; lmctr.training.lora.merge_lora(load_adapter(model, folder)) makes a model of them and their base, which its "
            "ctr_config.json names"
        )
    return (
        ": it holds adapters of PEFT alone, without the ctr_config.json that lmctr.training.lora.save_adapter writes; if their base is a CTR model, "
        "merge_lora(peft.PeftModel.from_pretrained(base, folder)) makes a model of both"
    )


def check_model_type(model_type: str, where: str) -> None:
    """Raises `ValueError` that starts with `where` for a type of models that is none of lmctr's, nor registered with it."""
    known = [family.model_type for family in families()]
    if model_type not in known:
        raise ValueError(
            f"{where}: model_type is {model_type!r}, which is no CTR model of lmctr {__version__}; its models are {', '.join(known)}. "
            f"{ELSEWHERE}; a language model becomes one by training: it is the `model.backbone` of a recipe (ctr_sink)"
        )


def open_run(path: str | Path, state: str = "finished", refuse_pickles: bool = False) -> RunFolder:
    """A folder of a run in a state.

    Args:
        path: the folder.
        state: "finished": a training was completed there. "model": it holds a complete model in safetensors, trained by a recipe or
            not; the small files are read, the model is not loaded. That of a run that did not finish is warned of.
        refuse_pickles: whether pickle files beside a model are an error. Nothing ever reads them here, but who is given the folder may.

    Raises:
        FileNotFoundError: no such folder, or no run or no model in it.
        ValueError: the run is not finished; a broken file, such as truncated weights.
    """
    run = RunFolder(Path(path))
    if not os.path.isdir(run.path):  # which takes a name that is too long for one that is not there
        more = "; a model of the Hub is named USER/NAME, or hf://USER/NAME where there is a folder USER here"
        if state != "model":
            more = ", with its metrics, scores and checkpoints; a model of the Hub comes without them"
        near = [entry.name for entry in run.path.parent.glob("*") if entry.is_dir()]
        raise FileNotFoundError(
            f"run folder {str(path)!r} {'is a file' if os.path.exists(run.path) else 'does not exist'}; give the folder that `lmctr train` "
            f"wrote{more}.{did_you_mean(run.path.name, near)}"
        )
    check_links(run.path)
    if state == "model":
        _ = run.config
        found = sorted(entry.name for entry in run.path.iterdir() if entry.suffix.lower() in PICKLE_SUFFIXES)
        if refuse_pickles and found:
            raise ValueError(
                f"{path} holds files in a format that can run code when it is loaded: {', '.join(found)}; lmctr shares "
                "safetensors only: save the model with save_pretrained (which writes model.safetensors) and delete these files"
            )
        _ = run.num_parameters, run.processor
        compared = run.verify(_is_loaded) is not None
        if (place := run.path.resolve()) not in _noted:
            if not compared:
                logger.info("%s has no %s: its files were not compared with checksums", path, MANIFEST)
            if run.started and not run.finished:
                logger.warning("%s; until then its model is taken as it is", run._unfinished)
            _noted.add(place)
        return run
    run.check_finished()
    run.verify(_is_loaded)
    return run


def _check_numbers(value: Any, levels: Sequence[str], where: str) -> None:
    """Raises ValueError unless these are objects in objects, by the names of `levels`, the last of which hold numbers."""
    if levels and isinstance(value, dict):
        for name, own in value.items():
            _check_numbers(own, levels[1:], f"{where}, {name}")
    elif levels or isinstance(value, bool) or not isinstance(value, int | float):
        wanted = f"an object with a {levels[0]} for each key" if levels else "a number"
        raise ValueError(f"{where}: got {show(value)}, accepted: {wanted}; the file is damaged")


def check_same_data(runs: Iterable[RunFolder]) -> None:
    """Runs over whose seeds a mean is taken must have read the same data.

    Raises:
        ValueError: two that did not, by the checksums in their `data.json`.
    """
    known = [(run.path, run.data()) for run in runs if run.prepared]
    unlike = {str(path) for pair in combinations(known, 2) if unlike_data(pair[0][1], pair[1][1]) for path, _ in pair}
    if unlike:
        raise ValueError(
            f"{' and '.join(str(path) for path, _ in known if str(path) in unlike)} were trained on different data, so that a mean over them says nothing; "
            "restore the data and train again what was trained on others"
        )


def unlike_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> str | None:
    """The checksum by which two `data.json` are not of the same data, None where they are. Of the inputs there is none of
    runs of up to 0.1.0, and of texts and sequences one of the weights, and a third of what describes items, users and events."""
    for key in ("fingerprint", "inputs_fingerprint", "described_fingerprint"):
        both = one.get(key), other.get(key)
        if both[0] != both[1] and (key == "fingerprint" or None not in both):
            return key
    return None


def _is_loaded(name: str) -> bool:
    """Whether a file is read wherever a run is: scores and reference rows are compared before a push, and by what reads them."""
    return not name.startswith("predictions/") and name not in _NEVER_UPLOADED


@contextmanager
def rewriting(path: str | Path) -> Iterator[None]:
    """The block in which a file is written anew that a run's checksums may list: it is taken from the list and put back.

    Meanwhile the list says so (`rewriting`), so that who writes the file after a kill puts it back too.
    """
    path = Path(path).resolve()
    for folder in path.parents[:2]:
        run, name = RunFolder(folder), path.relative_to(folder).as_posix()
        if not run.started or not (folder / MANIFEST).is_file():
            continue
        with owned(folder, "writer"):
            content = read_sealed(folder / MANIFEST)
            files, begun = content["files"], content.get("rewriting", [])
            if files.pop(name, None) is not None or name in begun:
                write_json(folder / MANIFEST, sealed({"files": files, "rewriting": sorted({*begun, name})}))
                yield
                others = {"rewriting": left} if (left := [other for other in begun if other != name]) else {}
                write_json(folder / MANIFEST, sealed({"files": files | checksums(folder, [name]), **others}))
                return
    yield


def _of_data(run: RunFolder) -> str:
    name = ((run.recipe() or {}).get("data") or {}).get("name")
    return "" if name is None else f" (its data: {name})"


# What depends on the machine. The product of batch size, accumulation and processes must stay, which the checkpoint tells.
_BY_LAUNCH = (
    "training.per_device_train_batch_size",
    "training.per_device_eval_batch_size",
    "training.gradient_accumulation_steps",
    "training.dataloader_num_workers",
    "training.dataloader_prefetch_factor",
    "training.dataloader_persistent_workers",
)


def claim(run: RunFolder, recipe: Mapping[str, Any], resume: bool | str, overwrite: bool) -> bool:
    """Make the folder ready for a training with a (resolved) recipe.

    Args:
        resume: "auto" goes on with a run that was begun there and starts one where there is none; True: there must be one; False:
            there must be none. A run that failed before its first step counts as none.
        overwrite: delete an earlier run.

    Returns:
        Whether the run in the folder goes on, or is finished; else the folder is empty, or absent.

    Raises:
        ValueError: no run to go on with, a run that is in the way, one that was begun with another recipe, or other files.
    """
    if not overwrite and (run.finished or run.begun):
        if not resume and run.finished:
            raise ValueError(
                f"{run.path} holds a finished run; give another --output-dir, or --overwrite to train it again{_of_data(run)}"
            )
        if not resume:
            raise ValueError(
                f"{run.path} holds a run that did not finish; --resume continues it, --overwrite starts it again{_of_data(run)}"
            )
        differences = run.recipe_differences(recipe, apart_from=_BY_LAUNCH)
        if differences:
            raise ValueError(
                f"the recipe differs from the one that the run in {run.path} was started with: {'; '.join(differences)}. "
                "Resume with the same values, or train into another --output-dir"
            )
        return True
    if resume is True and not run.started:
        raise ValueError(f"there is no run to resume in {run.path}; leave resume out to start one")
    if run.started or run.prepared or run.finished:
        run.clear()
        return False
    shutil.rmtree(run.cache, ignore_errors=True)  # all that is left when the data of a first try were wrong
    remove_left(run.path / RECIPE)  # or when it was killed before its first file was whole
    if run.path.is_dir() and any(path.name != LOCK for path in run.path.iterdir()):
        raise ValueError(f"output_dir {run.path} is not empty and holds no run; give another folder")
    return False


def is_shared(name: str) -> bool:
    """Whether a file of this name, relative to a run folder, belongs to what is shared."""
    if "/" not in name:
        return name in _UPLOADED or name in side_files() or _WEIGHT_FILE.fullmatch(name) is not None
    return name in _RETRIEVER_FILES or (name.startswith("retriever/encoder/") and name.endswith(_ENCODER_SUFFIXES))


def _own() -> tuple[str, ...]:
    """Patterns of what a run writes, with the files of families of other packages, in the order in which they are deleted."""
    return (*_OWN, *sorted(side_files().difference(_OWN)), RECIPE)


def _checksum(content: bytes) -> dict[str, Any]:
    return {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def _read_header(path: Path) -> dict[str, int]:
    """Number of values of each tensor of a safetensors file, after a check that the file has the length it declares."""
    size = path.stat().st_size
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if 8 + length > size:
            raise ValueError(f"{path} is cut off or no safetensors file: {size:,} bytes do not hold its header")
        if length > _LONGEST_HEADER:
            raise ValueError(
                f"{path}: a header of {length:,} bytes, accepted: up to {_LONGEST_HEADER:,}; it is damaged or no safetensors file"
            )
        try:
            header = parse_json(file.read(length))
            tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for entry in tensors.values()), default=0)
            counts = {name: math.prod(entry["shape"]) for name, entry in tensors.items()}
            wrong = [name for name, entry in tensors.items() if not _fits(entry, counts[name])]
        except (ValueError, AttributeError, KeyError, TypeError, IndexError) as error:
            raise ValueError(f"{path} is no safetensors file: its header cannot be read ({error})") from error
    if wrong:
        raise ValueError(f"{path} is damaged: the shape and the place of {wrong[0]} in its header do not agree")
    if 8 + length + end != size:
        state = "cut off" if size < 8 + length + end else "damaged"
        raise ValueError(
            f"{path} is {state}: its header declares {8 + length + end:,} bytes, the file has {size:,}; "
            "copy it again or save the model again"
        )
    return counts


def _fits(entry: Mapping[str, Any], count: int) -> bool:
    """Whether a tensor has a shape, and the bytes that its values take; types that are not known here may be packed."""
    (start, end), bits = entry["data_offsets"], re.fullmatch(r"(?:BF|[FIUC])(8|16|32|64)(?:_.*)?", entry["dtype"])
    size = {"BOOL": 1}.get(entry["dtype"]) or (int(bits[1]) // 8 if bits else None)
    return min(entry["shape"], default=0) >= 0 and 0 <= start <= end and (size is None or size * count == end - start)
