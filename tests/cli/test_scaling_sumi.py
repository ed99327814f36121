"""`lmctr scaling sumi`: the plan of rows of several samples."""

import argparse
import csv
import json

import pytest

from lmctr.cli.options import add_options, read_options
from lmctr.studies.scaling import sumi as scaling_sumi
from lmctr.studies.scaling.options import SumiOptions

DATA = ["synthetic_sequence", "--options", "{num_users: 20, events_per_user: 40}"]


def arguments(*words):
    parser = argparse.ArgumentParser()
    add_options(parser, SumiOptions)
    args = parser.parse_args([*DATA, *words])
    args.command = "lmctr scaling " + " ".join(words)
    return read_options(SumiOptions, args)


def test_plan_is_printed_and_written(tmp_path, capsys):
    words = ("--degrees", "1", "2", "4", "--max-history-length", "30", "--output", str(tmp_path), "--hidden-size", "8")
    scaling_sumi.run(arguments(*words))
    plan = json.loads((tmp_path / "sumi.json").read_text())
    assert [point["num_candidates"] for point in plan["points"]] == [1, 2, 4]
    assert plan["points"][0]["measured_ratio"] > plan["points"][2]["measured_ratio"] > 0
    assert plan["data"] == "synthetic_sequence"
    assert plan["max_history_length"] == 30
    with open(tmp_path / "sumi.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["rows"]) for row in rows] == [point["rows"] for point in plan["points"]]
    assert (tmp_path / "sumi.png").stat().st_size > 1000
    printed = capsys.readouterr().out
    assert (
        f"Best N_c by measured size: {plan['best_by_bytes']}; by FLOPs of the rows: {plan['best_by_flops']}."
        in printed
    )


def test_a_window_gives_more_rows(capsys):
    def rows(*words):
        return scaling_sumi.plan_rows(arguments("--degrees", "4", *words)).plan.points[0].rows

    assert rows("--window-seconds", "86400") > rows()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--degrees", "0"), "--degrees must be whole numbers from 1"),
        (("--window-seconds", "-1"), "--window-seconds must be at least 0"),
        (("--layers", "0"), "--layers must be at least 1"),
        (("--options", "[1]"), "--options must be a mapping"),
        (("--options", "{num_user: 3}"), "did you mean 'num_users'"),
        (("--sequence-length", "3"), "a multiple of the 2 strategies"),
    ],
)
def test_bad_options(words, message):
    with pytest.raises(ValueError, match=message):
        scaling_sumi.run(arguments(*words))
