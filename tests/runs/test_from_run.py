"""`lmctr train RECIPE --from RUN`: the next day goes on where the last one ended."""

import numpy as np
import pytest
import torch
import yaml
from optimisers import steps_at_best, steps_in
from safetensors.torch import load_file

import lmctr
from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor

OPTIONS = {"num_rows": 3000, "num_categorical": 3, "num_numeric": 2, "num_pairs": 1, "vocab_size": 200, "drift": 0.3}
RECIPE = {
    "data": {
        "name": "synthetic_table",
        "options": OPTIONS,
        "features": {"categorical": {"max_idle": 1}},
        "baselines": False,
    },
    "model": {"family": "dnn", "embedding_dim": 4, "hidden_units": [16], "initializer_range": 0.1},
    "training": {"epochs": 1, "learning_rate": 1e-2, "per_device_train_batch_size": 128, "use_cpu": True, "seed": 0},
}
STILL = {"data.options.day": 1, "training.learning_rate": 0.0, "training.weight_decay": 0.0}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """A finished run of day 0. Read it only."""
    return lmctr.runs.train(RECIPE, output_dir=tmp_path_factory.mktemp("run") / "day0")


@pytest.fixture(scope="module")
def second(first, tmp_path_factory):
    """Day 1 from day 0, at a learning rate of 0: the weights are those that it began with."""
    folder = tmp_path_factory.mktemp("run") / "day1"
    return lmctr.runs.train(RECIPE, output_dir=folder, overrides={**STILL, "training.from_run": str(first.path)})


def vectors(run):
    """By field and value, the row of its table."""
    processor = TabularFeatureProcessor.from_pretrained(run.path)
    table = load_file(run.path / "model.safetensors")["model.embedding.groups.4.table.weight"]
    start, found = 0, {}
    for name, size in zip(["C1", "C2", "C3"], processor.model_config_values()["vocab_sizes"]):
        values = processor.state.vocabularies[name].values.to_pylist()
        found |= {(name, value): table[start + 2 + place] for place, value in enumerate(values)}
        start += size
    assert start == len(table)
    return found


def test_values_keep_their_vectors_and_new_ones_get_some(first, second):
    before, after = vectors(first), vectors(second)
    both = set(before) & set(after)
    assert len(both) > 20
    assert len(set(after) - set(before)) > 5
    assert len(set(before) - set(after)) > 5  # max_idle
    for key in both:
        torch.testing.assert_close(after[key], before[key], atol=0, rtol=0)
    new = torch.stack([after[key] for key in set(after) - set(before)])
    assert 0.05 < new.std() < 0.15
    old_weights, new_weights = (load_file(run.path / "model.safetensors") for run in (first, second))
    name = "model.mlp.layers.0.linear.weight"
    torch.testing.assert_close(new_weights[name], old_weights[name], atol=0, rtol=0)


def test_the_optimiser_goes_on_too(first, second):
    assert steps_at_best(first) == {first.metrics["best_step"]}
    assert steps_at_best(second) == {first.metrics["best_step"] + second.metrics["best_step"]}


def test_after_a_refit_its_optimiser_goes_on(tmp_path, capsys):
    recipe = {**RECIPE, "training": {**RECIPE["training"], "refit": True}}
    before = lmctr.runs.train(recipe, output_dir=tmp_path / "day0")
    steps = steps_in(before.path / "checkpoints" / "refit")
    assert steps == {before.metrics["steps"]} != {before.metrics["before_refit"]["steps"]}
    overrides = {**STILL, "training.from_run": str(before.path), "training.refit": False}
    after = lmctr.runs.train(recipe, output_dir=tmp_path / "day1", overrides=overrides)
    assert f"optimiser state of {before.path / 'checkpoints' / 'refit'}" in capsys.readouterr().out
    assert steps_at_best(after) == {before.metrics["steps"] + after.metrics["best_step"]}


@pytest.mark.parametrize("decays", [(0.1, 0.0), (0.0, 0.1)])
def test_an_optimiser_of_rows_goes_on_with_another_weight_decay(tmp_path, decays):
    """Its state is kept in the order of its parameters, which is one of any decay."""
    training = {**RECIPE["training"], "embedding_optimizer": "lazy_adam"}
    recipes = [{**RECIPE, "training": {**training, "weight_decay": decay}} for decay in decays]
    before = lmctr.runs.train(recipes[0], output_dir=tmp_path / "day0", quiet=True)
    overrides = {"data.options.day": 1, "training.from_run": str(before.path)}
    after = lmctr.runs.train(recipes[1], output_dir=tmp_path / "day1", overrides=overrides, quiet=True)
    assert max(steps_at_best(after)) == before.metrics["best_step"] + after.metrics["best_step"]


def test_it_evaluates_and_predicts_by_itself(second, capsys):
    assert main(["evaluate", str(second.path)]) == 0
    rows = [{"C1": 0, "C2": 1, "C3": 2, "I1": 1.0, "I2": 2.0}]
    assert np.isfinite(second.predict(rows)).all()


def test_the_command_line_says_what_it_does(first, tmp_path, capsys):
    (tmp_path / "day.yaml").write_text(yaml.safe_dump(RECIPE))
    words = ["train", str(tmp_path / "day.yaml"), "--from", str(first.path), "--output-dir", str(tmp_path / "run")]
    assert main([*words, "--data.options.day", "1", "--training.from_optimizer", "false"]) == 0
    said = capsys.readouterr().out
    assert f"going on from {first.path}: values of C1 " in said
    assert "optimiser state" not in said
    assert lmctr.runs.load(tmp_path / "run").recipe.training["from_run"] == str(first.path)


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        ({"model.family": "deepfm"}, "holds a model of the type dnn, the recipe makes one of the type deepfm"),
        ({"model.hidden_units": [8]}, r"linear.weight has shape \(8, .*shape \(16, "),
        ({"data.features": {"categorical": {"hash_buckets": 9}}}, "field 'C1' is .*hash_buckets.*may change"),
        ({"training.embedding_optimizer": "lazy_adam"}, "another optimiser"),
        ({"training.from_run": "nowhere"}, "nowhere"),
    ],
)
def test_what_cannot_go_on_is_refused(first, tmp_path, overrides, words):
    overrides = {"training.from_run": str(first.path), "data.options.day": 1, **overrides}
    with pytest.raises((ValueError, FileNotFoundError), match=words):
        lmctr.runs.train(RECIPE, output_dir=tmp_path / "run", overrides=overrides)


def test_only_runs_of_the_same_kind_go_on(first, tmp_path):
    recipe = {"data": {"name": "synthetic"}, "model": {"family": "din"}, "training": {"from_run": str(first.path)}}
    with pytest.raises(
        ValueError, match="holds a model of the type dnn, the recipe makes one of the type din; give a run of that"
    ):
        lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    recipe["model"] = {"family": "dnn"}
    with pytest.raises(ValueError, match=r"has no log_statistics\.json, and 'synthetic' is an interaction log"):
        lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    recipe = {**recipe, "data": {"name": "synthetic_cascade"}, "model": {"family": "two_tower"}}
    with pytest.raises(
        ValueError, match="'synthetic_cascade' is read as another kind of data: train anew, on a file that"
    ):
        lmctr.runs.train(recipe, output_dir=tmp_path / "run")


def test_a_newer_file_is_read_as_the_run_read_its_own(tmp_path, capsys):
    """Even where its columns, looked at by themselves, would be taken for others."""
    rng = np.random.default_rng(0)
    days = [tmp_path / "monday.csv", tmp_path / "tuesday.csv"]
    for day, devices in zip(days, (["phone", "tablet"], ["phone"])):
        rows = [f"{rng.integers(20):03d},{rng.choice(devices)},{rng.choice(['yes', 'no'])}\n" for _ in range(600)]
        day.write_text("ad,device,clicked\n" + "".join(rows))
    assert (
        main(["train", str(days[0]), "--model", "dnn", "--output-dir", str(tmp_path / "a"), "--training.epochs", "1"])
        == 0
    )
    words = ["train", str(days[1]), "--from", str(tmp_path / "a"), "--output-dir"]
    assert main([*words, str(tmp_path / "b")]) == 0
    said = capsys.readouterr().out
    assert f"tuesday.csv: read and trained on as {days[0]} was" in said
    assert "going on from" in said
    recipe = lmctr.runs.load(tmp_path / "b").recipe
    assert recipe.data["name"] == str(days[1])
    assert [field["name"] for field in recipe.data["options"]["fields"]] == ["ad", "device"]
    assert main([*words, str(tmp_path / "c"), "--model", "deepfm"]) == 2
    assert "is a run of dnn" in capsys.readouterr().err
    assert main(["train", str(days[1]), "--from", str(tmp_path), "--output-dir", str(tmp_path / "d")]) == 2
    assert "no run that was trained on a data file" in capsys.readouterr().err
    assert main(["train", str(days[1]), "--from", str(tmp_path / "gone"), "--output-dir", str(tmp_path / "d")]) == 2
    assert f"--from {tmp_path / 'gone'}: there is no such run folder" in capsys.readouterr().err


def test_new_columns_and_a_moved_share_of_trees_are_told(tmp_path, capsys, monkeypatch):
    rng = np.random.default_rng(0)
    numbers = rng.normal(size=600)
    clicked = (numbers + rng.normal(size=600) > 0) * 1
    for name, more in (("monday", []), ("tuesday", ["page", "hour"]), ("wednesday", ["page", "hour"])):
        rows = [f"{x:.3f},{y}{',7' * len(more)}\n" for x, y in zip(numbers, clicked)]
        (tmp_path / f"{name}.csv").write_text(",".join(["price", "clicked", *more]) + "\n" + "".join(rows))

    def said(day, before, share, *words):
        words = [*words, "--training.boosting_share", share, "--training.max_steps", "2", "--data.baselines", "false"]
        words += ["--from", str(tmp_path / before)] if before else []
        capsys.readouterr()
        assert main(["train", str(tmp_path / f"{day}.csv"), *words, "--output-dir", str(tmp_path / day)]) == 0
        return capsys.readouterr().out

    said("monday", None, "0.2", "--model", "dnn", "--data.max_train_samples", "100")
    second = said("tuesday", "monday", "0.9")
    assert f"by the recipe of {tmp_path / 'monday'}; that recipe reads no column page, hour: train anew" in second
    assert "going on from" in second
    assert "boosting_share 0.2 -> 0.9, which moves probabilities of known rows by itself" in second
    third = said("wednesday", "tuesday", "0.9")
    assert "reads no column" not in third  # told of the day before
    assert "->" not in third
    auto = said("monday", "tuesday", "auto", "--overwrite")
    assert "reads no column" not in auto
    chosen = lmctr.runs.load(tmp_path / "monday").metrics["boosting_share"]
    assert chosen != 0.9
    begun, chose = [line for line in auto.splitlines() if "going on from" in line or "boosting_share auto" in line]
    assert "->" not in begun
    assert f"auto: {chosen:g}{' (the trees alone)' * (chosen == 1)}, by the log loss on validation; " in chose
    assert f"; {tmp_path / 'tuesday'} had another: boosting_share 0.9 -> {chosen:g}, " in chose
    for share, alone in ((0.0, "0 (the network alone)"), (1.0, "1 (the trees alone)")):
        monkeypatch.setattr("lmctr.runs.training.choose_share", lambda *_, share=share: share)
        assert f"auto: {alone}, by the log loss" in said("monday", "tuesday", "auto", "--overwrite")


def test_a_column_that_is_gone_is_told_and_may_be_empty(tmp_path):
    rng, columns = (
        np.random.default_rng(0),
        {"fields": [{"name": name, "type": "categorical"} for name in ("ad", "device")]},
    )
    rows = [(rng.integers(20), rng.choice(["phone", "tablet"]), rng.integers(2)) for _ in range(600)]

    def recipe(name, header, written, fields=columns):
        (tmp_path / f"{name}.csv").write_text(
            "\n".join([header, *(",".join(map(str, row)) for row in written)]) + "\n"
        )
        schema = {"name": "days", "files": f"{name}.csv", "label": "clicked", **fields}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(schema))
        return {**RECIPE, "data": {"name": str(tmp_path / f"{name}.yaml"), "baselines": False}}

    run = lmctr.runs.train(recipe("first", "ad,device,clicked", rows), output_dir=tmp_path / "a")
    on = {"overrides": {"training.from_run": str(run.path)}, "output_dir": tmp_path / "b"}
    bare = [(ad, clicked) for ad, _, clicked in rows]
    with pytest.raises(
        ValueError, match=r"no column 'device'.* goes on from .*leave another that is no longer known empty"
    ):
        lmctr.runs.train(recipe("lost", "ad,clicked", bare), **on)
    fewer = {"fields": columns["fields"][:1]}
    with pytest.raises(
        ValueError, match="field 'device', which the earlier processor reads, is missing here: keep it"
    ):
        lmctr.runs.train(recipe("fewer", "ad,clicked", bare, fewer), **on)
    more = {"fields": [*columns["fields"], {"name": "page", "type": "categorical"}]}
    with pytest.raises(ValueError, match="field 'page' is new: the earlier processor reads none"):
        lmctr.runs.train(recipe("more", "ad,device,page,clicked", [(*row[:2], 1, row[2]) for row in rows], more), **on)
    empty = lmctr.runs.train(recipe("empty", "ad,device,clicked", [(ad, "", clicked) for ad, clicked in bare]), **on)
    known = [TabularFeatureProcessor.from_pretrained(one.path).state.vocabularies["device"] for one in (run, empty)]
    assert known[0].values.to_pylist() == known[1].values.to_pylist()
    assert set(known[0].values.to_pylist()) == {"phone", "tablet"}
