"""The page of `lmctr demo`: it shows the run's own scores and what the model read; in a browser it works without a network."""

import html
import json
import re
import runpy
import socket
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import warm

import lmctr
from lmctr.cli.main import main
from lmctr.hub.demo.examples import card_example, run_examples
from lmctr.hub.demo.explain import _left_out
from lmctr.hub.demo.page import _FIELDS, _fields, _read, _written, scored_html
from lmctr.hub.demo.running import _examples, write_space
from lmctr.models import families
from lmctr.runs.answers.served import ServedModel
from lmctr.runs.folder import RunFolder, open_run

sys.path += [str(Path(__file__).parents[1] / name) for name in ("server", "cli")]

from cli_helpers import TINY
from served_runs import KINDS, save

TEXT = {
    **TINY,
    "data": {**TINY["data"], "statistics": "basic"},
    "model": {**TINY["model"], "sink_signal": ["recency", "statistic:user_rate"]},
    "training": {**TINY["training"], "learning_rate": 0.02},
}
EVENTS = {
    "data": {"name": "synthetic_sequence", "options": {"num_users": 40, "num_items": 30, "events_per_user": 40}},
    "model": {"family": "din", "embedding_dim": 4},
    "training": {"epochs": 1, "use_cpu": True, "per_device_train_batch_size": 64, "learning_rate": 0.05},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Finished runs on logs: of texts with statistics, and of events."""
    folder = tmp_path_factory.mktemp("trained")
    return {
        name: lmctr.runs.train(recipe, output_dir=folder / name).path
        for name, recipe in {"text": TEXT, "events": EVENTS}.items()
    }


def rows_of(page):
    """Labels and values of the bars of a page."""
    cells = re.findall(r"<td[^>]*>(?:<div[^>]*></div>)?([^<]*)</td>", page)
    return [(html.unescape(cells[place]), cells[place + 2]) for place in range(0, len(cells), 3)]


def boxes(request, kind):
    return dict(zip([key for key, _ in _FIELDS[kind]], _written(request, kind)))


@pytest.mark.parametrize("name", ["text", "events"])
def test_users_of_the_log_are_ranked_as_the_run_scores_them(trained, name):
    served, run = ServedModel(str(trained[name])), lmctr.runs.load(trained[name])
    examples = run_examples(open_run(trained[name]), served.processor, 3)
    assert len(examples.requests) == 3
    assert (examples.names == {}) == (name == "text")
    for request in examples.requests.values():
        assert served.check(_read(boxes(request, name), name)) == served.check(request)
        ranking, seen = scored_html(served, boxes(request, name), examples.names)
        chances = 1 / (1 + np.exp(-run.predict([request]).astype(float)))
        assert [value for _, value in rows_of(ranking)] == [f"{value:.2%}" for value in np.sort(chances)[::-1]]
        best = request["candidates"][int(chances.argmax())]
        label = best["text"] if name == "text" else examples.names[str(best["item"])]
        assert rows_of(ranking)[0][0] == f"1. {label}"
        assert ("Attention on the sinks" if name == "text" else "Share by behaviour type") in seen


def test_share_of_sinks_is_that_of_the_models_attention(trained):
    served = ServedModel(str(trained["text"]))
    request = next(iter(run_examples(open_run(trained["text"]), served.processor, 1).requests.values()))
    request["candidates"] = request["candidates"][:1]
    seen = scored_html(served, boxes(request, "text"), {})[1]
    batch = served.answers.process(
        [
            (
                "",
                served.answers.prepare([served.check(request)])[0],
                served.answers.prepare([served.check(request)])[0]["candidates"],
            )
        ]
    )
    served.model.model.language_model.set_attn_implementation("eager")
    with torch.no_grad():
        layers = served.model(**batch, output_attentions=True).attentions
    weights = torch.stack(layers)[:, 0].mean((0, 1))
    sinks = batch["sink_buckets"][0].reshape(len(weights), -1)[:, 0] >= 0
    shares = weights[batch["target_mask"][0]][:, sinks].mean(0)
    assert [value for _, value in rows_of(seen)] == [f"{value:.2%}" for value in shares.sort(descending=True).values]
    assert f"Together {shares.sum():.1%}" in seen


def test_share_by_behaviour_is_that_of_the_models_weights(trained):
    served = ServedModel(str(trained["events"]))
    request = next(iter(run_examples(open_run(trained["events"]), served.processor, 1).requests.values()))
    request["candidates"] = request["candidates"][:1]
    seen = scored_html(served, boxes(request, "events"), {})[1]
    batch = served.processor(
        [request["history"]], [request["candidates"]], times=[request["time"]], scenarios=[request["scenario"]]
    )
    with torch.no_grad():
        weights = served.model(**batch, output_attentions=True).attentions[0].abs().mean((0, 1, 2))[:-1]
    shares = (weights / weights.sum()).tolist()
    kinds = {event["behavior"] for event in request["history"]}
    found = [(label.rsplit(", ", 1)[0], value) for label, value in rows_of(seen)[len(kinds) :]]
    order = np.argsort(-np.array(shares))[: len(found)]
    assert found == [(str(request["history"][place]["item"]), f"{shares[place]:.1%}") for place in order]


def test_behaviours_left_out(trained):
    served, run = ServedModel(str(trained["events"])), lmctr.runs.load(trained["events"])
    request = next(iter(run_examples(open_run(trained["events"]), served.processor, 1).requests.values()))
    request |= {"candidates": request["candidates"][:1], "history": request["history"][:5]}
    less = [{**request, "history": [e for e in request["history"] if e is not out]} for out in request["history"]]
    chances = 1 / (1 + np.exp(-run.predict([request, *less]).astype(float)))
    expected = sorted(chances[0] - chances[1:], key=lambda lost: -abs(lost))
    shown = rows_of(_left_out(served, served.check(request), {}))
    np.testing.assert_allclose([float(value) for _, value in shown], expected, atol=6e-5)


def test_fields_that_interact(tmp_path):
    fields = [{"name": name, "type": "categorical"} for name in ("ad", "page", "<b>hour</b>")]
    processor = lmctr.TabularFeatureProcessor(fields, label=None)
    rows = [{"ad": number % 3, "page": number % 5, "<b>hour</b>": number % 7} for number in range(50)]
    processor.fit(rows)
    torch.manual_seed(0)
    size = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_bases": 4, "meta_dim": 4}
    model = lmctr.FATForCTR(lmctr.FATConfig(**processor.model_config_values(), **size))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter))
    served = ServedModel(str(save(tmp_path / "fat", model, processor, processor(rows[:2]))))
    assert served.model.model.meta_embedding is None  # the hypernetwork's matrices are ready made
    np.testing.assert_allclose(served.probe[1], 0, atol=1e-5)
    ranking, seen = scored_html(served, {"rows": json.dumps(rows[:4])}, {})
    assert len(rows_of(ranking)) == 4
    matrix = model.field_interactions().mean((0, 1))
    query, key = np.unravel_index(int(matrix.argmax()), matrix.shape)
    names = [field["name"] for field in fields]
    assert rows_of(seen)[0] == (f"{names[query]} reads {names[key]}", f"{matrix.max():.3f}")
    widths = [float(width) for width in re.findall(r"height:0.8em;width:([0-9.]+)%", seen)]
    weights = np.sort(matrix.detach().numpy().ravel())[::-1]
    expected = 100 * (weights - weights[-1]) / (weights[0] - weights[-1])  # the modulations are all near 1
    np.testing.assert_allclose(widths, expected[: len(widths)], atol=0.06)
    assert f"From {weights[-1]:.3f}, the palest, to {weights[0]:.3f}." in seen
    assert f"Bars begin at the least of all pairs, {weights[-1]:.3f}." in seen
    assert "<b>" not in ranking + seen
    plain = lmctr.FATForCTR(lmctr.FATConfig(**processor.model_config_values(), **size, use_pair_modulation=False))
    served = ServedModel(str(save(tmp_path / "plain", plain, processor, processor(rows[:2]))))
    ranking, seen = scored_html(served, {"rows": json.dumps(rows[:4])}, {})
    assert len(rows_of(ranking)) == 4
    assert "modulation" in seen


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_without_a_recipe_shows_the_cards_example(kind, tmp_path):
    served = ServedModel(str(KINDS[kind][0](tmp_path / "run")))
    request = card_example(open_run(tmp_path / "run", "model"), served.processor).requests["an example"]
    ranking, seen = scored_html(served, boxes(request, served.kind), {})
    assert rows_of(ranking)[0][0].startswith("1. "), ranking
    assert seen


def test_what_is_wrong_stands_in_the_place_of_the_ranking(trained):
    served = ServedModel(str(trained["events"]))
    for texts, words in (
        ({"history": "[", "candidates": "1", None: "{}"}, "History: events, oldest first: no valid JSON"),
        ({"history": "[]", "candidates": "1", None: "3"}, "accepted is an object"),
        ({"history": "[]", "candidates": "", None: '{"time": 3}'}, "candidates must be a list of at least one item"),
        ({"history": "[]", "candidates": "1", None: '{"tmie": 3}'}, "time"),
    ):
        ranking, seen = scored_html(served, texts, {})
        assert words in html.unescape(ranking)
        assert seen == ""


def test_what_is_typed_into_the_page_of_a_model_that_reads_statistics(trained):
    """Its candidates need their items' ids, so the box asks for them; a behaviour without a time is told, and long rankings are cut."""
    typed = {
        "text": 'Candidates, one {"item": id or null, "text": ...} per line',
        "events": "Candidates, one item per line",
    }
    for name, label in typed.items():
        served = ServedModel(str(trained[name]))
        examples = run_examples(open_run(trained[name]), served.processor, 1)
        texts = boxes(next(iter(examples.requests.values())), name)
        assert dict(_fields(served))["candidates"] == label
        timeless = [{"item": 3} | ({"text": "Crime"} if name == "text" else {})]
        ranking, seen = scored_html(served, texts | {"history": json.dumps(timeless)}, examples.names)
        assert "no &#x27;time&#x27;" in ranking
        assert not seen
        texts["candidates"] = "\n".join([texts["candidates"].splitlines()[0]] * 201)
        ranking, _ = scored_html(served, texts, examples.names)
        assert len(rows_of(ranking)) == 200
        assert "The first 200 of 201." in ranking


def test_a_space_that_could_not_be_written_whole_is_not_left(trained, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("lmctr.hub.demo.running.write_json", full)
        assert main(["demo", str(trained["text"]), "--space", str(tmp_path / "space")]) == 2
    assert "is the disk full? Free some and give the same command again" in capsys.readouterr().err
    assert main(["demo", str(trained["text"]), "--space", str(tmp_path / "space")]) == 0


def test_a_space(trained, tmp_path, capsys, monkeypatch):
    pytest.importorskip("gradio")
    monkeypatch.setitem(families._PACKAGES, "ctr_sink", ("their-sinks",))
    assert main(["demo", str(trained["text"]), "--space", str(tmp_path / "space")]) == 0
    assert "hf upload USER/NAME" in capsys.readouterr().out
    space = tmp_path / "space"
    assert sorted(path.name for path in space.iterdir()) == ["README.md", "app.py", "model", "requirements.txt"]
    assert "sdk: gradio\napp_file: app.py" in (space / "README.md").read_text()
    assert (space / "requirements.txt").read_text() == f"lmctr[demo]>={lmctr.__version__}\ntheir-sinks\n"
    kept = json.loads((space / "model" / "demo_examples.json").read_text())
    assert list(kept["requests"]) == ["an example"]  # no user of the log, unless asked for
    assert not (space / "model" / "predictions").exists()
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "False")
    with monkeypatch.context() as patch:
        patch.chdir(space)
        page = runpy.run_path("app.py", run_name="app")["page"]
    assert [part.value for part in page.blocks.values() if type(part).__name__ == "Dropdown"] == ["an example"]
    assert main(["demo", str(trained["text"]), "--space", str(space)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert write_space(str(trained["events"]), tmp_path / "other", users=2) == 2
    kept = json.loads((tmp_path / "other" / "model" / "demo_examples.json").read_text())
    assert len(kept["requests"]) == 2
    assert kept["names"]


def test_the_port(trained, monkeypatch, capsys):
    """0 takes a free one, which is printed; one that is taken is told before a model is loaded."""
    gradio = pytest.importorskip("gradio")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["demo", "no such folder", "--port", str(taken.getsockname()[1])]) == 2
    assert "cannot listen there" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr(gradio.Blocks, "launch", lambda page, **how: (None, f"port {how['server_port']}", None))
    monkeypatch.setattr(gradio.Blocks, "block_thread", lambda page: asked.append(page))
    assert main(["demo", str(trained["events"]), "--port", "0", "--users", "0"]) == 0
    assert re.search(r" at port [1-9]\d+ ", capsys.readouterr().out)
    assert len(asked) == 1


def test_data_that_are_gone_are_told(trained, tmp_path, capsys):
    folder = open_run(trained["events"])
    (tmp_path / "recipe.yaml").write_text(
        (folder.path / "recipe.yaml").read_text().replace("synthetic_sequence", "gone.yaml")
    )
    for name in ("config.json", "preprocessor_config.json", "sequence_items.parquet", "sequence_features.parquet"):
        if (folder.path / name).is_file():
            (tmp_path / name).write_bytes((folder.path / name).read_bytes())
    processor = lmctr.SequenceProcessor.from_pretrained(tmp_path)
    found = _examples(RunFolder(tmp_path), processor, 5)
    assert list(found.requests) == ["an example"]
    assert "the run's data cannot be read" in capsys.readouterr().err


@pytest.mark.browser
@pytest.mark.slow
@pytest.mark.parametrize("name", ["text", "events"])
def test_the_page_in_a_browser(trained, tmp_path, name):
    pytest.importorskip("gradio")
    browser = pytest.importorskip("browser")
    if browser.CHROMIUM is None:
        pytest.skip("needs Chromium")
    words = ("demo", str(trained[name]), "--port", str(browser.free_port()), "--users", "3")
    process = warm.start("-m", "lmctr", *words)
    tab = browser.Browser(tmp_path / "profile")
    try:
        tab.open(process.line().split(" at ")[1].split()[0])
        tab.wait_for("Candidates by probability")
        tab.wait_for("Attention on the sinks" if name == "text" else "Share by behaviour")
        before = tab.run("document.querySelector('table').innerText")
        tab.click("document.querySelector('input[aria-label=\"Begin with\"]')")
        options = "document.querySelectorAll('[role=option]')"
        tab.wait(lambda: tab.run(f"{options}.length") == 3, "the list of users")
        tab.click(f"{options}[1]")
        tab.wait(lambda: tab.run("document.querySelector('table').innerText") != before, "another ranking")
        tab.screenshot(tmp_path / "page.png")
        tab.click("document.querySelector('textarea')")
        tab.type('{"what": 1}')
        tab.wait(lambda: tab.run("document.querySelector('textarea').value") == '{"what": 1}', "what was typed")
        tab.click("[...document.querySelectorAll('button')].find(button => button.innerText == 'Score')")
        tab.wait_for("a target is a text or" if name == "text" else "what")
        assert tab.errors == []
        assert (tmp_path / "page.png").stat().st_size > 20_000
    finally:
        tab.close()
        process.terminate()
        process.wait(20)


def test_a_context_is_that_of_the_users_last_behaviour(tmp_path):
    """Without one, the page of a model that reads it began with an error."""
    draw = np.random.default_rng(0)
    rows = [
        f"{draw.integers(20)},{draw.integers(30)},{1_700_000_000 + n},{draw.integers(1, 4)},{draw.integers(2)}"
        for n in range(600)
    ]
    (tmp_path / "clicks.csv").write_text("\n".join(["user,item,time,place,click", *rows]))
    (tmp_path / "schema.yaml").write_text(
        "events: clicks.csv\n"
        "columns: {user: user, item: item, time: time, label: click, context: {place: {column: place, type: integer}}}\n"
    )
    data = {"name": str(tmp_path / "schema.yaml"), "statistics": ["user_rate", "context"], "max_history_length": 5}
    recipe = {**EVENTS, "data": {**data, "baselines": False}}
    folder = open_run(lmctr.runs.train(recipe, output_dir=tmp_path / "run").path)
    served = ServedModel(str(folder.path))
    last = {user: int(place) for user, _, _, place, _ in (row.split(",") for row in rows)}
    for title, request in run_examples(folder, served.processor, 3).requests.items():
        assert {entry["context"]["place"] for entry in request["candidates"]} == {last[title.split()[0]]}
        assert len(rows_of(scored_html(served, boxes(request, "events"), {})[0])) == len(request["candidates"])
    (request,) = card_example(folder, served.processor).requests.values()
    assert [entry["context"] for entry in request["candidates"]] == [{"place": None}]
    assert len(rows_of(scored_html(served, boxes(request, "events"), {})[0])) == 1
