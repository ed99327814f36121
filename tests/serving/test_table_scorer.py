"""`lmctr.serving.score` of the tabular families: columns that candidates share, and those of each."""

import numpy as np
import pytest
import torch

import lmctr
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.models.common.embeddings import MeanPooling
from lmctr.models.families import families
from lmctr.serving import UserState, score
from lmctr.serving.tables import _SHARING, _SharedFields

FAMILIES = [family for family in families() if family.input == "tabular"]
MIXER = {"num_tokens": 4, "token_dim": 8, "tokenizer": "dense"}
VALUES = {
    "rank_mixer": MIXER,
    "rank_elastor": MIXER,
    "autoint": {"hidden_size": 8, "num_attention_heads": 2, "hidden_units": [6]},
    "hiformer": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8},
    "fat": {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8},
}
FIELDS = [
    {"name": "ad", "type": "categorical"},
    {"name": "user", "type": "categorical"},
    {"name": "city_ad", "type": "categorical", "cross": ["city", "ad"]},
    {"name": "city", "type": "categorical"},
    {"name": "price", "type": "numeric", "transform": "standardize"},
    {"name": "age", "type": "numeric"},
    {"name": "liked", "type": "sequence", "separator": " ", "max_length": 3},
    {"name": "tags", "type": "sequence", "separator": " ", "max_length": 6},
]
USER = {"user": "u3", "city": "c1", "age": 31.0, "liked": "x1 x2 x9 x4"}


def rows(count, seed=0):
    draw = np.random.default_rng(seed)
    words = {name: draw.integers(0, 6, (count, 5)) for name in ("liked", "tags")}
    return [
        {
            "ad": f"a{draw.integers(9)}",
            "user": f"u{draw.integers(5)}",
            "city": f"c{draw.integers(3)}",
            "price": float(draw.normal()),
            "age": float(draw.integers(18, 80)),
            **{name: " ".join(f"x{word}" for word in own[place]) for name, own in words.items()},
        }
        for place in range(count)
    ]


def candidates(count):
    return [{key: value for key, value in row.items() if key not in USER} for row in rows(count, 1)]


@pytest.fixture(scope="module")
def processor():
    data = rows(300)
    return TabularFeatureProcessor(fields=FIELDS, label=None).fit(
        {name: [row[name] for row in data] for name in data[0]}
    )


@pytest.fixture(autouse=True)
def few_are_split(monkeypatch):
    monkeypatch.setattr("lmctr.serving.tables._SPLIT_FROM", 2)


def make(processor, family="dnn", **values):
    torch.manual_seed(0)
    (row,) = (one for one in FAMILIES if one.model_type == family)
    values = {"embedding_dim": 4, "initializer_range": 0.5, **VALUES.get(family, {}), **values}
    config = row.load("Config")(**{**processor.model_config_values(), **values})
    return row.load("ForCTR")(config).eval()


@pytest.mark.parametrize("family", [family.model_type for family in FAMILIES])
@pytest.mark.parametrize("count", [1, 7, 60])
def test_scores_are_those_of_whole_rows(family, count, processor):
    model = make(processor, family).train()
    found = score(model, processor, [USER], candidates(count), time=0)
    counts = processor.oov_counts
    assert model.training
    with torch.inference_mode():
        expected = model.eval()(**processor([{**USER, **one} for one in candidates(count)])).logits
    assert count == 1 or expected.std() > 1e-3
    torch.testing.assert_close(found, expected, atol=1e-6, rtol=1e-6)
    assert counts["ad"] == processor.oov_counts["ad"]
    assert counts["user"] == {"values": 1, "missing": 0, "unknown": 0}
    assert counts["liked"]["unknown"] * count == processor.oov_counts["liked"]["unknown"]


@pytest.mark.parametrize("dims", [4, [2, 4, 4, 2, 4, 2, 4, 2]])
@pytest.mark.parametrize("shared", [(), ("user",), ("user", "city", "age"), ("ad", "liked"), tuple(rows(1)[0])])
def test_any_columns_may_be_shared(dims, shared, processor):
    model = make(processor, "deepfm", embedding_dim=dims)
    own = [{key: value for key, value in row.items() if key not in shared} for row in rows(9, 2)]
    user = {key: value for key, value in rows(1, 3)[0].items() if key in shared}
    with torch.inference_mode():
        expected = model(**processor([{**user, **one} for one in own])).logits
    torch.testing.assert_close(score(model, processor, [user], own, 0), expected, atol=1e-6, rtol=1e-6)


def test_times_of_shared_lists_are_those_of_the_row():
    fields = [
        {"name": "ad", "type": "categorical"},
        {"name": "liked", "type": "sequence", "separator": " ", "max_length": 4, "time_column": "when"},
    ]
    data = {"ad": ["a", "b"], "liked": ["x y", "y"], "when": ["3 5", "6"], "now": [9, 9]}
    processor = TabularFeatureProcessor(fields=fields, label=None, time="now").fit(data)
    shared = {"liked": "y x", "when": "2 4"}
    for user, own in (({**shared, "now": 10}, [{"ad": "a"}]), (shared, [{"ad": "a", "now": 10}])):
        found, _ = processor.of_candidates(user, own * 2)
        expected = processor([{**user, **one} for one in own * 2])
        assert found.keys() == expected.keys()
        for name, values in expected.items():
            assert torch.equal(found[name], values), name


def test_a_list_without_times_may_be_the_longer_one():
    fields = [
        {"name": "liked", "type": "sequence", "separator": " ", "max_length": 2, "time_column": "when"},
        {"name": "tags", "type": "sequence", "separator": " ", "max_length": 4},
    ]
    data = {"liked": ["x y", "y"], "when": ["3 5", "6"], "tags": ["a b c", "b"], "now": [9, 9]}
    processor = TabularFeatureProcessor(fields=fields, label=None, time="now").fit(data)
    timed, other = {"liked": "y x", "when": "2 4", "now": 10}, {"tags": "c a b a"}
    for user, own in ((timed, other), (other, timed)):
        found, expected = processor.of_candidates(user, [own] * 2)[0], processor([{**timed, **other}] * 2)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_what_is_shared_is_computed_once(processor, monkeypatch):
    model = make(processor, hidden_units=[16])
    sizes = []
    own = MeanPooling.forward
    monkeypatch.setattr(MeanPooling, "forward", lambda self, *given: sizes.append(len(given[0])) or own(self, *given))
    score(model, processor, [{**USER, "tags": "x1"}], [{"ad": "a1", "price": 1.0}] * 50, 0)
    assert sizes == [1]
    products = []
    linear, addmm = torch.nn.functional.linear, torch.addmm
    monkeypatch.setattr("torch.nn.functional.linear", lambda x, *more: products.append(x.shape) or linear(x, *more))
    monkeypatch.setattr("torch.addmm", lambda b, x, w: products.append(x.shape) or addmm(b, x, w))
    score(model, processor, [{**USER, "tags": "x1"}], [{"ad": "a1", "price": 1.0}] * 50, 0)
    assert products[:2] == [(1, 5 * 4), (50, 3 * 4)]
    products.clear()
    monkeypatch.setattr("lmctr.serving.tables._SPLIT_FROM", 51)  # too few to be worth it
    score(model, processor, [{**USER, "tags": "x1"}], [{"ad": "a1", "price": 1.0}] * 50, 0)
    assert products[0] == (50, 8 * 4)


def test_it_follows_the_model(processor):
    model = make(processor)
    before = score(model, processor, [USER], candidates(5), 0)
    first = _SHARING.of(model, _SharedFields)
    with torch.no_grad():
        model.model.mlp.layers[0].linear.weight.add_(0.1)
    changed = score(model, processor, [USER], candidates(5), 0)
    assert _SHARING.of(model, _SharedFields) is first
    assert (changed - before).abs().min() > 1e-3
    layer = model.model.mlp.layers[0].linear
    layer.weight = torch.nn.Parameter(torch.zeros(layer.out_features, layer.in_features))
    with torch.inference_mode():
        expected = model(**processor([{**USER, **one} for one in candidates(5)])).logits
    torch.testing.assert_close(score(model, processor, [USER], candidates(5), 0), expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize(
    ("history", "given", "words"),
    [
        ([], [{"ad": "a"}], "expected one dict, the columns that the candidates share, got 0 entries"),
        ([USER], ["a1"], r"candidates\[0\]: expected a dict of the other columns, got 'a1'"),
        ([USER], [{"ad": "a", "user": "u"}], r"candidates\[0\]: the column 'user' is shared too"),
        ([USER], [{"ad": "a", "tags": ""}], "candidates: .*price"),
        ([{**USER, "age": "old"}], candidates(2), "shared: .*age.*old"),
    ],
)
def test_mistakes_are_named(history, given, words, processor):
    with pytest.raises(ValueError, match=words):
        score(make(processor), processor, history, given, 0)


def test_there_are_no_states_of_users(processor):
    with pytest.raises(ValueError, match="reads columns of a table, no events"):
        UserState(make(processor), processor).extend([{"item": 1}])
    assert lmctr.serving.registry.scorer_for(make(processor), processor).encoded_class is None
