"""Training from Python in the statements that README shows: from a table or a log to an evaluated, saved run in at most six."""

import ast
import inspect
import os
import random

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from datasets import Dataset
from tiny_backbones import TINY_BERT
from transformers import TrainerCallback
from transformers.utils.logging import get_verbosity, is_progress_bar_enabled

import lmctr
import lmctr.data
from lmctr.cli.main import main
from lmctr.data.logs.log import InteractionLog
from lmctr.hub.checks import validate_run
from lmctr.hub.model_card import build_card
from lmctr.runs.folder import open_run
from lmctr.utils.files import read_json

ROWS = 400


@pytest.fixture
def table(tmp_path):
    """A schema of 400 clicks of one's own."""
    rng = np.random.default_rng(0)
    ad, site = rng.integers(0, 20, ROWS), rng.integers(0, 5, ROWS)
    click = (rng.random(ROWS) < 0.2 + 0.6 * (ad < 10)).astype(int)
    lines = [f"{c},ad{a},site{s},{rng.random():.3f}" for c, a, s in zip(click, ad, site)]
    (tmp_path / "clicks.csv").write_text("click,ad,site,price\n" + "\n".join(lines) + "\n")
    (tmp_path / "clicks.yaml").write_text("name: clicks\nfiles: clicks.csv\nlabel: click\n")
    return tmp_path / "clicks.yaml"


def by_recipe(table, folder):
    recipe = {
        "data": {"name": str(table), "split": "random"},
        "model": {"family": "deepfm"},
        "training": {"epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=folder)
    return run.metrics["test"]


def by_trainer(table, folder):
    store = lmctr.data.TabularStore.build(lmctr.data.load_tabular(table))
    parts = {
        part: lmctr.data.TabularDataset(lmctr.data.TabularView(store), rows) for part, rows in store.splits.items()
    }
    trainer = lmctr.CTRTrainer(
        lmctr.DeepFMForCTR(lmctr.DeepFMConfig(**store.processor.model_config_values())),
        lmctr.CTRTrainingArguments(folder, stage2_epochs=1, use_cpu=True),
        data_collator=lmctr.data.TabularCollator(lmctr.data.TabularView(store)),
        train_dataset=parts["train"],
        eval_dataset=parts["validation"],
        processing_class=store.processor,
    )
    trainer.train()
    trainer.save_model()
    return trainer.evaluate(parts["test"], metric_key_prefix="test")


@pytest.mark.parametrize("way", [by_recipe, by_trainer])
def test_at_most_six_statements(way):
    assert len(ast.parse(inspect.getsource(way)).body[0].body) <= 6


def test_bars_of_transformers_are_shown_to_nobody_and_stay_as_they_were(table, tmp_path, capfd):
    by_recipe(table, tmp_path / "run")
    lmctr.runs.load(tmp_path / "run").evaluate("validation")
    told = capfd.readouterr().err
    assert "Loading weights" not in told
    assert "Writing model shards" not in told
    assert is_progress_bar_enabled()
    lmctr.AutoModelForCTR.from_pretrained(tmp_path / "run")
    assert "Loading weights" in capfd.readouterr().err


@pytest.mark.parametrize("way", [by_recipe, by_trainer])
def test_what_python_trains_every_verb_takes(way, table, tmp_path, capsys):
    folder = tmp_path / "run"
    measured = way(table, folder)
    run = lmctr.runs.load(folder)
    assert not list(folder.glob("*.bin"))
    assert open_run(folder, "model").config["processor_fingerprint"] == run.processor.fingerprint
    assert validate_run(folder).lines
    assert main(["card", str(folder), "--print"]) == 0
    assert main(["push", str(folder), "tester/deepfm", "--dry-run"]) == 0
    assert (
        main(
            ["predict", str(folder), "--input", str(table.with_suffix(".csv")), "--output", str(tmp_path / "o.jsonl")]
        )
        == 0
    )
    assert len((tmp_path / "o.jsonl").read_text().splitlines()) == ROWS
    capsys.readouterr()
    words = ["evaluate", str(folder), "--output", str(tmp_path / "metrics.json")]
    if way is by_trainer:
        assert main(words) == 2
        assert (
            "has no recipe.yaml, which would say what to measure on; give the data: --data.name NAME"
            in capsys.readouterr().err
        )
        words += ["--data.name", str(table)]
    assert main(words) == 0
    assert "test" in capsys.readouterr().out
    again = lmctr.runs.evaluate(folder, overrides={} if way is by_recipe else {"data.name": str(table)})
    expected = measured if way is by_recipe else {key: measured[f"test_{key}"] for key in again}
    assert again == pytest.approx(expected, abs=1e-6)
    rows = {"ad": ["ad3", "ad15"], "site": ["site1", "never seen"], "price": [0.5, 0.1]}
    assert run.predict(rows).shape == (2,)


def test_a_text_model_from_a_folder_is_measured_on_named_data(tmp_path):
    """`evaluate` needs no recipe where the data are named: the processor knows the rest."""
    recipe = {
        "data": {
            "name": "synthetic",
            "options": {"num_users": 40, "num_items": 60, "events_per_user": 20},
            "baselines": False,
        },
        "model": {
            "backbone": TINY_BERT,
            "tokenizer": {"type": "wordpiece", "vocab_size": 300},
        },
        "training": {"stage1_epochs": 0, "stage2_epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in open_run(run.path, "model").upload_files():
        (bare / name).write_bytes((run.path / name).read_bytes())
    overrides = {f"data.{key}": recipe["data"][key] for key in ("name", "options")}
    assert lmctr.runs.load(bare).evaluate(overrides=overrides) == pytest.approx(run.evaluate(), abs=1e-6)
    with pytest.raises(ValueError, match="the run was trained with its own value"):
        lmctr.runs.evaluate(bare, overrides={**overrides, "model.sink_kind": "none"})


def test_graded_feedback_is_learnt_kept_and_asked_for(tmp_path):
    """Stars as words: the levels come from the training part, the run keeps them, a request gives `value` and scores alike."""
    word = [{"name": name, "word": "{value} stars ", "header": ""} for name in ("disliked", "liked")]
    recipe = {
        "data": {
            "name": "synthetic",
            "options": {"num_users": 40, "num_items": 60, "events_per_user": 20, "stars": True},
            "prompt": {"base": "generic/en", "feedback": word},
            "feedback": "inline",
            "num_behaviors": 4,
            "baselines": False,
        },
        "model": {
            "backbone": TINY_BERT,
            "tokenizer": {"type": "wordpiece", "vocab_size": 300},
            "sink_signal": ["recency", "feedback_value"],
        },
        "training": {"stage1_epochs": 0, "stage2_epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert run.processor.value_levels == [step / 2 for step in range(1, 11)]
    assert {"0", "5", "stars"} <= set(run.processor.tokenizer.get_vocab()), "the tokenizer has seen the words' values"
    log = lmctr.data.load(recipe["data"]["name"], **recipe["data"]["options"])
    rows = pq.read_table(run.path / "predictions" / "test.parquet").to_pylist()
    texts, names = run.processor.item_texts(log.catalogue), run.processor.prompt.feedback_names
    for row in rows[:5]:
        history = [
            {"text": texts[log.item[e]], "time": int(log.time[e])}
            | {"feedback": names[log.feedback[e]], "value": float(log.feedback_values[e])}
            for e in range(*map(int, np.ravel(log.history_bounds([row["event"]]))))
        ]
        logit = run.score(history, [texts[log.item[row["event"]]]], row["time"])
        assert logit == pytest.approx([row["logit"]], abs=1e-5)
    plain = recipe | {"data": recipe["data"] | {"options": recipe["data"]["options"] | {"stars": False}}}
    with pytest.raises(
        ValueError, match=r"feedback_value, but 'synthetic' has no graded feedback.*columns\.feedback_values"
    ):
        lmctr.runs.train(plain, output_dir=tmp_path / "plain")


def test_statistics_are_learnt_kept_and_asked_for(tmp_path):
    """The run keeps the reader of `data.statistics`; a request that brings the raw numbers scores as the training saw its row."""
    recipe = {
        "data": {
            "name": "synthetic",
            "options": {"num_users": 40, "num_items": 60, "events_per_user": 20},
            "prompt": "generic/en",
            "num_behaviors": 3,
            "statistics": ["basic", "user_rate_6_events"],
            "baselines": False,
        },
        "model": {
            "backbone": TINY_BERT,
            "tokenizer": {"type": "wordpiece", "vocab_size": 300},
            "statistics_hidden_sizes": [8],
        },
        "training": {"stage1_epochs": 0, "stage2_epochs": 1, "use_cpu": True},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    reader = run.processor.statistics_reader
    assert reader.names[:2] == ("user_rate", "user_count")
    assert reader.names[-1] == "user_rate_6_events"
    assert run.model.config.num_statistics == len(reader.names)
    assert read_json(run.path / "data.json")["statistics"]["names"] == list(reader.names)
    log = lmctr.data.load(recipe["data"]["name"], **recipe["data"]["options"])
    rows = pq.read_table(run.path / "predictions" / "test.parquet").to_pylist()
    texts, raw = run.processor.item_texts(log.catalogue), reader.raw(log, [row["event"] for row in rows])
    for row, values in zip(rows[:5], raw.tolist()):
        history = [
            {"text": texts[log.item[e]], "time": int(log.time[e])}
            for e in range(*map(int, np.ravel(log.history_bounds([row["event"]]))))
        ]
        target = {"text": texts[log.item[row["event"]]], "statistics": values}
        request = {"history": history, "candidates": [target], "time": row["time"]}
        assert run.score(history, [target], row["time"]) == pytest.approx([row["logit"]], abs=1e-5)
        assert run.predict([request]) == pytest.approx([row["logit"]], abs=1e-5)
    # The folder keeps the items' table: a request after the log needs nothing but items and feedback.
    user, later = int(log.user[-1]), int(log.time.max()) + 3600
    items = log.catalogue["item_id"].to_pylist()
    history = [
        {
            "text": texts[log.item[e]],
            "time": int(log.time[e]),
            "feedback": int(log.feedback[e]),
            "item": items[log.item[e]],
        }
        for e in np.flatnonzero(log.user == user)
    ]
    longer = InteractionLog.from_columns(
        np.r_[log.user, user],
        np.r_[log.item, 7] + 1,
        np.r_[log.time, later],
        np.r_[log.label, 1],
        catalogue=log.catalogue,
    )
    target = {"text": texts[7], "item": items[7]}
    requests = [{"history": history, "candidates": [target, target], "time": later}]
    found = run.predict(requests)
    for kind in (pd.DataFrame, pa.Table.from_pylist, Dataset.from_list):
        np.testing.assert_array_equal(run.predict(kind(requests)), found)
    for some in (pd.DataFrame(history), iter(history), np.array(history)):
        np.testing.assert_array_equal(run.score(some, pd.DataFrame([target, target]), later), found)
    assert run.score(history, [], later).shape == run.predict(pd.DataFrame(requests)[:0]).shape == (0,)
    with pytest.raises(ValueError, match=r"^time must be a number of seconds, got None"):
        run.score(history, [target], None)
    target["statistics"] = reader.raw(longer, [longer.num_events - 1])[0].tolist()
    assert found == pytest.approx(list(run.score(history, [target, target], later)), abs=1e-5)
    assert (
        np.ptp(
            run.predict(
                [
                    {"history": history[-n:], "target": items_of, "time": later}
                    for n, items_of in (
                        (3, {"text": texts[7], "item": items[7]}),
                        (20, {"text": texts[7], "item": items[7]}),
                    )
                ]
            )
        )
        > 1e-4
    ), "statistics count the whole history, not only the three behaviours that the text shows"
    validate_run(run.path)
    assert "item_statistics.parquet" in [path.name for path in open_run(run.path).upload_files()]
    card = build_card(run.path)
    assert f"`statistics` are {len(reader.names)} numbers of each target" in card
    assert "with the items' in `item_statistics.parquet`" in card
    assert f"'statistics': [float(\"nan\")] * {len(reader.names)}" in card
    with pytest.raises(ValueError, match=r"num_statistics.*set data\.statistics"):
        lmctr.runs.train(recipe | {"model": recipe["model"] | {"num_statistics": 3}}, output_dir=tmp_path / "other")
    with pytest.raises(ValueError, match=r"did you mean 'user_rate'\?"):
        lmctr.runs.train(
            recipe | {"data": recipe["data"] | {"statistics": ["user_rat"]}}, output_dir=tmp_path / "other"
        )


class CountedSteps(TrainerCallback):
    """A callback of a user's own, named in a recipe."""

    seen = 0

    def on_step_end(self, args, state, control, **kwargs):
        type(self).seen += 1


def test_callbacks_that_a_recipe_names(table, tmp_path):
    recipe = {
        "data": {"name": str(table), "split": "random", "baselines": False},
        "model": {"family": "deepfm"},
        "training": {"epochs": 1, "use_cpu": True, "callbacks": [f"{__name__}:CountedSteps"]},
    }
    before = CountedSteps.seen
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert CountedSteps.seen > before
    assert run.recipe.training["callbacks"] == [f"{__name__}:CountedSteps"]
    for wrong, message in (
        ("no_such_module:A", "callbacks: 'no_such_module:A' cannot be loaded: No module named"),
        (f"{__name__}:Nothing", "callbacks: .* cannot be loaded: .*Nothing"),
        ("collections:OrderedDict", "is no subclass of transformers.TrainerCallback"),
    ):
        with pytest.raises(ValueError, match=message):
            lmctr.CTRTrainingArguments(tmp_path, callbacks=[wrong], use_cpu=True)


def drawn():
    """The next number of each of what draws at random."""
    return random.random(), np.random.random(), float(torch.rand(1))


def test_what_draws_at_random_goes_on_as_before(table, tmp_path, monkeypatch):
    """Else a search of one's own around it draws the same values for each of its runs."""

    def seeded():
        for seed in (random.seed, np.random.seed, torch.manual_seed):
            seed(7)

    def fails(*_, **__):
        raise FloatingPointError

    recipe = {
        "data": {"name": str(table), "split": "random", "baselines": False},
        "model": {"family": "deepfm"},
        "training": {"epochs": 1, "use_cpu": True},
    }
    seeded()
    wanted = [drawn() for _ in range(4)]
    seeded()
    found = [drawn()]
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    found.append(drawn())
    run.evaluate("validation")
    found.append(drawn())
    monkeypatch.setattr(lmctr.CTRTrainer, "training_step", fails)
    with pytest.raises(FloatingPointError):
        lmctr.runs.train(recipe, output_dir=tmp_path / "other")
    found.append(drawn())
    assert found == wanted


def test_how_torch_computes_is_as_before(table, tmp_path, monkeypatch):
    """Else the next training, and what its user computes, has the precision and the algorithms of this one."""
    monkeypatch.setattr("transformers.training_args.is_torch_tf32_available", lambda: True)

    def settings():
        cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
        variables = {name: os.environ.get(name) for name in ("ACCELERATE_MIXED_PRECISION", "CUDA_LAUNCH_BLOCKING")}
        ways = torch.backends.fp32_precision, torch.are_deterministic_algorithms_enabled()
        return ways, cudnn, variables, get_verbosity()

    class Sees(TrainerCallback):
        def on_train_begin(self, *_, **__):
            seen.append(settings())

    monkeypatch.setitem(globals(), "Sees", Sees)
    before, seen = settings(), []
    values = {"tf32": True, "full_determinism": True, "log_level": "error", "callbacks": [f"{__name__}:Sees"]}
    recipe = {
        "data": {"name": str(table), "split": "random", "baselines": False},
        "model": {"family": "deepfm"},
        "training": {"epochs": 1, "use_cpu": True, **values},
    }
    run = lmctr.runs.train(recipe, output_dir=tmp_path / "run")
    assert seen[0][0] == ("tf32", True)
    assert settings() == before
    run.evaluate("validation")
    assert settings() == before
    with pytest.raises(ValueError, match="learning_rate"):
        lmctr.runs.train(recipe, output_dir=tmp_path / "other", overrides={"training.learning_rate": -1})
    assert settings() == before
