"""Boosted trees on all fields of a table beside a tabular model, and the share that `training.boosting_share: auto` gives them."""

import json
from contextlib import nullcontext
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import scipy.special
import scipy.stats
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from test_from_run import OPTIONS, RECIPE, STILL

import lmctr
from lmctr.cli.main import main
from lmctr.data import load_tabular
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.evaluation import baseline_parts
from lmctr.evaluation.baseline_parts import field_trees
from lmctr.hub.model_card import build_card
from lmctr.models.common.boosted_trees import BoostedTrees, FieldTrees
from lmctr.runs.inputs.boosting import _field_forest, add_trees, choose_share
from lmctr.runs.inputs.linear_start import LinearSamples
from lmctr.utils import progress

MANY = 19_000
FIELDS = {"vocab_sizes": [30, 6], "num_numeric": 2, "embedding_dim": 4, "hidden_units": [8]}


def rows_of(count, seed=0):
    generator = np.random.default_rng(seed)
    numbers = generator.normal(size=(count, 2)).astype(np.float32)
    ids = np.column_stack([generator.integers(0, size, count) for size in FIELDS["vocab_sizes"]])
    noise = 3.0 * generator.normal(size=count)  # of less, trees learn for hundreds of rounds
    scores = 2.0 * (ids[:, 0] % 3 == 1) + numbers[:, 0] * (ids[:, 1] - 2) + noise
    return numbers, ids, (scores[:, None] > [0.0, 1.0]).astype(np.float32)


@pytest.fixture
def many_rows(monkeypatch):
    """Fewer rows are many, so that trees of many rows take no seconds."""
    assert baseline_parts.MANY_ROWS == MANY
    monkeypatch.setattr(baseline_parts, "MANY_ROWS", 2500)
    return 2500


def settings(count, seed, many=MANY):
    return {
        "learning_rate": 0.1 if 1000 <= count < many else 0.05,
        "max_iter": 1500 if count >= 1000 else 50,
        "max_leaf_nodes": 15 if count < many else 31,
        "l2_regularization": 5.0,
        "max_features": 0.5,
        "early_stopping": count >= 1000,
        "n_iter_no_change": 20,
        "random_state": seed,
    }


def mean_of_draws(count, seed, fitted, new, halves=2, many=MANY):
    """What the trees give the new rows: of three seeds a half where they stop early by few rows, else of one."""
    draws = range(seed, seed + 1000 * halves * (3 if 1000 <= count < many else 1), 1000)
    trees = [HistGradientBoostingClassifier(**settings(count, own, many)).fit(*fitted) for own in draws]
    return np.mean([own.decision_function(new) for own in trees], 0)


@pytest.mark.parametrize(("tasks", "count"), [(1, 2000), (2, 900), (1, 2500)])
def test_the_trees_read_numbers_and_ids(tasks, count, many_rows):
    numbers, ids, labels = rows_of(count)
    config = lmctr.DeepFMConfig(**FIELDS, task_names=["click", "like"][:tasks] if tasks > 1 else None)
    model = lmctr.DeepFMForCTR(config).eval()
    new_numbers, new_ids, _ = rows_of(300, seed=1)
    inputs = {"input_ids": torch.from_numpy(new_ids), "numeric_values": torch.from_numpy(new_numbers)}
    alone = model(**inputs).logits.detach()
    columns = np.column_stack([numbers, ids]).astype(np.float32)
    own = labels[:, 0] if tasks == 1 else labels
    add_trees(model, LinearSamples(columns, own, None, None), None, seed=3, share=0.3)
    mixed = model.eval()(**inputs).logits.detach().reshape(300, tasks)
    for task in range(tasks):
        fitted = np.column_stack([numbers, ids]), labels[:, task]
        expected = mean_of_draws(count, 3, fitted, np.column_stack([new_numbers, new_ids]), many=many_rows)
        assert expected.std() > 0.5
        own = 0.7 * alone.reshape(300, tasks)[:, task].numpy() + 0.3 * expected
        np.testing.assert_allclose(mixed[:, task], own, atol=1e-5)
    torch.testing.assert_close(model.train()(**inputs).logits.detach(), alone)  # the network learns by itself


@pytest.mark.parametrize(("tasks", "said"), [(1, ""), (2, "50% of 2 tasks")])
def test_trees_of_one_task_are_not_counted(tasks, said, monkeypatch, capsys):
    monkeypatch.setattr(progress, "PATIENCE", 0.0)
    monkeypatch.setattr(progress, "_LINES", (0.0, 0.0))
    numbers, ids, labels = rows_of(400)
    names = ["click", "like"][:tasks] if tasks > 1 else None
    model = lmctr.DeepFMForCTR(lmctr.DeepFMConfig(**FIELDS, task_names=names))
    columns = np.column_stack([numbers, ids]).astype(np.float32)
    with progress.showing():
        add_trees(model, LinearSamples(columns, labels[:, :tasks], None, None), None, seed=3, share=0.3)
    err = capsys.readouterr().err
    assert "fitting boosted trees: done" in err
    assert said in err if said else "tasks" not in err


@pytest.mark.parametrize(("first", "following"), [(3, 1003), (2**32 - 1, 999)])
def test_all_draws_of_both_halves_are_stopped_by_rows_of_their_own(first, following):
    numbers, ids, labels = rows_of(2000)
    columns, places = np.column_stack([numbers, ids]).astype(np.float32), np.arange(4)
    _, forest = _field_forest(columns, [places, places], labels[:, 0], None, first)
    seeds = [first, *range(following, following + 5000, 1000)]
    counts = [field_trees(labels[:, 0], own).fit(columns, labels[:, 0]).n_iter_ for own in seeds]
    assert len(forest) == sum(counts)
    assert len(set(counts)) > 2
    starts = [0, *np.cumsum(counts)[:-1]]
    assert len({forest[start]["threshold"].tobytes() for start in starts}) == 6


@pytest.mark.parametrize(("count", "leaves"), [(2499, 15), (2500, 31)])
def test_trees_of_many_rows_have_more_leaves(count, leaves, many_rows):
    numbers, ids, labels = rows_of(count)
    columns = np.column_stack([numbers, ids]).astype(np.float32)
    line, forest = _field_forest(columns, [np.arange(4)], labels[:, 0], None, 0)
    assert max(len(tree["value"]) for tree in forest) == leaves
    trees = BoostedTrees(4, 1, len(forest), leaves)
    trees.fill(0, line, forest)
    expected = mean_of_draws(count, 0, (columns, labels[:, 0]), columns, halves=1, many=many_rows)
    np.testing.assert_allclose(trees(torch.from_numpy(columns))[:, 0], expected, atol=1e-5)


@pytest.mark.parametrize("tasks", [1, 2])
@pytest.mark.parametrize("share", [0.95, 1.0])
def test_trees_alone_need_no_network(share, tasks, monkeypatch):
    numbers, ids, labels = rows_of(900)
    config = lmctr.DeepFMConfig(**FIELDS, task_names=["click", "like"][:tasks] if tasks > 1 else None)
    model = lmctr.DeepFMForCTR(config)
    inputs = {"input_ids": torch.from_numpy(ids), "numeric_values": torch.from_numpy(numbers)}
    columns = np.column_stack([inputs["numeric_values"], inputs["input_ids"]]).astype(np.float32)
    own = labels[:, 0] if tasks == 1 else labels
    add_trees(model, LinearSamples(columns, own, None, None), None, seed=3, share=share)
    model.eval()
    with torch.no_grad():
        whole = model(**inputs).logits
    calls, network = [], model.model.forward
    monkeypatch.setattr(model.model, "forward", lambda *own, **more: calls.append(1) or network(*own, **more))
    with torch.inference_mode():
        found = model(**inputs).logits
        assert len(calls) == (share < 1)
        torch.testing.assert_close(found, whole, atol=0, rtol=0)
        assert model(**inputs, output_hidden_states=True).hidden_states is not None
        torch.set_default_dtype(torch.float64)
        try:
            assert model(**inputs).logits.dtype == torch.float32
        finally:
            torch.set_default_dtype(torch.float32)
        with pytest.raises(ValueError, match="input_ids"):
            model(**inputs | {"input_ids": torch.from_numpy(ids + 40)})
    model.train()
    with torch.inference_mode():
        assert not torch.equal(model(**inputs).logits, whole)  # while it is trained, the network's alone


def test_fields_of_one_kind_are_enough(tmp_path):
    numbers, ids, labels = rows_of(500)
    for kept, columns in (({"num_numeric": 0}, ids), ({"vocab_sizes": None}, numbers)):
        model = lmctr.DNNForCTR(lmctr.DNNConfig(**{**FIELDS, **kept})).eval()
        add_trees(model, LinearSamples(columns.astype(np.float32), labels[:, 0], None, None), None, seed=0, share=1.0)
        key = "numeric_values" if columns is numbers else "input_ids"
        found = model(**{key: torch.from_numpy(columns)}).logits.detach()
        expected = mean_of_draws(500, 0, (columns, labels[:, 0]), columns)
        np.testing.assert_allclose(found, expected, atol=1e-5)
    model.save_pretrained(tmp_path)
    again = lmctr.AutoModelForCTR.from_pretrained(tmp_path)
    assert torch.equal(again(numeric_values=torch.from_numpy(numbers)).logits, found)


def plain_share(network, trees, labels, weight):
    """By the letter: the highest product of the prior's density and the likelihood, of which weights are powers that average one."""
    known = labels >= 0
    clicked, weight = labels[known] == 1, weight[known] / weight[known].mean()
    shares = np.linspace(0, 1, 21)
    mixed = ((1 - share) * network[known] + share * trees[known] for share in shares)
    likelihood = [weight @ scipy.special.log_expit(np.where(clicked, logits, -logits)) for logits in mixed]
    return shares[np.argmax(likelihood + scipy.stats.norm(0.75, 0.35).logpdf(shares))]


@pytest.mark.parametrize(
    ("noise", "count", "weighted"),
    [(0.1, 3000, False), (2.0, 3000, True), (2.0, 30, True), (1.0, 100, False), (None, 3000, False)],
)
def test_auto_takes_the_share_that_validation_tells(noise, count, weighted):
    generator = np.random.default_rng(0)
    truth = generator.normal(size=count)
    labels = (truth + generator.logistic(size=count) > 0).astype(np.float32)
    labels[:5] = -100
    network = truth + (noise is not None) * generator.normal(size=count)
    trees = -10 * truth if noise is None else truth + noise * generator.normal(size=count)
    weight = generator.uniform(0, 40, count) if weighted else None
    model = lmctr.DNNForCTR(lmctr.DNNConfig(**FIELDS))
    model.config.boosted_trees = {"trees": 1, "leaves": 2, "share": 0.5}
    beside = model.trees_beside()
    beside.grow(model.config)

    def predict(samples):
        mixed = (1 - beside.share) * network + beside.share * trees
        return SimpleNamespace(predictions=mixed.astype(np.float32), label_ids=labels)

    share = choose_share(SimpleNamespace(model=model, predict=predict), SimpleNamespace(sample_weight=weight))
    ones = np.ones(count) if weight is None else weight
    assert share == pytest.approx(plain_share(network, trees, labels, ones))
    if noise is None:  # worth less than nothing: they go
        assert share == 0.0
        assert model.config.boosted_trees is None
        assert beside.trees is None
    else:
        assert beside.share == model.config.boosted_trees["share"] == share
        low, high = {0.1: (0.6, 1.0), 1.0: (0.4, 0.7), 2.0: (0.0, 0.3)}[noise]
        assert low <= share <= high


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Refitted after the share was chosen. Read it only."""
    recipe = {**RECIPE, "training": {**RECIPE["training"], "boosting_share": "auto", "refit": True}}
    return lmctr.runs.train(recipe, output_dir=tmp_path_factory.mktemp("trees") / "run")


def test_the_trees_are_asked_once_for_each_sample_that_is_measured(tmp_path, monkeypatch):
    """Not after every epoch, for the share, and for the predictions again: that gives the same logits."""
    asked, scores = [], BoostedTrees._scores
    monkeypatch.setattr(BoostedTrees, "_scores", lambda self, rows: asked.append(len(rows)) or scores(self, rows))
    recipe = {**RECIPE, "training": {**RECIPE["training"], "epochs": 3, "boosting_share": "auto"}}
    once = lmctr.runs.train(recipe, output_dir=tmp_path / "once")
    measured = sum(once.metrics["split metrics"][part]["num_samples"] for part in ("validation", "test"))
    assert measured <= sum(asked) < measured + 50  # and the rows of reference
    before = len(asked)
    monkeypatch.setattr(FieldTrees, "keeping", lambda self, known: nullcontext())
    again = lmctr.runs.train(recipe, output_dir=tmp_path / "again")
    assert sum(asked[before:]) > 2.5 * measured
    for part in ("validation", "test"):
        found = [pq.read_table(own.path / "predictions" / f"{part}.parquet") for own in (once, again)]
        assert found[0].equals(found[1])
    assert once.metrics["boosting_share"] == again.metrics["boosting_share"]


def test_what_was_kept_is_of_the_trees_that_are_asked():
    numbers, ids, labels = rows_of(400)
    model, inputs = (
        lmctr.DeepFMForCTR(lmctr.DeepFMConfig(**FIELDS)).eval(),
        (torch.from_numpy(numbers), torch.from_numpy(ids)),
    )
    columns = torch.cat([own.float() for own in inputs], 1)
    add_trees(model, LinearSamples(columns.numpy(), labels[:, 0], None, None), None, seed=3, share=1.0)
    beside, known = model.trees_beside(), {}
    alone = beside.trees(columns)
    with beside.keeping(known):
        for rows in (columns, columns, columns[:50]):
            torch.testing.assert_close(beside.trees(rows), alone[: len(rows)], rtol=0, atol=0)
        assert len(known) == 2
        beside.trees.value.zero_()
        assert not beside.trees(columns).any()
    assert beside.trees.known is None


def test_a_run_chooses_before_it_is_trained_again(run):
    share = run.metrics["boosting_share"]
    assert run.model.config.boosted_trees["share"] == share == run.model.trees_beside().share
    store = pq.read_table(run.path / "predictions" / "test.parquet")
    table = pa.Table.from_batches(block.table for block in load_tabular("synthetic_table", **OPTIONS).rows())
    chosen = table.take(store["event"]).to_pylist()[:50]
    np.testing.assert_allclose(run.predict(chosen), store["logit"].to_numpy()[:50], atol=1e-5)
    text = (
        f"and the rates of all categorical ones; their share in the logits is {share:g}, the network's {1 - share:g} |"
    )
    assert text in str(build_card(run.path))


def test_a_card_counts_what_is_trained(run):
    trained = sum(parameter.numel() for parameter in run.model.parameters())
    assert f"{trained:,}, of which" in build_card(run.path)
    assert sum(run.folder.num_parameters.values()) > trained


@pytest.mark.usefixtures("one_registry_of_operators")
def test_a_graph_holds_the_trees_too(run, tmp_path):
    assert main(["export", str(run.path), "--format", "onnx", "--output", str(tmp_path)]) == 0
    parity = json.loads((tmp_path / "parity.json").read_text())
    assert parity["largest_difference"] < 1e-4 < parity["largest_logit"]


def test_thresholds_follow_ids_that_move(run, tmp_path):
    second = lmctr.runs.train(
        {**RECIPE, "training": {**RECIPE["training"], "boosting_share": "auto"}},
        output_dir=tmp_path / "day1",
        overrides={**STILL, "training.from_run": str(run.path)},
    )
    before, after = (TabularFeatureProcessor.from_pretrained(own.path) for own in (run, second))
    names = ["C1", "C2", "C3"]
    moved = 0
    generator = np.random.default_rng(0)
    old_ids, new_ids = [], []
    for name in names:
        values = before.state.vocabularies[name].values, after.state.vocabularies[name].values
        both = sorted(set(values[0].to_pylist()) & set(values[1].to_pylist()))
        places = [{value: place + 2 for place, value in enumerate(own.to_pylist())} for own in values]
        drawn = generator.choice(both, 500)
        old_ids.append([places[0][value] for value in drawn])
        new_ids.append([places[1][value] for value in drawn])
        moved += sum(a != b for a, b in zip(old_ids[-1], new_ids[-1]))
    assert moved > 500
    numbers = torch.from_numpy(generator.normal(size=(500, 2)).astype(np.float32))
    trees = []
    for own, ids in ((run, torch.tensor(old_ids).T), (second, torch.tensor(new_ids).T)):
        beside = own.model.trees_beside()
        trees.append(beside.trees(torch.cat([numbers, ids.float(), beside.rates(ids, None)], 1)))
    assert trees[0].std() > 0.1
    torch.testing.assert_close(*trees, atol=0, rtol=0)


def test_words_for_what_is_no_share():
    for share in ("half", -0.1):
        with pytest.raises(ValueError, match="boosting_share must lie between 0"):
            lmctr.CTRTrainingArguments("out", boosting_share=share)


@pytest.mark.parametrize("clicks", [1, 4])
def test_a_class_of_a_few_rows_is_no_error(clicks, tmp_path):
    """Trees stop early by a tenth of the rows, which cannot be drawn by class then."""
    times = [1_700_000_000 + 60 * row for row in range(3000)]
    clicked = [int(row % 600 == 5 and row // 600 < clicks) + int(row in (2500, 2900)) for row in range(3000)]
    lines = [f"{row % 9},{row % 7 / 3},{time},{y}" for row, (time, y) in enumerate(zip(times, clicked))]
    (tmp_path / "few.csv").write_text("\n".join(["slot,price,timestamp,clicked", *lines]) + "\n")
    options = {"fields": [{"name": "slot", "type": "categorical"}, {"name": "price", "type": "numeric"}]}
    options |= {"label": "clicked", "time": "timestamp"}
    run = lmctr.runs.train(
        {
            "data": {"name": str(tmp_path / "few.csv"), "options": options, "split": "time"},
            "model": {"family": "dnn", "embedding_dim": 2, "hidden_units": [4]},
            "training": {"epochs": 1, "boosting_share": "auto", "use_cpu": True},
        },
        output_dir=tmp_path / "run",
    )
    assert run.metrics["baselines"].keys() == {"field_counting", "field_gradient_boosting"}
    assert run.metrics["boosting_share"] > 0
