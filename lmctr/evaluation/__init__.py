"""Evaluation: exact CTR metrics, the metrics dict of a run, baselines and significance tests."""

from __future__ import annotations

from pathlib import Path

__all__ = ["evaluate_module_path", "list_evaluate_modules"]

_MODULES = Path(__file__).parent / "evaluate_modules"


def list_evaluate_modules() -> list[str]:
    """Names that `evaluate_module_path` takes."""
    return sorted(path.parent.name for path in _MODULES.glob("*/*.py") if path.stem == path.parent.name)


def evaluate_module_path(name: str) -> str:
    """Path of a metric module for `evaluate.load`.

    Args:
        name: one of `list_evaluate_modules()`: "auc", "expected_calibration_error", "grouped_auc", "log_loss", "ndcg",
            "normalized_entropy", "ordered_pair_accuracy", "recall_at", "revenue_ratio".

    Raises:
        ValueError: an unknown name.

    Example:
        >>> import evaluate
        >>> evaluate.load(evaluate_module_path("auc")).compute(predictions=[0.1, 0.8], references=[0, 1])
        {'auc': 1.0}
    """
    if name not in list_evaluate_modules():
        raise ValueError(f"unknown evaluate module {name!r}; known modules: {', '.join(list_evaluate_modules())}")
    return str(_MODULES / name / f"{name}.py")
