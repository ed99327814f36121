"""Labels that are codes of a `datasets.ClassLabel`, whose names say what 1 is."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, Features, Value
from guess_logs import ROWS, clicks, table

from lmctr.data import TabularStore, load_log, log_from_table, table_source
from lmctr.data.guess import guess_log, guess_table, sample_file
from lmctr.data.in_memory import arrow_table

COLUMNS = {"user": "user_id", "item": "item_id", "time": "ts", "label": "click"}


def labelled(rows, name, names):
    """A data set of rows whose label has names, in the order of its codes."""
    kinds = {own: Value("float64" if own == "price" else "int64") for own in rows}
    return Dataset.from_dict(rows, Features(kinds | {name: ClassLabel(names=names)}))


@pytest.mark.parametrize(
    ("names", "is_turned"),
    [
        (["click", "no_click"], True),
        (["Yes", "no"], True),
        (["no", "yes"], False),
        (["0", "1"], False),
        (["b", "a"], False),
    ],
)
def test_the_names_tell_which_code_is_a_click(names, is_turned, tmp_path):
    """In what is guessed of a file, or of a table in memory; where a label is stated without a rule that is refused."""
    rows = table()
    ones, rule = np.array(rows["click"]), {"column": "click", "equals": 0}
    data = labelled(rows, "click", names)
    data.to_parquet(tmp_path / "log.parquet")
    guess = guess_log(sample_file(tmp_path / "log.parquet"))
    assert guess.schema["columns"]["label"] == (rule | {"otherwise": 1} if is_turned else "click")
    said = next(entry.why for entry in guess.guesses if entry.role == "label")
    assert (f"0 ({names[0]}) in" in said) == is_turned
    log = load_log(tmp_path / "log.parquet", columns=guess.schema["columns"])
    assert log.label.sum() == (ROWS - ones.sum() if is_turned else ones.sum())
    for load in (
        lambda label: load_log(tmp_path / "log.parquet", columns=COLUMNS | {"label": label}),
        lambda label: log_from_table(data, {"columns": COLUMNS | {"label": label}}),
        lambda label: log_from_table(data.to_iterable_dataset(), {"columns": COLUMNS | {"label": label}}),
    ):
        if is_turned:
            with pytest.raises(ValueError, match=rf"codes of a ClassLabel, 0 for '{names[0]}' .* equals: 0"):
                load("click")
        else:
            assert load("click").label.sum() == ones.sum()
        assert load(rule).label.sum() == ROWS - ones.sum()
        assert load(rule | {"equals": 1}).label.sum() == ones.sum()


def test_of_a_table(tmp_path):
    rows = clicks(browser=None, topics=None, same=None)
    data = labelled(rows, "clicked", ["clicked", "shown"])
    data.to_parquet(tmp_path / "rows.parquet")
    guess = guess_table(sample_file(tmp_path / "rows.parquet"))
    assert guess.schema["label"] == {"column": "clicked", "equals": 0, "otherwise": 1}
    for source in (data, data.to_iterable_dataset(), tmp_path / "rows.parquet", arrow_table(data, "data")):
        with pytest.raises(ValueError, match="codes of a ClassLabel, 0 for 'clicked' and 1 for 'shown'"):
            table_source(source, label="clicked")
        store = TabularStore.build(table_source(source, label=guess.schema["label"]))
        assert store.labels.sum() == ROWS - sum(rows["clicked"])
    plain = labelled(rows, "clicked", ["shown", "clicked"])
    assert TabularStore.build(table_source(plain, label="clicked")).labels.sum() == sum(rows["clicked"])
