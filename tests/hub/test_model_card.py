"""The card: every number comes from the run, its lines run, and a hand-edited one is kept."""

import json
import re
import shlex
import shutil

import pytest
import torch
import yaml
from huggingface_hub import ModelCard
from tiny_run import write_json, write_run

from lmctr.hub.model_card import build_card, is_edited, write_card
from lmctr.hub.publish import push_run


def read(path, name):
    return json.loads((path / name).read_text())


def python_block(card):
    return re.search(r"```python\n(.*?)```", card, re.DOTALL).group(1)


def test_header_holds_the_runs_metrics(finished_run):
    card = ModelCard(build_card(finished_run[0], repo_id="tester/tiny-ctr", licence="mit"))
    header = card.data.to_dict()
    assert header["library_name"] == "lmctr"
    assert header["pipeline_tag"] == "text-classification"
    assert {"ctr-prediction", "ctr_sink"} <= set(header["tags"])
    assert header["license"] == "mit"
    assert header["language"] == "en"
    assert card.data.model_name == "tiny-ctr"
    found = {(entry.dataset_split, entry.metric_type): entry.metric_value for entry in card.data.eval_results}
    metrics = read(finished_run[0], "metrics.json")["split metrics"]
    names = {
        "auc": "roc_auc",
        "log_loss": "log_loss",
        "grouped_auc": "grouped_roc_auc",
        "user_auc": "user_roc_auc",
        "normalized_entropy": "normalized_entropy",
        "expected_calibration_error": "expected_calibration_error",
    }
    assert found == {(split, kind): metrics[split][key] for split in metrics for key, kind in names.items()}
    assert all(entry.dataset_name == "MovieLens tiny" for entry in card.data.eval_results)


def test_results_stand_beside_the_baselines(finished_run):
    card = build_card(finished_run[0])
    metrics = read(finished_run[0], "metrics.json")
    auc = f"{metrics['split metrics']['test']['auc']:.4f}"
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in card.splitlines()
        if line.startswith("| test")
    ]
    assert [row[1:3] for row in rows] == [
        ["**this model**", auc],
        ["counting (user and item rate)", "0.1000"],
        ["gradient boosting (history features)", "0.9000"],
    ]
    assert rows[0][-1] == "300"
    assert "One run, seed 0." in card
    assert f"behind gradient boosting (history features), {auc} against 0.9000" in card
    assert "behind counting" not in card
    assert "on the same samples, after fitting on 2,000 training samples (the model: 1,500)." in card


def test_data_licence_rule_and_dates_are_told(finished_run):
    card = build_card(finished_run[0])
    for text in (
        "Data set: MovieLens tiny",
        "Licence of the data: research use only",
        "Positive label: rating > 3",
        "samples (train 2,000, validation 200, test 300)",
        "validation 2017-07-14 02:40:00 UTC",
        "times (train 2014-05-13 16:53:20 UTC to 2017-07-14 02:39:59 UTC)",
        "Label rates: train 0.5123",
        "Length of texts: train 88 tokens on average, limit 128, 1.2% of samples lost behaviours to the limit",
        "Machine: x86_64, 2 CPU cores",
        "Terms of the data, which may bind the weights too: research use only",
        "Harper and Konstan 2015",
        "https://arxiv.org/abs/2508.03668",
        "whose embedding carries recency and feedback",
        "bert (1 layers, 32 wide), trained from scratch",
        "reads 5 behaviours of a history at most",
    ):
        assert text in card
    recipe = yaml.safe_load(re.search(r"```yaml\n(.*?)```", card, re.DOTALL).group(1))
    assert recipe["training"] == {"learning_rate": 0.001, "seed": 0}


def test_folders_of_the_machine_are_left_out(finished_run):
    card = build_card(finished_run[0])
    assert "someone" not in card
    assert "--data.path ml-latest-small" in card
    assert "path: ml-latest-small" in card


def test_the_command_can_be_pasted(run_dir):
    path, words = (
        run_dir / "metrics.json",
        ["lmctr", "train", "a b.yaml", "--data.options", "{users: 60, of: /home/someone/log, n: 2}"],
    )
    write_json(path, {**read(run_dir, path.name), "command": shlex.join([*words, "--data.path=/home/some one/log"])})
    command = re.search("Command: `(.*)`", build_card(run_dir))[1]
    assert shlex.split(command) == [*words[:-1], "{users: 60, of: log, n: 2}", "--data.path=log"]
    write_json(path, {**read(run_dir, path.name), "command": "lmctr train it's.yaml --data.path /home/someone/log"})
    assert shlex.split(re.search("Command: `(.*)`", build_card(run_dir))[1])[2:] == ["it's.yaml", "--data.path", "log"]


def test_every_number_of_the_results_is_in_the_run(finished_run):
    path = finished_run[0]
    card = build_card(path)
    written = json.dumps(read(path, "metrics.json"))
    known = {f"{float(number):.4f}" for number in re.findall(r"\d+\.\d+(?:e-\d+)?", written)}
    table = "\n".join(line for line in card.splitlines() if line.startswith(("| test", "| validation")))
    shown = set(re.findall(r"\d\.\d{4}", table))
    assert len(shown) > 10
    assert shown <= known


def test_loading_lines_run(finished_run, monkeypatch):
    monkeypatch.chdir(finished_run[0])
    scope = {}
    exec(python_block(build_card(".")), scope)
    assert scope["probability"].shape == (1,)
    assert 0 < float(scope["probability"]) < 1
    with torch.no_grad():
        logits = finished_run[1](**scope["batch"]).logits
    assert float(scope["probability"]) == pytest.approx(float(logits.sigmoid()), abs=1e-6)


@pytest.mark.parametrize("saved", [True, False])
def test_the_encoder_of_similarities_is_named(saved, tmp_path):
    write_run(tmp_path, config={"sink_signal": "similarity", "sink_order": "similarity"})
    recipe = yaml.safe_load((tmp_path / "recipe.yaml").read_text())
    recipe["data"]["retrieval"] = {"encoder": "/home/someone/encoders/mini", "k": 5}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    if saved:
        (tmp_path / "retriever").mkdir()
        write_json(tmp_path / "retriever/retriever.json", {})
    card = build_card(tmp_path)
    assert "'similarity': 0.25" in python_block(card)
    if saved:
        assert "by the encoder in `retriever/`" in card
    else:
        assert "by the encoder `mini`; this repository does not hold the encoder" in card


def test_loading_lines_name_the_repository(finished_run):
    code = python_block(build_card(finished_run[0], repo_id="tester/tiny"))
    assert 'lmctr.AutoModelForCTR.from_pretrained("tester/tiny")' in code
    assert 'AutoProcessor.from_pretrained("tester/tiny")' in code


def test_seeds_give_mean_and_spread(finished_run, tmp_path):
    others = []
    for seed in (1, 2):
        others.append(tmp_path / f"seed{seed}")
        others[-1].mkdir()
        write_run(others[-1], seed=seed)
    values = [read(path, "metrics.json")["split metrics"]["test"]["auc"] for path in (finished_run[0], *others)]
    mean = sum(values) / 3
    spread = (sum((value - mean) ** 2 for value in values) / 2) ** 0.5
    card = build_card(finished_run[0], seed_runs=others)
    assert f"**this model** | {mean:.4f} ± {spread:.4f}" in card
    assert "Mean and standard deviation over 3 runs, seeds 0, 1, 2" in card
    assert "come from one seed" not in card
    results = ModelCard(card).data.eval_results
    assert next(r for r in results if r.metric_type == "roc_auc").metric_value == pytest.approx(mean)

    recipe = yaml.safe_load((others[0] / "recipe.yaml").read_text())
    recipe["training"]["learning_rate"] = 0.01
    (others[0] / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    with pytest.raises(ValueError, match=r"recipes differ in training\.learning_rate"):
        build_card(finished_run[0], seed_runs=others)
    with pytest.raises(ValueError, match=r"seeds \[0, 0\]: give runs of different seeds"):
        build_card(finished_run[0], seed_runs=[finished_run[0]])
    (tmp_path / "moved").mkdir()
    write_run(tmp_path / "moved", seed=3)
    about = read(tmp_path / "moved", "data.json") | {"fingerprint": "another"}
    (tmp_path / "moved" / "data.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="moved were trained on different data"):
        build_card(finished_run[0], seed_runs=[tmp_path / "moved"])
    (others[1] / "metrics.json").unlink()
    with pytest.raises(ValueError, match=r"seed2 is not finished \(no metrics\.json\); continue it"):
        build_card(finished_run[0], seed_runs=[others[1]])
    with pytest.raises(ValueError, match=r"seed2 is not finished \(no metrics\.json\); continue it"):
        build_card(others[1], seed_runs=[finished_run[0]])


def test_the_earlier_run_is_named(run_dir):
    recipe = yaml.safe_load((run_dir / "recipe.yaml").read_text())
    assert "earlier run" not in build_card(run_dir)
    recipe["training"]["from_run"] = "/home/someone/runs/monday"
    (run_dir / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    assert "\nTraining went on from the weights of an earlier run, monday; data and figures here are " in build_card(
        run_dir
    )


def test_a_run_that_says_little_gets_a_card_that_says_so(run_dir):
    for name in ("metrics.json", "data.json", "recipe.yaml"):
        (run_dir / name).unlink()
    card = build_card(run_dir)
    assert "This run holds no evaluation" in card
    assert "does not say which data it was trained on" in card
    assert "holds no recipe" in card
    assert "model-index" not in card
    assert "**this model**" not in card


def test_what_is_unknown_of_the_data_breaks_no_sentence(run_dir):
    limits = []
    for gone in ((), ("label_rule",), ("name",)):
        data = read(run_dir, "data.json")
        write_json(run_dir / "data.json", data | {"info": {k: v for k, v in data["info"].items() if k not in gone}})
        limits.append(build_card(run_dir).partition("## Limits\n\n")[2].splitlines()[0])
    assert limits == [
        f"- {start}; its probabilities hold for samples like those only."
        for start in (
            "It was trained on MovieLens tiny (positive: rating > 3) and predicts that label",
            "It was trained on MovieLens tiny and predicts the label of these data, whose meaning is not stated here",
            "On which data it was trained, and what it calls positive, is not stated here",
        )
    ]


def test_a_licence_is_one_that_the_hub_knows(finished_run):
    assert ModelCard(build_card(finished_run[0], licence="other")).data.license == "other"
    with pytest.raises(ValueError, match=r"'Apache 2.0' is no identifier of the Hub's; accepted: apache-2.0.*'other'"):
        build_card(finished_run[0], licence="Apache 2.0")
    with pytest.raises(ValueError, match="licence 'not-a-licence' is no identifier"):
        push_run(finished_run[0], "tester/x", licence="not-a-licence")


def test_pretrained_backbone_is_named(run_dir):
    for backbone, base in (
        ("Qwen/Qwen2-0.5B", "Qwen/Qwen2-0.5B"),
        ("/home/someone/backbones/mini", None),
        ("mini", None),
    ):
        recipe = yaml.safe_load((run_dir / "recipe.yaml").read_text())
        recipe["model"]["backbone"] = backbone
        (run_dir / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        card = build_card(run_dir)
        assert ModelCard(card).data.base_model == base
        assert f"started from `{backbone if base else 'mini'}`" in card
        assert "someone" not in card


def test_metrics_without_splits_are_an_error(run_dir):
    write_json(run_dir / "metrics.json", {"test_auc": 0.8})
    with pytest.raises(ValueError, match=r"metrics\.json has no 'split metrics'"):
        build_card(run_dir)


def test_an_edited_card_is_kept(run_dir):
    path, written = write_card(run_dir)
    assert written
    assert not is_edited(path)
    assert write_card(run_dir, repo_id="tester/other")[1]  # untouched: written anew
    assert "tester/other" in path.read_text()
    edited = path.read_text().replace("## Limits", "## Limits\n\nDo not feed after midnight.")
    path.write_text(edited)
    assert write_card(run_dir) == (path, False)
    assert path.read_text() == edited
    assert write_card(run_dir, overwrite=True) == (path, True)
    assert "midnight" not in path.read_text()
    path.write_text("# Written by hand\n")
    assert not write_card(run_dir)[1]


def test_what_files_say_is_text_in_the_card(finished_run, tmp_path):
    path = tmp_path / "run"
    shutil.copytree(finished_run[0], path)
    data, metrics = read(path, "data.json"), read(path, "metrics.json")
    evil = "<script>x</script>\n\n# Title\n[here](http://evil)\n```"
    info = {**data["info"], "notes": evil, "name": evil, "licence": evil, "citation": evil}
    write_json(path / "data.json", {**data, "info": info, evil: evil})
    write_json(
        path / "metrics.json", {**metrics, "command": f"lmctr `{evil}", "machine": evil, "versions": {evil: evil}}
    )
    (path / "recipe.yaml").write_text(yaml.safe_dump({"data": {"name": "a\n\n```\n<script>"}}))
    text = ModelCard(build_card(path)).text
    prose = "".join(re.split(r"```[a-z]+\n.*?\n```", text, flags=re.DOTALL))
    prose = re.sub(r"Command: `[^`\n]*`", "", prose)  # code, which shows what it holds
    assert "Notes: &lt;script>x&lt;/script> # Title [here]&#40;http://evil)" in prose
    for mark in ("<script", "](http://evil", "\n# Title", "\n```"):
        assert mark not in prose


def test_a_refit_models_validation_is_that_of_the_model_before(run_dir):
    path = run_dir / "metrics.json"
    write_json(path, {**read(run_dir, path.name), "before_refit": {"best_step": 5}})
    card = ModelCard(build_card(run_dir))
    (row,) = (line for line in card.text.splitlines() if line.startswith("| validation | **"))
    assert row.startswith("| validation | **the model chosen, before it was trained on these too** |")
    assert "trained anew on the training and the validation part" in card.text
    assert {entry.dataset_split for entry in card.data.eval_results} == {"test"}


def test_times_before_2001_are_told_as_times(run_dir):
    data = read(run_dir, "data.json")
    data["split"]["times"]["train"] = [829_322_340, 999_999_999]
    write_json(run_dir / "data.json", data)
    assert "train 1996-04-12 15:19:00 UTC to 2001-09-09 01:46:39 UTC" in build_card(run_dir)
