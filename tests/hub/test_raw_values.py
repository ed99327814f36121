"""Raw values of the data in cards and Spaces: categories are shown, persons are not, and what vocabularies hold is said."""

import json

import numpy as np
import pyarrow as pa
import pytest

from lmctr.cli.main import main
from lmctr.data.features.processor import TabularFeatureProcessor
from lmctr.data.features.vocabulary import Vocabulary
from lmctr.hub.demo.running import write_space
from lmctr.runs.examples import _columns, _feature_example, example_rows
from lmctr.runs.folder import open_run
from lmctr.runs.raw_values import categories, is_category_name, is_category_value, num_rows, shared_vocabularies


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run on a table of few users with many rows each: all their values are frequent."""
    folder, rng = tmp_path_factory.mktemp("rows"), np.random.default_rng(0)
    lines = ["email,contact,phone,city,click"]
    for _ in range(1200):
        user, city = rng.integers(0, 12), ("Porto", "Lyon", "Graz")[rng.integers(0, 3)]
        person = f"user{user}@corp.example,who{user}@corp.example,+49 170 55500{user:02d}"
        lines.append(f"{person},{city},{int(rng.random() < 0.3 + 0.2 * (city == 'Lyon'))}")
    (folder / "rows.csv").write_text("\n".join(lines) + "\n")
    fields = [{"name": name, "type": "categorical"} for name in ("email", "contact", "phone", "city")]
    fields.append({"name": "both", "type": "categorical", "cross": ["email", "city"], "min_count": 2})
    (folder / "rows.yaml").write_text(
        json.dumps({"name": "rows", "files": "rows.csv", "label": "click", "fields": fields})
    )
    recipe = {
        "data": {"name": str(folder / "rows.yaml"), "baselines": False, "split": "random"},
        "model": {"family": "deepfm", "embedding_dim": 4, "hidden_units": [8]},
        "training": {"stage2_epochs": 1, "use_cpu": True},
    }
    (folder / "recipe.yaml").write_text(json.dumps(recipe))
    assert main(["train", str(folder / "recipe.yaml"), "--output_dir", str(folder / "run")]) == 0
    return folder / "run"


def test_a_card_and_a_space_show_categories_and_no_person(run, tmp_path, capsys):
    capsys.readouterr()
    assert main(["card", str(run), "--print"]) == 0
    card = capsys.readouterr().out
    assert "@corp" not in card
    assert "55500" not in card
    row = example_rows(open_run(run, "model"))["rows"][0]
    assert row.keys() == {"email", "contact", "phone", "city"}
    assert row["city"] in ("Porto", "Lyon", "Graz")
    assert (row["email"], row["contact"], row["phone"]) == (None, None, None)
    assert f'"city": {row["city"]!r}' in card
    pytest.importorskip("gradio")
    write_space(str(run), tmp_path / "space")
    kept = (tmp_path / "space" / "model" / "demo_examples.json").read_text()
    assert row["city"] in kept
    assert "@corp" not in kept
    assert "55500" not in kept


def test_an_example_has_numbers_as_they_are_usual():
    """Of bins the middle one's edge, which is a number of the data; else the mean. What may be someone's is not shown."""
    numbers, bins = {"type": "numeric", "transform": "standardize"}, {"type": "numeric", "transform": "quantile"}
    fields = [
        {"name": "price", **numbers, "before": "log1p"},
        {"name": "price_bin", "column": "price", **bins, "num_bins": 4},
        {"name": "share", **numbers},
        {"name": "phone", **bins},
        {"name": "dwell", **numbers, "before": "log1p"},
    ]
    price, share = np.array([1.0, 2, 5, 9, 9, 30, 400, 7000]), np.linspace(0, 0.7, 8)
    rows = {"label": [0, 1] * 4, "price": price, "share": share, "phone": price + 4917055500, "dwell": price}
    found = _columns(TabularFeatureProcessor(fields).fit(rows))
    assert found == {"price": 9.0, "share": 0.35, "phone": 1.0, "dwell": 1.0}


def test_push_names_the_fields_whose_values_it_shares(run, capsys):
    capsys.readouterr()
    assert main(["push", str(run), "tester/rows", "--dry-run"]) == 0
    out = capsys.readouterr().out
    assert (
        "with them the values of these fields as they stand in the data: both (36), email (12), contact (12), phone (12), city (3)\n"
        in out
    )


@pytest.mark.parametrize(
    "name",
    ["email", "user", "user_id", "userId", "Customers", "ip", "work_email_domain", "device_ip", "ad_name", "C_UID"],
)
def test_names_of_persons_and_single_things(name):
    assert not is_category_name(name)


@pytest.mark.parametrize(
    "name", ["city", "user_gender", "C14", "device_type", "hour", "banner_pos", "tip", "valid", "member_level"]
)
def test_names_of_categories(name):
    assert is_category_name(name)


@pytest.mark.parametrize(
    "value", ["a@b.c", "0170 1234567", "1234567", "192.168.10.11", "9f86d081884c7d659a2f", "x" * 41, "2001-02-03"]
)
def test_values_of_persons_and_single_things(value):
    assert not is_category_value(value)


@pytest.mark.parametrize("value", ["Porto", "male", "12345", "ad7", "18-24", "x" * 40, ""])
def test_values_of_categories(value):
    assert is_category_value(value)


def test_a_value_must_be_frequent():
    vocabulary = Vocabulary(pa.array(["a", "b", "c"]), counts=np.array([900, 20, 19]))
    assert categories(["kind", "kind"], vocabulary, 939) == ["a", "b"]
    assert categories(["kind"], vocabulary, 2001) == ["a"]
    assert categories(["kind", "user_id"], vocabulary, 939) == []
    assert categories(["kind"], Vocabulary(pa.array(["a"])), 10) == []  # how frequent it is is not known


def test_a_damaged_table_of_items_is_named(run):
    path = run / "item_statistics.parquet"
    path.write_bytes(b"no table")
    try:
        with pytest.raises(ValueError, match=r"item_statistics\.parquet is no parquet file, or a damaged one"):
            shared_vocabularies(open_run(run, "model"))
    finally:
        path.unlink()


def test_rows_are_those_of_the_field_that_counted_most(run):
    assert 900 < num_rows(TabularFeatureProcessor.from_pretrained(run)) <= 1200


def test_features_of_users():
    assert _feature_example("gender", ["f", "m"]) == "f"
    assert _feature_example("email", ["f", "m"]) is None
    assert _feature_example("contact", ["a@b.c", "phone"]) == "phone"
    assert _feature_example("town", [f"town {number}" for number in range(101)]) is None
