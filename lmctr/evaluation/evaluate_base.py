"""What the modules for `evaluate.load` share; each states a metric of `lmctr.evaluation.metrics`, its options and an example.

Import this module, not the class: `evaluate.load` takes the first metric class that it finds in a script.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, ClassVar

import datasets
import evaluate

from lmctr.evaluation import metrics

_NUMBER = datasets.Value("float64")
_INPUTS = {
    "scores": (
        _NUMBER,
        "float64 scores (logits or probabilities: from_logits changes nothing), one per sample.",
        "labels, 0 or 1.",
    ),
    "probabilities": (
        _NUMBER,
        "float64 probabilities of the positive class, or logits with from_logits=True, one per sample.",
        "labels, 0 or 1.",
    ),
    "impressions": (
        datasets.Sequence(_NUMBER),
        "scores of the ads, one list per impression; the lists may differ in length.",
        "rank index v of the ads, higher is better, lists alike.",
    ),
}
_OPTIONS = {
    "from_logits": "predictions are logits, default False.",
    "sample_weight": "one non-negative weight per sample; optional.",
    "ties": 'of equal scores: "expected" (default), the mean over their orders, or "worst".',
}
ADAPTIVE_RANKING = """@inproceedings{wang2024adaptive, title={Adaptive Neural Ranking Framework: Toward Maximized Business Goal for
  Cascade Ranking Systems}, author={Wang, Yunli and others}, booktitle={WWW}, year={2024}}"""


class MetricModule(evaluate.Metric):
    """A metric that `lmctr.evaluation.metrics` computes.

    Attributes:
        name_: of the function there and of the value. The class's docstring says what it measures.
        inputs: "scores", "probabilities" or "impressions", see `_INPUTS`. extra: further columns: what they hold, and their features.
        options: keyword arguments of the function and what they mean (None: as everywhere). example: of a call. value: what it gives.
    """

    name_: ClassVar[str]
    inputs: ClassVar[str]
    extra: ClassVar[dict[str, tuple[str, tuple[Any, ...]]]] = {}
    options: ClassVar[dict[str, str | None]] = {}
    example: ClassVar[str]
    value: ClassVar[float]
    citation_: ClassVar[str] = ""

    def _info(self) -> evaluate.MetricInfo:
        kind, predictions, references = _INPUTS[self.inputs]
        texts = {"predictions": predictions, "references": references}
        texts |= {name: text for name, (text, _) in self.extra.items()}
        texts |= {name: text or _OPTIONS[name] for name, text in self.options.items()}
        features = [
            datasets.Features({"predictions": kind, "references": kind, **dict(zip(self.extra, kinds))})
            for kinds in zip(*(kinds for _, kinds in self.extra.values()))
        ]
        return evaluate.MetricInfo(
            description=f"{type(self).__doc__.rstrip('.')}, as lmctr.evaluation.metrics.{self.name_} computes it.",
            citation=self.citation_,
            inputs_description="\n".join(
                [
                    "\nArgs:",
                    *(f"    {name}: {text}" for name, text in texts.items()),
                    f"\nReturns:\n    {self.name_}: float.\n\nExample:",
                    "    >>> import evaluate",
                    "    >>> from lmctr.evaluation import evaluate_module_path",
                    f'    >>> metric = evaluate.load(evaluate_module_path("{self.name_}"))',
                    f"    >>> metric.compute({self.example})",
                    f"    {{'{self.name_}': {self.value}}}\n",
                ]
            ),
            features=features or datasets.Features({"predictions": kind, "references": kind}),
        )

    def compute(self, *, predictions: Any = None, references: Any = None, **values: Any) -> dict[str, float] | None:
        """As any module's; without inputs, those that were added before. In an `evaluate.combine`, which hands everything to all, what
        others of it take is left to them."""
        if self.inputs == "scores":  # ranks are the same
            values.pop("from_logits", None)
        for module in _combined(sys._getframe(1).f_locals.get("self")):
            for name in set(_names_of(module)) - set(_names_of(self)):
                values.pop(name, None)
        unknown = sorted(set(values) - set(_names_of(self)))
        inputs = {
            "predictions": predictions,
            "references": references,
            **{name: values.get(name) for name in self.extra},
        }
        if unknown:
            options = f"; its options: {', '.join(self.options)}" if self.options else ""
            raise TypeError(f"{self.name_} has no option {unknown[0]!r}{options}; its inputs: {', '.join(inputs)}")
        missing = [name for name, value in inputs.items() if value is None]
        if 0 < len(missing) < len(inputs):
            raise ValueError(
                f"{self.name_}: {missing[0]} not given; give all of {', '.join(inputs)}, or none after add_batch"
            )
        return super().compute(predictions=predictions, references=references, **values)

    def add_batch(self, *, predictions: Any = None, references: Any = None, **values: Any) -> None:
        """As any module's. Groups are kept as text: a column of whole numbers would round 1.5, and hold no text of a later batch."""
        if "groups" in values and predictions is not None:
            groups = metrics._check_groups(values["groups"], len(predictions))
            values["groups"] = list(map(str, groups.tolist()))
        super().add_batch(predictions=predictions, references=references, **values)

    def add(self, *, prediction: Any = None, reference: Any = None, **values: Any) -> None:
        """As any module's; groups as in `add_batch`."""
        values |= {"groups": str(values["groups"])} if values.get("groups") is not None else {}
        super().add(prediction=prediction, reference=reference, **values)

    def _compute(self, predictions: list, references: list, **values: Any) -> dict[str, float]:
        return {self.name_: getattr(metrics, self.name_)(references, predictions, **values)}


def _combined(caller: Any) -> list[evaluate.EvaluationModule]:
    """The modules of what calls, where that is an `evaluate.combine`: it tells a module nothing of the others, and calls it as anybody does, so
    that only the frame of its call names them."""
    return caller.evaluation_modules if isinstance(caller, evaluate.CombinedEvaluations) else []


def _names_of(module: evaluate.EvaluationModule) -> list[str]:
    """What a module takes besides predictions and references."""
    if isinstance(module, MetricModule):
        return [*module.options, *module.extra]
    return [
        name for name in inspect.signature(module._compute).parameters if name not in ("predictions", "references")
    ]
