"""Tabular families on the Hub: pushed to a stand-in, loaded back, and scored on a raw CSV through the loaded processor."""

import json
import re

import numpy as np
import pytest
import torch
import yaml
from hub_server import HubServer
from safetensors.torch import load_file
from small_families import SMALL
from test_publish import client

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.hub.model_card import build_card
from lmctr.models.families import families
from lmctr.runs.examples import example_batch
from lmctr.runs.folder import open_run

TABULAR = [family.model_type for family in families("tabular")]

LOAD = """
import json, sys
import torch
from safetensors.torch import save_file
import lmctr
from lmctr.data.tables.source import rows_of
from transformers import AutoFeatureExtractor, AutoModel, AutoProcessor

result, names = {}, {}
rows, out = sys.argv[1:3]
for repo in sys.argv[3:]:
    model = lmctr.AutoModelForCTR.from_pretrained(repo).eval()
    processor = AutoProcessor.from_pretrained(repo)
    assert AutoFeatureExtractor.from_pretrained(repo).fingerprint == processor.fingerprint == model.config.processor_fingerprint
    (block,) = rows_of(rows, processor.input_columns())
    with torch.no_grad():
        result[repo] = model(**processor(block)).logits
    names[repo] = [type(model).__name__, type(AutoModel.from_pretrained(repo)).__name__, type(processor).__name__]
save_file(result, out)
print(json.dumps(names))
"""


@pytest.fixture(scope="module")
def shop(tmp_path_factory):
    """A raw CSV and its schema: texts, numbers with gaps, times and lists."""
    folder = tmp_path_factory.mktemp("shop")
    rng = np.random.default_rng(0)
    lines = ["user,ad,price,hour,seen,click"]
    for _ in range(600):
        user, ad = rng.integers(0, 40), rng.integers(0, 25)
        seen = " ".join(f"ad{number}" for number in rng.integers(0, 25, rng.integers(0, 4)))
        price = "" if rng.random() < 0.1 else f"{rng.lognormal():.2f}"
        click = int(rng.random() < 1 / (1 + np.exp(-(ad % 5 - 2))))
        lines.append(f"u{user},ad{ad},{price},{1_500_000_000 + 3600 * rng.integers(0, 500)},{seen},{click}")
    (folder / "shop.csv").write_text("\n".join(lines) + "\n")
    (folder / "new.csv").write_text("\n".join([lines[0], *lines[1:40], "u999,,,1500000000,ad3 ad999,0"]) + "\n")
    schema = {
        "name": "shop",
        "files": "shop.csv",
        "label": "click",
        "group": "user",
        "fields": [
            {"name": "user", "type": "categorical"},
            {"name": "ad", "type": "categorical"},
            {"name": "hour", "type": "categorical", "extract": "hour"},
            {"name": "price_bin", "type": "numeric", "column": "price", "transform": "quantile", "num_bins": 5},
            {"name": "price", "type": "numeric", "transform": "log1p"},
            {"name": "price_again", "type": "numeric", "column": "price", "transform": "standardize"},
            {"name": "price_raw", "type": "numeric", "column": "price"},
            {"name": "seen", "type": "sequence", "separator": " ", "max_length": 3, "share_with": "ad"},
        ],
    }
    (folder / "shop.yaml").write_text(yaml.safe_dump(schema))
    return folder


@pytest.fixture(scope="module")
def runs(shop, tmp_path_factory):
    """A run of each family."""
    folder = tmp_path_factory.mktemp("runs")
    for family in TABULAR:
        recipe = {
            "data": {"name": str(shop / "shop.yaml"), "baselines": False, "cache_dir": str(folder / "cache")},
            "model": {"family": family, "embedding_dim": 4, **SMALL[family]},
            "training": {"stage2_epochs": 1, "learning_rate": 1e-2, "use_cpu": True},
        }
        (folder / f"{family}.yaml").write_text(yaml.safe_dump(recipe))
        assert main(["train", str(folder / f"{family}.yaml"), "--output_dir", str(folder / family)]) == 0
    return folder


@pytest.mark.slow
def test_every_family_scores_a_raw_csv_after_a_push(runs, shop, tmp_path):
    with HubServer() as hub:
        for family in TABULAR:
            done = client(hub.url, tmp_path, "-m", "lmctr", "push", str(runs / family), f"tester/{family}")
            assert done.returncode == 0, done.stderr
            files = {"config.json", "model.safetensors", "preprocessor_config.json", "README.md", ".gitattributes"}
            files |= {"lmctr_manifest.json", "lmctr_remote.py"}
            side = {"tabular_vocabularies.parquet", "tabular_numbers.safetensors"}
            assert set(hub.files(f"tester/{family}")) == files | side
        out = tmp_path / "loaded.safetensors"
        names = [f"tester/{family}" for family in TABULAR]
        done = client(hub.url, tmp_path, "-c", LOAD, str(shop / "new.csv"), str(out), *names)
        assert done.returncode == 0, done.stderr
    loaded = load_file(out)
    types = json.loads(done.stdout.splitlines()[-1])
    for family in TABULAR:
        scores = runs / family / "scores.jsonl"
        assert main(["predict", str(runs / family), "--input", str(shop / "new.csv"), "--output", str(scores)]) == 0
        own = torch.tensor([json.loads(line)["logit"] for line in scores.read_text().splitlines()])
        assert len(own) == 40
        torch.testing.assert_close(loaded[f"tester/{family}"], own, rtol=0, atol=1e-6)
        model, base, processor = types[f"tester/{family}"]
        assert (model, base) == (f"{model.removesuffix('ForCTR')}ForCTR", f"{model.removesuffix('ForCTR')}Model")
        assert processor == "TabularFeatureProcessor"


@pytest.mark.parametrize("family", TABULAR)
def test_cards_show_an_example_that_runs(runs, family, monkeypatch):
    folder = open_run(runs / family, "model")
    processor = TabularFeatureProcessor.from_pretrained(folder.path)
    batch = example_batch(folder, processor)
    with torch.no_grad():
        logits = lmctr.AutoModelForCTR.from_pretrained(folder.path).eval()(**batch).logits
    assert logits.shape == (2,)
    assert torch.isfinite(logits).all()
    assert batch["input_ids"][0, 1] > 1  # a value that the processor knows
    assert batch["input_ids"][0, 0] == 1  # the user of the example is nobody in the data
    card = build_card(folder.path)
    assert "tabular-classification" in card
    assert "4 categorical" in card
    monkeypatch.chdir(folder.path)
    scope = {}
    exec(re.search(r"```python\n(.*?)```", card, re.DOTALL).group(1), scope)
    assert 0 < float(scope["probability"]) < 1


def test_every_tabular_family_of_the_library_can_be_named_in_a_recipe():
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    from lmctr.models.common.configuration import TabularCTRConfig

    found = [name for name in lmctr.list_models() if issubclass(CONFIG_MAPPING[name], TabularCTRConfig)]
    assert sorted(found) == sorted(TABULAR) == sorted(SMALL.keys() & set(found))
