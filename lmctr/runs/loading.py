"""Loading a run folder: model and processor, or an error that names the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoProcessor

from lmctr.auto import AutoModelForCTR
from lmctr.models.common.configuration import CTRConfig
from lmctr.models.families import family_of
from lmctr.runs.folder import RunFolder, open_run
from lmctr.runs.trust import check_classes, check_size
from lmctr.utils.files import read_json
from lmctr.utils.lazy import load_target
from lmctr.utils.load_report import held_load_report, without_bars
from lmctr.utils.progress import step
from lmctr.utils.suggest import first_of


def load_run(run_dir: str | Path) -> tuple[torch.nn.Module, Any]:
    """Model (in eval mode, on the CPU) and processor of a run folder; nothing is left at its initial value.

    Raises:
        FileNotFoundError, ValueError: a file is missing, damaged, or does not belong to the others.
    """
    return load_folder(open_run(run_dir, "model"))


@step("loading the model")
def load_folder(folder: RunFolder) -> tuple[torch.nn.Module, Any]:
    """`load_run` of a folder whose small files were read."""
    check_classes(folder.path, folder.model_type)
    config = load_config(folder)
    check_size(folder.path, config, folder.num_parameters)
    if config.has_tokenizer:
        check_tokenizer_files(folder.path)
    processor = _load_processor(folder)
    check_processor(config, processor, str(folder.path))  # before the weights, whose shapes would tell less
    model = _load_model(folder)
    model.load_beside(folder.path)
    return model, processor


def load_bare_model(folder: RunFolder) -> torch.nn.Module:
    """The model of a folder that may lack a processor, checked as `load_folder` does."""
    check_size(folder.path, load_config(folder), folder.num_parameters)
    return _load_model(folder)


def load_config(folder: RunFolder) -> CTRConfig:
    """The configuration of a folder's model. Raises `ValueError` that names the file where it is no valid one."""
    _ = folder.config  # whose errors tell more
    try:
        return AutoConfig.from_pretrained(folder.path, trust_remote_code=False)
    except Exception as error:  # configurations of transformers raise of every kind
        raise ValueError(f"{folder.path / 'config.json'} is no valid configuration: {error!s:.500}") from error


def check_processor(config: CTRConfig, processor: Any, where: str) -> None:
    """Ids mean nothing without the vocabularies that the model was trained with: raises `ValueError` that starts with `where` for another
    processor than a model's configuration tells of, or one of another kind."""
    wanted = load_target(family_of(config.model_type).processor)
    if not isinstance(processor, wanted):
        raise ValueError(
            f"{where}: a {type(processor).__name__}, but a model of the type {config.model_type} reads what a {wanted.__name__} makes"
        )
    for key in config.keys_shared_with_processor:  # the model would read other buckets or texts
        own, theirs = (
            list(value) if isinstance(value, tuple) else value
            for value in (getattr(config, key), getattr(processor, key))
        )
        if own != theirs:
            raise ValueError(
                f"{where}: {key} is {own!r} in the model's configuration and {theirs!r} in the processor; they come from different runs"
            )
    wanted = config.processor_fingerprint
    found = getattr(processor, "fingerprint", None)
    if wanted is not None and wanted != found:
        raise ValueError(
            f"{where}: the model was trained with a processor of the fingerprint {wanted} (processor_fingerprint in config.json), "
            f"but this one has {found}; its files come from another run or were changed: put the run's own back"
        )


def _load_model(folder: RunFolder) -> torch.nn.Module:
    try:
        with held_load_report(), without_bars():  # the errors below say what matters
            model, info = AutoModelForCTR.from_pretrained(
                folder.path, output_loading_info=True, ignore_mismatched_sizes=True, trust_remote_code=False
            )
    except Exception as error:  # whatever a damaged file leads to, the user needs the folder's name
        raise ValueError(f"{folder.path}: AutoModelForCTR cannot load the model: {error}") from error
    files = ", ".join(folder.weight_files)
    for key, what in (
        ("missing_keys", "lacks weights of the model"),
        ("unexpected_keys", "holds weights that the model does not have"),
        ("mismatched_keys", "holds weights of another shape"),
    ):
        names = sorted(name if isinstance(name, str) else str(name[0]) for name in info.get(key) or ())
        if names:
            raise ValueError(
                f"{folder.path}: {files} {what}: {first_of(names)}; config.json and the weights do not belong together"
            )
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            raise ValueError(f"{folder.path}: the weight {name} holds NaN or infinite values; the training diverged")
    return model.eval()


def _load_processor(folder: RunFolder) -> Any:
    try:
        return AutoProcessor.from_pretrained(folder.path, trust_remote_code=False)
    except BaseException as error:
        if (
            not isinstance(error, Exception) and type(error).__name__ != "PanicException"
        ):  # which tokenizers' Rust ends with
            raise
        raise ValueError(
            f"{folder.path}: AutoProcessor cannot load the processor: {str(error).rstrip('.')}; save it with "
            "processor.save_pretrained, or, if an earlier version of lmctr saved it, train again"
        ) from error


def check_tokenizer_files(path: Path) -> None:
    """Check that a folder holds a tokenizer whose JSON files are whole.

    Raises:
        FileNotFoundError, ValueError: a file is missing or damaged; transformers' own errors do not name it.
    """
    for name in ("tokenizer_config.json", "tokenizer.json"):
        if (path / name).is_file():
            read_json(path / name)
    vocabularies = [*path.glob("tokenizer.json"), *path.glob("*.model"), *path.glob("vocab.*")]
    if not vocabularies or not (path / "tokenizer_config.json").is_file():
        missing = "tokenizer_config.json" if vocabularies else "tokenizer.json"
        raise FileNotFoundError(
            f"{path} has no {missing}: the processor cannot read text without its tokenizer; "
            "save it with processor.save_pretrained"
        )
