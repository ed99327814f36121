"""Label rules that no value of the data follows, where a training refuses labels of one class."""

import pytest
import yaml

import lmctr


def trained(folder, reads, family, rule, test_words=("No",), more=None):
    """A training on a file of 240 rows, of a log or of a table of two files; `more` is a second label."""

    def write(name, count, words):
        rows = [f"{n % 9},{n % 7},{1_700_000_000 + 60 * n}{2 * f',{words[n % len(words)]}'}\n" for n in range(count)]
        (folder / name).write_text("user,item,time,clicked,sold\n" + "".join(rows))

    write("rows.csv", 240, ("Yes", "No", ""))
    write("test.csv", 60, test_words)
    label = {"column": "clicked", **rule, "missing": "history" if reads == "log" else "drop"}
    if reads == "log":
        schema = {"events": {"path": "rows.csv"}}
        schema["columns"] = {"user": "user", "item": "item", "time": "time", "label": label}
        schema["columns"] |= {} if more is None else {"extra_labels": {"sold": more}}
    else:
        schema = {"files": {"train": "rows.csv", "test": "test.csv"}, "label": label}
        schema |= {} if more is None else {"label": None, "labels": [label, more]}
        schema["fields"] = [{"name": name, "type": "categorical"} for name in ("user", "item")]
    (folder / "schema.yaml").write_text(yaml.safe_dump({"name": "shop", **schema}))
    data = {"name": str(folder / "schema.yaml"), "baselines": False}
    data |= {} if more is None or reads == "table" else {"tasks": ["label", "sold"]}
    recipe = {"data": data, "model": {"family": family}, "training": {"max_steps": 1, "use_cpu": True}}
    return lmctr.runs.train(recipe, output_dir=folder / "run")


@pytest.mark.parametrize(("reads", "family"), [("log", "din"), ("log", "dnn"), ("table", "dnn")])
@pytest.mark.parametrize(
    ("rule", "words"), [({"equals": "yes"}, "= yes"), ({"in": ["yes", "y"]}, r"in \['yes', 'y'\]")]
)
def test_what_the_rule_asks_for_and_what_there_is(tmp_path, reads, family, rule, words):
    told = rf"no value follows the label rule ['\"]clicked {words}.*['\"]; found: 'Yes', 'No'"
    with pytest.raises(ValueError, match=told) as raised:
        trained(tmp_path, reads, family, rule)
    assert "data.fractions" not in str(raised.value)


def test_a_rule_that_some_file_follows_is_not_told(tmp_path):
    with pytest.raises(ValueError, match=r"has only the label 0; .*change data.fractions") as raised:
        trained(tmp_path, "table", "dnn", {"equals": "sure"}, ("No", "sure"))
    assert "no value" not in str(raised.value)


def test_a_rule_that_values_follow_trains(tmp_path):
    assert trained(tmp_path, "log", "din", {"equals": "Yes"}).metrics["steps"] == 1


@pytest.mark.parametrize(("reads", "family"), [("log", "din"), ("table", "dnn")])
def test_a_further_label_of_one_class_in_training(tmp_path, reads, family):
    sold = {"column": "sold", "equals": "Sold", "missing": "history" if reads == "log" else "drop"}
    told = r"the train \(label 'sold'\) part .*only the label 0; .*sold = Sold.*found: 'Yes', 'No'"
    with pytest.raises(ValueError, match=told):
        trained(tmp_path, reads, family, {"equals": "Yes"}, ("Yes", "No"), more=sold)
