"""What `lmctr init` makes of exports of analytics tools, shops and apps."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from guess_logs import ROWS, clicks, guessed, table, write

from lmctr.data.guess import NoLogError, guess_files, guess_log, guess_table, sample_file
from lmctr.data.guess.found import NotToldError


def test_lists_of_objects_and_maps_are_not_said_to_become_columns(tmp_path):
    """`lmctr data convert` makes columns of the entries of one object alone."""
    columns = table() | {"pair": [{"a": 1}] * ROWS, "ads": [[{"a": 1}]] * ROWS}
    maps = pa.array([[("a", "b")]] * ROWS, pa.map_(pa.string(), pa.string()))
    pq.write_table(pa.table(columns).append_column("params", maps), tmp_path / "e.parquet")
    whys = {entry.column: entry.why for entry in guess_log(sample_file(tmp_path / "e.parquet")).guesses}
    assert "lmctr data convert" in whys["pair"]
    assert whys["ads"].startswith("holds lists of objects; give each entry a row of its own (explode")
    assert whys["params"].startswith("holds maps; give each entry a row of its own (explode")


def test_days_are_no_items(tmp_path):
    """They come again as ids do: of GA4's events, whose items stand in lists of objects, and of a log with both."""
    days = [20240101 + row // 15 for row in range(ROWS)]
    for own in (days, [f"{day % 100:02d}.01.2024" for day in days]):
        file = write(tmp_path / "e.csv", table(item_id=None, event_date=own))
        with pytest.raises(NoLogError, match="no column looks like the item"):
            guess_log(file)
    guess, _ = guessed(tmp_path / "f.csv", table(item_id=None, event_date=days, thing=table()["item_id"]))
    assert guess.schema["columns"]["item"] == "thing"


def test_days_beside_the_time_are_no_context(tmp_path):
    """The model would know the days of its training, and none of those to come."""
    days = [20240101 + row // 15 for row in range(ROWS)]
    for name, own in (("event_date", days), ("dt", [f"{day % 100:02d}.01.2024" for day in days])):
        guess, _ = guessed(tmp_path / "e.csv", table(slot=[row % 5 for row in range(ROWS)], **{name: own}))
        assert guess.schema["columns"]["context"] == {"slot": {"column": "slot", "type": "integer"}}
        assert next(one.why for one in guess.guesses if one.column == name) == "another time than ts"


def test_a_rating_that_every_item_has_one_of_is_the_items_own(tmp_path):
    """What others gave an app or a product before, as its page shows it: no answer of this user, and no label."""
    items = table()["item_id"]
    ratings = [1 + item % 9 / 2 for item in items]
    guess, _ = guessed(tmp_path / "e.csv", table(rating=ratings))
    assert "feedback_values" not in guess.schema["columns"]
    assert guess.schema["catalogue"]["columns"] == ["rating"]
    with pytest.raises(NotToldError, match="no column looks like the label"):
        guess_log(write(tmp_path / "f.csv", table(click=None, rating=ratings)))
    guess, _ = guessed(tmp_path / "f.csv", table(click=None, rating=ratings), given={"label": "rating>=3"})
    assert guess.schema["columns"]["label"] == {"column": "rating", "at_least": 3}


def test_the_only_column_of_two_values_is_no_sure_label_unless_it_is_called_so_or_stands_last(tmp_path):
    bits = [row % 3 % 2 for row in range(ROWS)]
    plays, views = table(click=None), clicks(clicked=None)
    for columns, guess_of in ((plays, guess_log), (views, guess_table)):
        names = list(columns)
        for name, at, is_sure in (("autoplay", 0, False), ("clicked", 0, True), ("autoplay", None, True)):
            order = [*names[:at], name, *names[at:]] if at is not None else [*names, name]
            file = write(tmp_path / "e.csv", {own: (columns | {name: bits})[own] for own in order})
            (label,) = (entry for entry in guess_of(file).guesses if entry.role == "label")
            assert (label.column, label.sure) == (name, is_sure)


def test_the_label_of_a_log_that_is_called_an_outcome(tmp_path):
    bits, others = ([row % size % 2 for row in range(ROWS)] for size in (3, 5))
    guess = guess_log(write(tmp_path / "e.csv", table(click=None, autoplay=others, success_flag=bits, muted=others)))
    assert guess.schema["columns"]["label"] == "success_flag"
    assert next(entry for entry in guess.guesses if entry.role == "label").sure


def test_the_option_that_states_a_click_is_quoted_for_a_shell(tmp_path):
    events = ["Song Played", "Song Skipped"] * (ROWS // 2)
    with pytest.raises(NotToldError, match="--label 'event=Song Played'"):
        guess_log(write(tmp_path / "e.csv", table(click=None, event=events)))


def test_dates_of_one_unknown_form_are_not_said_to_be_of_several(tmp_path):
    times = ["2014-01-09 08:00:00 Paris", "2014-01-10 08:00:00 Paris"] * (ROWS // 2)
    with pytest.raises(NoLogError, match=r"\(dates, but in a form that is not known: '2014-01-09 08:00:00 Paris'\)"):
        guess_log(write(tmp_path / "e.csv", table(ts=None, **{"Created On": times})))


def test_invoices_are_no_items(tmp_path):
    """A basket is of one user; things are met by several."""
    visit = [row // 4 for row in range(ROWS)]
    invoices = {"customer": [n % 40 for n in visit], "invoice": [f"C{n}" for n in visit], "code": table()["item_id"]}
    invoices |= {"asked": [f"where is {n}" for n in visit]}  # prose of one user tells more than a name
    columns = table(user_id=None, item_id=None) | {
        name: invoices[name] for name in ("invoice", "customer", "code", "asked")
    }
    guess, log = guessed(tmp_path / "e.csv", columns)
    assert (guess.schema["columns"]["item"], guess.schema["columns"]["user"]) == ("code", "customer")
    assert next(entry for entry in guess.guesses if entry.column == "invoice").why.startswith(
        "names visits, each of one"
    )
    assert log.context.column_names == ["asked"]
    alone = table(user_id=["me"] * ROWS, device=[["phone", "PC"][row % 3 // 2] for row in range(ROWS)])
    _, log = guessed(tmp_path / "h.csv", alone, given={"user": "user_id"})  # all that there is is of the one user
    assert log.context.column_names == ["device"]
    other = columns | {"invoice": [f"C{n % 90}" for n in range(ROWS)]}  # of several users
    assert guessed(tmp_path / "f.csv", other)[0].schema["columns"]["item"] == "invoice"
    stocks = table(item_id=None) | {"StockCode": table()["item_id"], "shelf": [n % 70 for n in range(ROWS)]}
    assert guessed(tmp_path / "g.csv", stocks)[0].schema["columns"]["item"] == "StockCode"


def test_headers_in_another_language(tmp_path):
    """Stated, as no name of theirs is known: the other kinds of a stated action are read in histories, and titles seen by what they are."""
    own = table()
    rng = np.random.default_rng(0)
    kinds = list(rng.choice(["buy", "pv", "cart", "fav"], ROWS))
    columns = {"用户": own["user_id"], "商品": own["item_id"], "时间": own["ts"], "行为": kinds}
    columns |= {
        "商品名称": [f"椅子 {item}" for item in own["item_id"]],
        "品牌": [f"b{item % 7}" for item in own["item_id"]],
    }
    given = {"user": "用户", "item": "商品", "time": "时间"}
    guess, log = guessed(tmp_path / "e.csv", columns, given=given | {"label": "行为=buy"})
    assert guess.schema["columns"]["label"] == {"column": "行为", "equals": "buy"}
    assert guess.schema["columns"]["feedback"] == "行为"
    assert {"buy", "cart", "fav", "pv"} <= {*log.feedback_names}
    assert guess.title == "商品名称"
    assert guess.item_categories == ["品牌"]
    two = columns | {"行为": ["buy" if kind == "buy" else "pv" for kind in kinds]}
    assert "feedback" not in guessed(tmp_path / "f.csv", two, given=given | {"label": "行为=buy"})[0].schema["columns"]


def test_answers_that_are_not_known(tmp_path):
    """NA beside yes and no is no third answer; elsewhere it may be a word."""
    words = ["ja" if row % 3 else "nein" for row in range(ROWS)]
    words[::20] = ["NA"] * len(words[::20])
    lands = [["NA", "DE", "FR"][row % 3] for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.csv", table(click=None, geklickt=words))
    assert guess.schema["events"]["na_values"] == ["NA"]
    assert guess.schema["columns"]["label"] == {
        "column": "geklickt", "equals": "ja", "otherwise": "nein", "missing": "history",
    }  # fmt: skip
    assert len(log.sample_events()) == ROWS - ROWS // 20
    guess, _ = guessed(tmp_path / "f.csv", table(land=lands))
    assert "na_values" not in guess.schema["events"]
    file = write(tmp_path / "g.jsonl", table(click=None, geklickt=words))  # in which only null is missing
    with pytest.raises(
        NotToldError, match=r"\(NA, ja, nein\), none of which is known to be a click; state it: --label geklickt=ja"
    ):
        guess_log(file, given={"label": "geklickt"})
    stated = guess_log(file, given={"label": "geklickt=ja"})
    assert "as stated: no clicks are 'NA', 'nein'; 'ja' in 63.2% of the rows" in {one.why for one in stated.guesses}


def test_a_word_that_a_later_column_reads_as_missing_is_missing_in_all_before_it(tmp_path):
    """As the schema's na_values, which are those of all columns, read it."""
    things = [f"i{name}" if row % 8 else "NA" for row, name in enumerate(table()["item_id"])]
    answers = ["NA" if row % 11 == 5 else ["nein", "ja"][row % 3 // 2] for row in range(ROWS)]
    columns = {"user_id": table()["user_id"], "item_id": things, "ts": table()["ts"], "geklickt": answers}
    guess = guess_log(write(tmp_path / "e.csv", columns, ","))
    assert guess.schema["events"]["na_values"] == ["NA"]
    assert guess.schema["columns"]["item"] == {"column": "item_id", "missing": "drop"}
    gone = things.count("NA")
    assert f"{gone:,} rows ({gone / ROWS:.1%}) have none, and are left out (missing: drop)" in " ".join(
        one.why for one in guess.guesses
    )


def test_codes_with_zeros_in_front_are_no_numbers_with_a_comma(tmp_path):
    """Of a file parted by semicolons, whose numbers may have one: 00123 and 123 are two customers."""
    codes = [f"{own:05d}" for own in table()["user_id"]]
    prices = [f"{row % 9},5" for row in range(ROWS)]
    file = write(tmp_path / "e.csv", clicks(kunde=codes, preis=prices), ";")
    fields = {field["name"]: field for field in guess_table(file).schema["fields"]}
    assert fields["kunde"]["type"] == "categorical"
    assert fields["kunde"]["value_type"] == "text"
    assert fields["preis"]["type"] == "numeric"
    assert guess_table(file).schema["events"]["decimal"] == ","


def test_sessions_of_a_shop_whose_items_are_called_otherwise(tmp_path):
    """As OTTO's, taken apart; where no name tells the item, the error says so beside what a table lacks."""
    kinds = [["clicks", "carts", "orders"][row % 3] for row in range(ROWS)]
    own = table(user_id=None, item_id=None, click=None)
    columns = {
        "session": table()["user_id"],
        "aid": [row * 7 // 2 for row in range(ROWS)],
        "ts": own["ts"],
        "type": kinds,
    }
    schema = guessed(tmp_path / "e.jsonl", columns)[0].schema["columns"]
    assert (schema["user"], schema["item"], schema["feedback"]) == ("session", "aid", "type")
    assert schema["label"] == {"column": "type", "equals": "orders"}  # all three are clicks
    columns["thing"] = columns.pop("aid")
    write(tmp_path / "f.jsonl", columns)
    with pytest.raises(NotToldError, match=r"No log either: no column looks like the item"):
        guess_files(tmp_path / "f.jsonl")


def test_what_users_or_items_are_is_no_label_and_no_weight_of_samples(tmp_path):
    own = table(click=None)
    columns = own | {
        "premium": [["no", "yes"][user % 2] for user in own["user_id"]],
        "weight": [item / 4 + 1 for item in own["item_id"]],  # kilograms
        "went": table()["click"],
        "device": ["phone"] * (ROWS - 1) + ["PC"],
    }
    guess, log = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["label"] == "went"
    assert (log.users.column_names, log.catalogue.column_names) == (["user_id", "premium"], ["item_id", "weight"])
    assert log.weight is None
    weights = table(weight=[1 + row % 5 for row in range(ROWS)])
    assert guessed(tmp_path / "f.csv", weights)[0].schema["columns"]["weight"] == "weight"


def test_rows_of_one_time_are_no_log_and_shares_no_users(tmp_path):
    columns = table(user_id=None) | {"off": [f"{n}%" for n in table()["user_id"]]}
    with pytest.raises(NoLogError, match="no column looks like the user"):
        guess_log(write(tmp_path / "e.csv", columns))
    with pytest.raises(NoLogError, match="no column looks like the time"):
        guess_log(write(tmp_path / "e.csv", table(ts=[1_700_000_000] * ROWS)))
    fields = guess_table(write(tmp_path / "e.csv", columns)).guesses
    assert "whole numbers" in next(one.why for one in fields if one.column == "off")


@pytest.mark.parametrize(
    "names", [("Kunde", "Artikel-Nr", "Zeitpunkt", "geklickt"), ("用户ID", "商品_id", "时间", "是否点击")]
)
def test_common_headers_of_other_languages_are_known(tmp_path, names):
    own = table()
    columns = dict(zip(names, (own[name] for name in ("user_id", "item_id", "ts", "click"))))
    guess, _ = guessed(tmp_path / "e.csv", columns)
    assert [guess.schema["columns"][role] for role in ("user", "item", "time", "label")] == [*names]
    assert all(one.sure for one in guess.guesses)
    kinds = columns | {names[3]: [["浏览", "加购", "购买"][row % 3] for row in range(ROWS)]}
    with pytest.raises(NotToldError, match=rf"of few values: '{names[3]}' \('浏览', '加购', '购买'\)\); state it"):
        guess_log(write(tmp_path / "f.csv", kinds))


def test_customers_who_come_again_are_users_beside_ids_of_their_orders(tmp_path):
    own = table(user_id=None)
    columns = {"customer_id": [f"c{row}" for row in range(ROWS)], "customer_unique_id": table()["user_id"]} | own
    guess, log = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["user"] == "customer_unique_id"
    assert log.num_users == 40


def test_what_is_counted_of_ads_is_no_user(tmp_path):
    own = table(user_id=None, item_id=None, click=None)
    columns = {"ad_id": [*range(ROWS)], "Clicks": [row * 7 % 50 for row in range(ROWS)], **own}
    columns["Approved_Conversion"] = [row * 5 % 13 for row in range(ROWS)]
    with pytest.raises(NoLogError, match="no column looks like the user"):
        guess_log(write(tmp_path / "e.csv", columns), given={"label": "Approved_Conversion>=6"})


def test_users_of_another_file_are_said_to_be_others(tmp_path):
    people = write(tmp_path / "people.csv", {"user_id": ["x1", "x2"], "age": [30, 40]})
    with pytest.raises(ValueError, match=r"its 'user_id' \(such as 'x1'\) holds none of the ids .* Leave out --users"):
        guessed(tmp_path / "e.csv", table(), users=people)
    few = {
        "user_id": [35, 36, 37, 900, 901],
        "age": [20, 21, 22, 23, 24],
    }  # ages stand among the ids too, and more of them
    guess, _ = guessed(tmp_path / "f.csv", table(), users=write(tmp_path / "few.csv", few))
    assert guess.schema["users"] == {
        "path": str(tmp_path / "few.csv"),
        "columns": {"age": {"column": "age", "type": "integer"}},
    }
    fields = guess_table(write(tmp_path / "g.csv", table()), users=write(tmp_path / "few.csv", few)).schema
    assert fields["joined"] == [{"path": str(tmp_path / "few.csv"), "by": "user_id", "columns": ["age"]}]


def test_grades_that_are_given_with_the_label_are_left_out_and_means_before_it_are_not(tmp_path):
    own, noise = table(click=None), np.random.default_rng(0)
    rating = noise.integers(0, 11, ROWS) / 2
    columns = own | {
        "review_overall": rating,
        "review_taste": (rating + noise.integers(1, 4, ROWS) / 2).round(1),  # other grades than the label's
        "review_mean": rating + noise.random(ROWS),
        "review_length": noise.integers(10, 90, ROWS),
        "item_review": [item / 4 for item in own["item_id"]],
    }
    guess, _ = guessed(tmp_path / "e.csv", columns)
    assert guess.schema["columns"]["label"]["column"] == "review_overall"
    left = [one.column for one in guess.guesses if one.why.startswith("other grades")]
    assert left == ["review_taste"]


def test_grades_and_artists_are_no_users(tmp_path):
    """Of reviews by critics who wrote one or two, a score of ten steps is no user; what one person listened to has none."""
    names = [f"n{row}" for row in range(ROWS)]
    scores = [row % 11 for row in range(ROWS)]
    reviews = table(user_id=None, click=None, item_id=None, score=scores, game=[f"g{row % 23}" for row in range(ROWS)])
    guess = guess_log(write(tmp_path / "e.csv", reviews | {"critic": names}))
    assert guess.schema["columns"]["user"] == "critic"
    assert guess.schema["columns"]["label"]["column"] == "score"
    with pytest.raises(NoLogError, match="no column looks like the user"):
        guess_log(write(tmp_path / "f.csv", reviews | {"by": names}))
    heard = table(user_id=None, click=None, item_id=None, track=reviews["game"])
    with pytest.raises(NoLogError, match="no column looks like the user"):
        guess_log(write(tmp_path / "g.csv", heard | {"artist": [f"a{row % 17}" for row in range(ROWS)]}), negatives=2)


def test_ids_that_no_name_tells_may_lack_on_few_rows(tmp_path):
    games = [None if row == 7 else f"g{row % 23}" for row in range(ROWS)]
    guess, log = guessed(tmp_path / "e.jsonl", table(item_id=None, game=games))
    assert guess.schema["columns"]["item"] == {"column": "game", "missing": "drop"}
    assert log.num_events == ROWS - 1


def test_ids_whose_name_tells_them_may_lack_on_many_rows(tmp_path):
    """Half of the events are starts of an app, of no item; `sku_id` holds the word that names one, and a price beside it does not."""
    opened = [row % 2 == 0 for row in range(ROWS)]
    columns = {
        "sku_id": [None if own else f"s{row % 23}" for row, own in enumerate(opened)],
        "event_type": ["open" if own else ["view", "purchase"][row % 3 // 2] for row, own in enumerate(opened)],
        "price": [None if own else 5.5 + row % 40 for row, own in enumerate(opened)],
    }
    guess, log = guessed(tmp_path / "e.jsonl", table(item_id=None, click=None) | columns)
    assert guess.schema["columns"]["item"] == {"column": "sku_id", "missing": "drop"}
    assert guess.schema["columns"]["label"] == {"column": "event_type", "equals": "purchase"}
    assert log.num_events == ROWS / 2


def test_what_was_written_is_no_item_and_lists_are_no_users(tmp_path):
    """Of reviews of a few places, `content` is called like an item; the words that visitors chose come again as ids do."""
    rng = np.random.default_rng(0)
    words = [f"word{number}" for number in range(60)]
    reviews = {
        "content": [" ".join(rng.choice(words, 9)) for _ in range(ROWS)],
        "moments": [", ".join(rng.choice(words[:9], 1 + row % 3, replace=False)) for row in range(ROWS)],
    }
    others = {"place": [f"p{row % 30}" for row in range(ROWS)], "nickname": [f"u{row}" for row in range(ROWS)]}
    columns = table(user_id=None, item_id=None) | reviews | others
    guess = guess_log(write(tmp_path / "e.jsonl", columns))
    assert guess.schema["columns"]["item"] == "place"
    assert guess.schema["columns"]["user"] == "nickname"
    del columns["nickname"]
    with pytest.raises(NoLogError, match="no column looks like the user"):
        guess_log(write(tmp_path / "f.jsonl", columns), given={"item": "place"})
