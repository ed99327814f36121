"""`lmctr init` and `lmctr train FILE --model FAMILY` on rows of clicks without users, items and times."""

import json

import numpy as np
import pytest
import yaml

from lmctr.cli.main import main
from lmctr.runs.options import TrainOptions
from lmctr.runs.starting import recipe_for_file

ROWS = 1200


@pytest.fixture
def clicks(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    site, slot, visits = rng.integers(0, 40, ROWS), rng.integers(0, 5, ROWS), rng.integers(0, 60, ROWS)
    clicked = rng.random(ROWS) < 1 / (1 + np.exp(2 - (site % 4) - visits / 30))
    rows = np.column_stack([clicked.astype(int), site, slot, visits])
    lines = [",".join(map(str, row)) for row in rows]
    (tmp_path / "clicks.csv").write_text("\n".join(["click,site,slot,visits", *lines]) + "\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_from_a_file_of_clicks_to_a_scored_file(clicks, capsys):
    assert main(["init", "clicks.csv", "--yes"]) == 0
    told = capsys.readouterr().out
    assert "rows of a table" in told
    assert "lmctr train clicks/deepfm.yaml" in told
    assert sorted(path.name for path in (clicks / "clicks").iterdir()) == ["deepfm.yaml", "schema.yaml"]
    few = ["--training.epochs", "2", "--training.use_cpu", "true"]
    assert main(["train", "clicks/deepfm.yaml", "--output-dir", "runs/one", *few]) == 0
    assert main(["train", "clicks.csv", "--model", "deepfm", "--output-dir", "runs/two", *few]) == 0
    one, two = (json.loads((clicks / f"runs/{name}/metrics.json").read_text()) for name in ("one", "two"))
    assert one["split metrics"] == two["split metrics"]
    assert set(one["baselines"]) == {"field_counting", "field_gradient_boosting"}
    assert main(["predict", "runs/one", "--input", "clicks.csv", "--output", "scores.csv"]) == 0
    assert len((clicks / "scores.csv").read_text().splitlines()) == ROWS + 1


def test_only_tabular_families_read_a_table(clicks):
    recipe = recipe_for_file(TrainOptions(recipe="clicks.csv", model="dcnv2"), say=lambda line: None)
    assert recipe["data"]["split"] == "random"
    assert [field["name"] for field in recipe["data"]["options"]["fields"]] == [
        "site",
        "site_number",
        "slot",
        "visits",
        "visits_number",
    ]
    with pytest.raises(ValueError, match=r"clicks.csv: no column looks like the time.*--model deepfm"):
        recipe_for_file(TrainOptions(recipe="clicks.csv", model="din"))


def test_rows_with_a_time_are_parted_by_it(clicks):
    lines = (clicks / "clicks.csv").read_text().splitlines()
    timed = [f"{line},{'ts' if not place else 1_700_000_000 + place}" for place, line in enumerate(lines)]
    (clicks / "timed.csv").write_text("\n".join(timed) + "\n")
    assert main(["init", "timed.csv", "--yes", "--output", "out"]) == 0
    schema = yaml.safe_load((clicks / "out/schema.yaml").read_text())
    assert (schema["files"], schema["label"], schema["time"]) == ("../timed.csv", "click", {"column": "ts"})
    assert yaml.safe_load((clicks / "out/deepfm.yaml").read_text())["data"]["split"] == "time"
