"""`transformers.pipeline("click-prediction")`: requests or rows of a table in, probabilities and logits out."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy.special import expit
from transformers import AutoProcessor, Pipeline
from transformers.pipelines import PIPELINE_REGISTRY

from lmctr.auto import AutoModelForCTR
from lmctr.models.common.base import check_head, evaluation_copy
from lmctr.utils.rows import is_table, plain_row, refuse_parts, requests_of

if TYPE_CHECKING:
    from lmctr.data.tables.joined import Joined

logger = logging.getLogger(__name__)

TASK = "click-prediction"
_ROWS_AT_A_TIME = 4096


class ClickPredictionPipeline(Pipeline):
    """Scores requests or rows by a model of any family and its processor.

    Inputs are those of `lmctr predict`: a request of a history and candidates (text and sequence families), a user and ads (retrieval
    families), or a row of a table as a dict of columns (tabular families). One dict gives one answer; a list a list, as do several rows as
    a `datasets` Dataset or a part of one (`data[:5]`, a dict of lists), a pyarrow Table or a pandas DataFrame; an iterator gives an
    iterator, which reads on as it is read.

    Columns that rows of a table lack and files of the run's recipe have (`joined`) are read from these, as `lmctr predict` does.

    A row, a target or a candidate is answered by `{"score": p, "logit": l}` with p = sigmoid(l), where the model was trained on clicks
    the probability of one; a request of `candidates` (`ads`) by a list of them. Of several tasks, score and logit are dicts by task.

    Args:
        model: loaded from a run folder, any folder that `from_pretrained` loads, or a Hub id; items' statistics and the retriever, where
            the processor needs them, are read from there too, and of a folder what the model keeps beside its weights.
        processor: the processor or its place; default: the model's place.
        batch_size: rows (request x candidate) per forward pass; default 64, tables and impressions 4096.
        max_tokens: most positions of a forward pass for candidates that share a history; default 8192.
        kwargs: what `pipeline` takes: device, dtype, ...

    Raises:
        ValueError: a request or row that is not valid, by its place; a processor that is not the model's.
        OSError: transformers' own, before anything here is asked: a `model` that is no folder is looked for on the Hub.

    Example:

    ```python
    >>> import lmctr, transformers
    >>> pipe = transformers.pipeline("click-prediction", model="user/name")
    >>> pipe({"history": [{"text": "Heat (1995)", "time": 1700000000}], "target": "Casino (1995)", "time": 1700100000})
    {'score': 0.61, 'logit': 0.45}
    ```
    """

    # The classes are given by the model's own folder: transformers' pipelines accept no feature extractor as processor.
    _load_processor = _load_tokenizer = _load_feature_extractor = _load_image_processor = _load_video_processor = False

    def __init__(self, model: Any, processor: Any = None, **kwargs):
        from lmctr.runs.answers import load_item_statistics, load_retriever
        from lmctr.runs.download import is_hub_id, local_folder
        from lmctr.runs.folder import check_model_type
        from lmctr.runs.loading import check_processor

        place = getattr(model, "name_or_path", None)
        if place is None:
            raise ValueError(f"model: expected a model, a folder or a Hub id, got {type(model).__name__} {model!r}")
        check_model_type(model.config.model_type, f"model {place}".rstrip())
        check_head(model)
        if not place and (processor is None or isinstance(processor, str)):
            place = processor
        if processor is None and place is None:
            raise ValueError("processor: the model was not loaded from a folder or the Hub; give its processor")
        revision = None if place and Path(place).is_dir() else getattr(model.config, "_commit_hash", None)
        if processor is None or isinstance(processor, (str, Path)):
            own = processor is None or str(processor) == place
            if not own and not Path(processor).is_dir() and not is_hub_id(processor):
                raise FileNotFoundError(f"processor: there is no folder {str(processor)!r}; give one, or a Hub id")
            processor = AutoProcessor.from_pretrained(
                processor or place, revision=(revision if own else None) or "main"
            )
        check_processor(model.config, processor, "processor")
        with model.same_weights():
            super().__init__(model, processor=processor, **kwargs)
        self._kind = getattr(processor, "request_kind", None)
        self._retriever = self._items = None
        if place and (getattr(processor, "needs_similarity", False) or getattr(processor, "statistics_reader", None)):
            folder = local_folder(place, revision)
            self._retriever, self._items = load_retriever(folder, processor), load_item_statistics(folder, processor)
        self._place = place

    @cached_property
    def _joined(self) -> tuple[Joined, ...]:
        """The files of the run that have columns which rows lack, as they are when first asked for."""
        from lmctr.runs.answers.joined import joined_files_of
        from lmctr.runs.folder import RunFolder

        return joined_files_of(RunFolder(Path(self._place))) if self._place else ()

    def _sanitize_parameters(self, max_tokens: int | None = None, **unknown) -> tuple[dict, dict, dict]:
        if unknown:
            raise ValueError(
                f"{', '.join(unknown)}: the pipeline takes batch_size, max_tokens and what loads a model (device, dtype, ...)"
            )
        return {}, {} if max_tokens is None else {"max_tokens": max_tokens}, {}

    def __call__(self, inputs: Any, batch_size: int | None = None, **kwargs) -> Any:
        """Answers to `inputs`, see the class; `batch_size` and `max_tokens` as there."""
        from lmctr.runs.answers.predict import answers_for

        batch_size = self._batch_size if batch_size is None else batch_size
        if batch_size is not None and (not isinstance(batch_size, (int, np.integer)) or batch_size < 1):
            raise ValueError(f"batch_size: got {batch_size!r:.80}, accepted: an integer from 1")
        settings = {"batch_size": batch_size, **self._forward_params}
        settings |= self._sanitize_parameters(**kwargs)[1]
        refuse_parts(inputs, "inputs")
        row = plain_row(inputs) if getattr(inputs, "ndim", 0) == 1 else None
        if isinstance(row, Mapping) and not all(isinstance(value, Mapping) for value in row.values()):
            inputs = row  # of a frame; a column of requests stays as it is
        several_rows = is_table(inputs)
        if several_rows and isinstance(inputs, Mapping) and self._kind == "table":  # a row may have nothing but lists
            several_rows = any(field.kind != "list" for field in self.processor.fields)
        elif isinstance(inputs, Mapping):  # a request says one of them, and no list
            several_rows &= "time" in inputs or "user" in inputs
        if several_rows and hasattr(inputs, "__len__"):
            counted = inputs.values() if isinstance(inputs, Mapping) else [inputs]
            if not any(map(len, counted)):
                return []
        if hasattr(inputs, "with_format"):  # of the package datasets
            inputs = inputs.with_format(None)
            if not hasattr(inputs, "__len__"):
                inputs = iter(inputs)
        if several_rows and self._kind != "table":
            inputs = requests_of(inputs) if isinstance(inputs, Iterator) else list(requests_of(inputs))
        # transformers' KeyDataset, for one
        if isinstance(inputs, torch.utils.data.Dataset) and hasattr(inputs, "__len__"):
            inputs = [inputs[place] for place in range(len(inputs))]
        several = (Mapping, list, tuple, Iterator)
        if isinstance(inputs, str) or not (isinstance(inputs, several) or hasattr(inputs, "__len__")):
            raise ValueError(f"inputs: expected a request or row (a dict), or several, got {type(inputs).__name__}")
        if not isinstance(inputs, several) and not is_table(inputs):  # an array of rows, a column of requests
            inputs = list(inputs)
        if self._kind != "table":
            # One for the whole call: a history that goes on from the request before is encoded once.
            parts = self._retriever, settings["batch_size"], settings.pop("max_tokens", None), self._items
            settings = {"answers": answers_for(evaluation_copy(self.model), self.processor, *parts)}
        elif several_rows if isinstance(inputs, Mapping) else not isinstance(inputs, several):
            return self.run_single(inputs, {}, settings, {})
        if isinstance(inputs, Mapping):
            return self.run_single([inputs], {}, settings, {})[0]
        found = self._stream(iter(inputs), settings)
        return found if isinstance(inputs, Iterator) else list(found)

    def _stream(self, inputs: Iterator[Any], settings: dict[str, Any]) -> Iterator[Any]:
        first = 0
        while some := list(itertools.islice(inputs, _ROWS_AT_A_TIME)):
            rows = [row if isinstance(row, Mapping) else plain_row(row) for row in some]
            yield from self.run_single(rows, {"first": first}, settings, {})
            first += len(rows)

    def preprocess(self, inputs: Any, first: int = 0) -> dict[str, Any]:
        return {"rows": inputs, "first": first}

    def _forward(self, model_inputs: dict[str, Any], answers: Any = None, **settings) -> dict[str, Any]:
        from lmctr.data.features.unknown import check_unknown
        from lmctr.runs.answers.tables import completed, finite_table_logits

        rows, first = model_inputs["rows"], model_inputs["first"]
        if answers is None:
            inputs = self.processor(completed(rows, self.processor, lambda: self._joined))
            for warning in check_unknown(
                self.processor, self.processor.oov_counts, self.processor.unknown_examples, "inputs"
            ):
                logger.warning(warning)
            logits = finite_table_logits(evaluation_copy(self.model), inputs, settings["batch_size"], first)
            return {"scored": [({"single": True}, logits[place : place + 1]) for place in range(len(logits))]}
        return {"scored": list(answers.scored((f"inputs[{n}]", plain_row(row)) for n, row in enumerate(rows, first)))}

    def postprocess(self, model_outputs: dict[str, Any]) -> list[Any]:
        tasks = getattr(self.processor, "tasks", ("label",))
        found = [
            (request, [_answer(row, tasks) for row in logits.astype(np.float64)])
            for request, logits in model_outputs["scored"]
        ]
        return [answers[0] if request.get("single") else answers for request, answers in found]

    def save_pretrained(self, save_directory: str | Path, **kwargs) -> None:
        """Save the model and its processor, from where the pipeline is made again."""
        self.model.save_pretrained(save_directory, **kwargs)
        self.model.save_beside(Path(save_directory))
        self.processor.save_pretrained(save_directory)
        if self._items is not None:
            from lmctr.runs.folder import ITEM_STATISTICS

            self._items.save(Path(save_directory) / ITEM_STATISTICS)
        if self._retriever is not None:
            self._retriever.save_pretrained(Path(save_directory) / "retriever")


def _answer(logits: np.ndarray, tasks: tuple[str, ...]) -> dict[str, Any]:
    """() or (T,) logits of a candidate in words."""
    scores = expit(logits)
    if logits.ndim == 0 or (logits.size == 1 and len(tasks) == 1):
        return {"score": float(scores.reshape(())), "logit": float(logits.reshape(()))}
    return {"score": dict(zip(tasks, scores.tolist())), "logit": dict(zip(tasks, logits.tolist()))}


class _NoDefault(dict):
    """What transformers takes the model of a task from where none is given: click models are of one's own data, none stands for all."""

    def __getitem__(self, key: str) -> Any:
        raise ValueError(
            f"model is missing: {TASK} has no default model; accepted: a run folder, any folder that from_pretrained loads, a Hub id or a "
            f'loaded model: pipeline("{TASK}", model="runs/din")'
        )


class _AutoModelOfFolder(AutoModelForCTR):
    """What `pipeline` loads a model with that it is given by its place: with what stands beside the weights in a folder, as a run is loaded."""

    @classmethod
    def from_pretrained(cls, place: str, *args, **kwargs) -> Any:
        model = AutoModelForCTR.from_pretrained(place, *args, **kwargs)
        if Path(place).is_dir():
            model.load_beside(Path(place))
        return model


PIPELINE_REGISTRY.register_pipeline(
    TASK, ClickPredictionPipeline, pt_model=_AutoModelOfFolder, default=_NoDefault(model=None)
)
