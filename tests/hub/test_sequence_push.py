"""Sequence families on the Hub: pushed to a stand-in, loaded back, and scored on raw events through the loaded processor."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch
import yaml
from hub_server import HubServer
from safetensors.torch import load_file
from small_families import SMALL
from test_publish import client

import lmctr
from lmctr.cli.main import main
from lmctr.data.processors.sequence import SequenceProcessor
from lmctr.hub.model_card import build_card
from lmctr.models.families import families
from lmctr.runs.examples import _event_rows, _history_call, example_batch
from lmctr.runs.folder import open_run
from lmctr.runs.loading import load_run

SEQUENCE = [family.model_type for family in families("sequence")]
FAST = ["astro", "hstu"]
ALL = [family if family in FAST else pytest.param(family, marks=pytest.mark.slow) for family in SEQUENCE]

LOAD = """
import json, sys
import torch
from safetensors.torch import save_file
import lmctr
from transformers import AutoModel, AutoProcessor

result, names = {}, {}
requests, out = sys.argv[1:3]
for repo in sys.argv[3:]:
    model = lmctr.AutoModelForCTR.from_pretrained(repo).eval()
    processor = AutoProcessor.from_pretrained(repo)
    assert processor.fingerprint == model.config.processor_fingerprint
    rows = json.loads(open(requests).read())
    with torch.no_grad():
        result[repo] = model(**processor(**rows, return_tensors="pt")).logits
    names[repo] = [type(model).__name__, type(AutoModel.from_pretrained(repo)).__name__, type(processor).__name__]
save_file(result, out)
print(json.dumps(names))
"""
ROWS = {
    "histories": [[{"item": 3, "behavior": "like", "scenario": "search", "time": 1_600_000_000}], []],
    "candidates": [[4, 5, 99999], [7]],
    "times": [1_600_000_500, 1_600_000_500],
    "scenarios": ["home", "search"],
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder, made = tmp_path_factory.mktemp("runs"), {}

    def get(family):
        if family not in made:
            recipe = {
                "data": {
                    "name": "synthetic_sequence",
                    "options": {"num_users": 20, "num_items": 20, "events_per_user": 40},
                    "candidates_per_row": 3,
                    "item_features": ["genres"],
                    "baselines": False,
                },
                "model": {"family": family, **SMALL[family]},
                "training": {"stage2_epochs": 1, "use_cpu": True},
            }
            (folder / f"{family}.yaml").write_text(yaml.safe_dump(recipe))
            assert main(["train", str(folder / f"{family}.yaml"), "--output_dir", str(folder / family)]) == 0
            made[family] = folder / family
        return made[family]

    return get


@pytest.mark.slow
def test_every_family_scores_raw_events_after_a_push(trained, tmp_path):
    requests = tmp_path / "rows.json"
    requests.write_text(json.dumps(ROWS))
    with HubServer() as hub:
        for family in SEQUENCE:
            done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(trained(family)), f"tester/{family}")
            assert done.returncode == 0, done.stderr
            files = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md", ".gitattributes"}
            files |= {"lmctr_manifest.json", "lmctr_remote.py"}
            assert set(hub.files(f"tester/{family}")) == files | {
                "sequence_items.parquet",
                "sequence_features.parquet",
            }
        out = tmp_path / "loaded.safetensors"
        done = client(hub.url, tmp_path, "-c", LOAD, str(requests), str(out), *(f"tester/{f}" for f in SEQUENCE))
        assert done.returncode == 0, done.stderr
    loaded, types = load_file(out), json.loads(done.stdout.splitlines()[-1])
    for family in SEQUENCE:
        model, processor = load_run(trained(family))
        with torch.no_grad():
            own = model(**processor(**ROWS)).logits
        torch.testing.assert_close(loaded[f"tester/{family}"], own, rtol=0, atol=1e-6)
        assert types[f"tester/{family}"][2] == "SequenceProcessor"
        assert types[f"tester/{family}"][0] == type(model).__name__


@pytest.mark.parametrize("family", ALL)
def test_cards_show_an_example_that_runs(trained, family, monkeypatch):
    folder = open_run(trained(family), "model")
    batch = example_batch(folder, SequenceProcessor.from_pretrained(folder.path))
    with torch.no_grad():
        logits = lmctr.AutoModelForCTR.from_pretrained(folder.path).eval()(**batch).logits
    assert logits.shape == (2, 1)
    assert torch.isfinite(logits).all()
    assert (batch["history_items"][0] > 1).all()  # items that the processor knows
    card = build_card(folder.path)
    assert "full-play, like" in card
    assert "| Items | 20 known items |" in card
    if family == "astro":
        assert "like (behaviors like)" in card
        assert "Its blocks hold 20 events in all" in card
    monkeypatch.chdir(folder.path)
    scope = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL).group(1), scope)
    assert 0 < float(scope["probability"]) < 1


def test_another_runs_processor_is_refused(trained, tmp_path):
    """Ids mean nothing without the vocabulary that the model was trained with."""
    import shutil

    from lmctr.data import load_log, split_log

    folder = tmp_path / "mixed"
    shutil.copytree(trained("astro"), folder, ignore=shutil.ignore_patterns("checkpoints"))
    log = load_log("synthetic_sequence", num_users=20, num_items=25, events_per_user=40)
    SequenceProcessor.fit(log, split_log(log).train, item_features=["genres"]).save_pretrained(folder)
    with pytest.raises(ValueError, match="processor of the fingerprint"):
        load_run(folder)


def test_statistics_of_the_cards_example_are_unknown(tmp_path):
    processor = SimpleNamespace(items={"item_id": pa.array([1])}, behavior_names=["like"], scenario_names=["home"])
    processor.user_feature_names, processor.statistics = (), ("user_count", "user_rate")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SequenceProcessor, "from_pretrained", lambda path: processor)
        rows = _event_rows(SimpleNamespace(path=tmp_path))
    assert np.isnan(rows["statistics"]).all()  # as the card says of numbers that are not known
    assert 'statistics=[[[float("nan")] * 2]]' in _history_call({key: rows[key][:1] for key in rows})
