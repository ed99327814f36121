"""docs/tasks/export.md: the command and the Python of the page, with a run of the recipe that it names."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from lmctr.cli.main import main

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "tasks" / "export.md").read_text()
# A log that goes on behind the fixed second that other pages ask at.
SHORT = [
    "--data.options",
    "{num_users: 10, num_items: 40, events_per_user: 40, start_time: 1700000000}",
    "--data.baselines",
    "false",
]
SHORT += ["--data.max_train_samples", "300", "--data.max_eval_samples", "100", "--training.stage2_epochs", "1"]
SHORT += ["--training.use_cpu", "true", "--training.boosting_share", "0"]


@pytest.mark.slow
def test_the_export_page_as_written(tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    (recipe,) = set(re.findall(r"recipes/\S+?\.yaml", PAGE))
    (command,) = re.findall(r"```bash\n(.*?)\n```", PAGE)
    assert main(["train", recipe, "--output_dir", "runs/din", *SHORT]) == 0
    assert main(shlex.split(command)[1:]) == 0
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, flags=re.S)
    exec(code, scope := {})
    assert scope["logits"].shape == (1, 2)
    assert np.isfinite(scope["logits"]).all()
    assert scope["time"] > 1_700_007_200
