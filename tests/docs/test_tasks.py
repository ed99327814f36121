"""docs/tasks/export.md and retrieve.md: the commands and the Python of the pages, with a run of the recipe that they name."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest

from lmctr.cli.main import main
from lmctr.serving import SplitRetrievalModel

PAGES = Path(__file__).resolve().parents[2] / "docs" / "tasks"
PAGE = (PAGES / "export.md").read_text()
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


def test_the_page_of_retrieval_as_written(tmp_path, monkeypatch):
    page = (PAGES / "retrieve.md").read_text()
    monkeypatch.chdir(tmp_path)
    (command,) = re.findall(r"```bash\n(.*?)\n```", page)
    short = ["--data.options", "{num_impressions: 600}", "--data.baselines", "false", "--training.use_cpu", "true"]
    assert main([*shlex.split(command)[1:], *short]) == 0
    exec("\n".join(re.findall(r"```python\n(.*?)```", page, flags=re.S)), scope := {})
    run, index, ads = scope["run"], scope["index"], {ad["ad_id"]: ad for ad in scope["ads"]}
    assert len(index.keys) == 998
    scores = run.predict([{"user": scope["users"][0], "ads": [ads[key] for key in index.keys]}])
    np.testing.assert_allclose(scope["scores"][0], scores, atol=1e-5)
    assert scope["best"] == [index.keys[place] for place in np.argsort(-scores)[:10]]
    again = SplitRetrievalModel.from_pretrained("index")
    assert again.keys == index.keys
