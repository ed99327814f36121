import inspect
import json

import pytest

from lmctr.data import (
    ImpressionSource,
    InteractionLog,
    TableSource,
    load,
    load_impressions,
    load_log,
    load_tabular,
    register_dataset,
    synthetic_log,
)
from lmctr.data.registry import DATASETS, find

TINY = {"num_users": 5, "num_items": 20, "events_per_user": 5}


def test_one_door_opens_every_kind(tmp_path):
    assert isinstance(load("synthetic", **TINY), InteractionLog)
    assert isinstance(load("synthetic_table", num_rows=500, vocab_size=200), TableSource)
    assert isinstance(load("synthetic_cascade", num_impressions=20, num_ads=250), ImpressionSource)
    assert find("movielens").kind == "log"
    assert find("movielens", "table").kind == "table"

    load("synthetic", **TINY).save(tmp_path / "log")
    assert load(tmp_path / "log").num_events == 25
    file = tmp_path / "rows.csv"
    file.write_text("label,x\n" + "0,1\n1,2\n" * 20)
    assert isinstance(load(file), TableSource)
    schema = tmp_path / "table.yaml"
    schema.write_text("files: rows.csv\nlabel: label\n")
    assert isinstance(load(schema), TableSource)
    (tmp_path / "events.csv").write_text("u,i,t,c\na,1,5,1\n")
    schema.write_text("events: events.csv\ncolumns: {user: u, item: i, time: t, label: c}\n")
    assert isinstance(load(schema), InteractionLog)


@pytest.mark.parametrize("kind", DATASETS)
def test_every_name_is_there(kind):
    for name in DATASETS[kind]:
        loader = find(name, kind)
        assert loader.kind == kind
        assert callable(loader.function)
        assert loader.options


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: load("synthetic_tabel"), "Did you mean 'synthetic_table'"),
        (lambda: load_log("synthetik"), "data set 'synthetik': neither a known name.*Did you mean 'synthetic'"),
        (lambda: load("x" * 3000), "data set 'x{199}: neither a known name nor an existing path"),
        (lambda: find("x/" * 2000, "table"), "table '[x/]{199}: neither a known name nor an existing path"),
        (lambda: load_tabular("critteo"), "table 'critteo': .*Did you mean 'criteo'.*a data file"),
        (lambda: load_log("criteo"), "'criteo' names a table, not a log; load it with lmctr.data.load_tabular"),
        (lambda: load_impressions("synthetic"), "'synthetic' names a log, not impressions"),
        (lambda: load("synthetic", num_user=3), "options of the data set 'synthetic'; did you mean 'num_users'"),
        (lambda: load("synthetic_cascade", num_impression=3), "did you mean 'num_impressions'"),
        (
            lambda: load("synthetic_table", num_row=3),
            "options of the table 'synthetic_table'; did you mean 'num_rows'",
        ),
        (lambda: load("synthetic", kind="logs"), "kind: got 'logs', accepted: log, table, impressions"),
        (lambda: register_dataset("shop", "rows", load_log), "kind: got 'rows'"),
        (lambda: register_dataset("shop", "log", "shop.data"), "target: got 'shop.data'"),
        (lambda: register_dataset("synthetic", "log", "shop.data:load"), "'synthetic' is taken"),
    ],
)
def test_errors_name_what_is_known(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("kind", [None, "log", "table"])
def test_a_model_is_no_data_set(tmp_path, kind):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"the folder of a model, which holds no data; accepted: .* data.name"):
        load(tmp_path, kind=kind)


def test_options_of_generated_data_are_their_settings():
    assert "num_users" in inspect.signature(synthetic_log).parameters
    assert {"seed", "num_topics", "days"} <= set(find("synthetic").options)


def test_a_data_set_of_ones_own_is_known_everywhere(monkeypatch, capsys):
    from lmctr.cli.main import main

    def load_shop(num_users: int = 8) -> InteractionLog:
        return synthetic_log(num_users=num_users, num_items=40, events_per_user=10)

    monkeypatch.setitem(DATASETS, "log", dict(DATASETS["log"]))
    register_dataset("shop", "log", load_shop)
    register_dataset("shop", "log", load_shop)
    assert load("shop", num_users=9).num_users == 9
    with pytest.raises(ValueError, match="Did you mean 'shop'"):
        load("shopp")
    assert main(["data", "inspect", "shop", "--option", "num_users=7", "--quiet", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["users"] == 7


@pytest.mark.parametrize("given", [5, None, "", {"user": [1]}])
def test_data_in_memory_are_no_name(given):
    with pytest.raises(
        ValueError, match=r"name_or_path: got .*accepted: the name of a data set, or a path.*from_dataset"
    ):
        load(given)


def test_a_data_file_is_looked_at_as_init_does(tmp_path, caplog):
    rows = [f"{row % 13},{row % 17},{1_600_000_000 + row},{row // 3 % 2}" for row in range(300)]
    (tmp_path / "e.csv").write_text("\n".join(["user_id;item_id;ts;clicked", *rows]).replace(",", ";") + "\n")
    log = load(tmp_path / "e.csv")
    assert isinstance(log, InteractionLog)
    assert (log.num_events, log.num_users, log.num_items) == (300, 13, 17)
    (warning,) = caplog.messages
    assert "clicked  two values, 1 in 50.0% of the rows" in warning
    assert f"guessed; `lmctr init {tmp_path / 'e.csv'}` writes a schema" in warning
    assert isinstance(load(tmp_path / "e.csv", kind="table"), TableSource)  # as stated
    (tmp_path / "rows.csv").write_text("\n".join(["bought,x", *(f"{row // 3 % 2},{row % 17}" for row in range(300))]))
    table = load(tmp_path / "rows.csv")
    assert isinstance(table, TableSource)
    assert table.label == "bought"
    (tmp_path / "rows.csv").write_text("\n".join(["y1,x", *(f"{row % 7}a,{row % 17}b" for row in range(300))]))
    with pytest.raises(ValueError, match=r"no column looks like the label.*Give --label with `lmctr init`"):
        load(tmp_path / "rows.csv")
