"""Runs: training by a recipe, measuring, loading. Every verb of the command line that trains or reads a model stands on this.

```python
>>> run = lmctr.runs.train("ctr_sink/quickstart", overrides={"training.stage2_epochs": 1})
>>> run.metrics["test"]["auc"]
>>> run = lmctr.runs.load("runs/quickstart")     # or another folder that from_pretrained reads, or a Hub id
>>> run.score(history, candidates, time)
```

- [`train`]: a recipe (file, shipped name, or dict of groups) to a run folder.
- [`load`]: a [`Run`] from a folder or the Hugging Face Hub.
- [`evaluate`]: metrics of a run on a part of its data, or of other data.
- [`Recipe`]: a checked recipe.
"""

from __future__ import annotations

from lmctr.utils.lazy import lazy_names

# The modules bear other names than the functions, which importing them would hide.
_PLACES = {
    "Recipe": "lmctr.runs.recipe",
    "Run": "lmctr.runs.run",
    "evaluate": "lmctr.runs.evaluation",
    "load": "lmctr.runs.run",
    "train": "lmctr.runs.training",
}
__all__ = ["Recipe", "Run", "evaluate", "load", "train"]
__getattr__, __dir__ = lazy_names(__name__, _PLACES)
