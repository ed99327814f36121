"""A grid of runs that read event sequences: points, tests between them, and the cost of the models in the report."""

import json

import yaml
from sequence_runs import recipe_of

from lmctr.cli.main import main


def test_grid_of_families(tmp_path, capsys):
    (tmp_path / "astro.yaml").write_text(yaml.safe_dump(recipe_of("astro")))
    grid = {
        "name": "small",
        "recipe": "astro.yaml",
        "output_dir": str(tmp_path / "runs"),
        "seeds": [0],
        "compare_to": "astro",
        "set": {"training.stage2_epochs": 1},
        "points": [
            {"name": "astro"},
            {"name": "no_msp", "label": "-MSP", "set": {"model.use_partitioning": False}},
        ],
    }
    (tmp_path / "grid.yaml").write_text(yaml.safe_dump(grid))
    assert main(["grid", "run", str(tmp_path / "grid.yaml")]) == 0
    capsys.readouterr()
    assert (
        main(
            ["grid", "report", str(tmp_path / "grid.yaml"), "--output", str(tmp_path / "report"), "--resamples", "100"]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "| FLOPs per sample | training samples/s |" in printed
    own = json.loads((tmp_path / "runs" / "no_msp" / "seed-0" / "metrics.json").read_text())
    row = next(line for line in printed.splitlines() if line.startswith("| -MSP"))
    assert f"{float(format(own['flops_per_sample'], '.3g')):,.0f}" in row
    assert "flops_per_sample" in (tmp_path / "report" / "small.csv").read_text().splitlines()[0]
