import pytest
import torch
from peft import LoraConfig, PeftModel, PromptTuningConfig, get_peft_model
from sequence_rows import random_batch
from sequence_tester import CONFIG
from toy_training import make_model, make_trainer

import lmctr
from lmctr.training import lora
from lmctr.training.lora import add_lora, load_adapter, merge_lora


def test_new_modules_are_trained_whole_and_the_language_model_by_adapters(tmp_path):
    model = add_lora(make_model(), {"r": 4})
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    trainer = make_trainer(tmp_path, model=model, learning_rate=1e-2, load_best_model_at_end=False)
    trainer.train()
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    trained = {name for name, value in model.named_parameters() if value.requires_grad}
    assert changed == trained
    for part in ("sink_embedding", "sink_bias", "head"):
        ours = [name for name in before if f".{part}.modules_to_save" in name]
        assert ours
        assert set(ours) <= trained
    language = {name for name in trained if ".language_model." in name}
    assert language
    assert all("lora_" in name for name in language)
    for layer in ("query", "key", "value", "attention.output.dense", "intermediate.dense", "output.dense"):
        assert any(layer in name for name in language)


@pytest.mark.filterwarnings("error::FutureWarning")
def test_adapters_are_made_and_loaded_without_a_word_of_other_packages(tmp_path):
    lora.save_adapter(add_lora(make_model(), {"r": 4}), tmp_path)
    load_adapter(make_model(), tmp_path)


@pytest.mark.parametrize(
    ("named", "told"),
    [
        ((), "leave sink_embedding, sink_bias, head as"),
        (("head", "sink_bias", "sink_embedding"), None),
        (("head",), "leave sink_embedding, sink_bias as"),
    ],
)
def test_adapters_by_hand_say_what_they_leave(tmp_path, monkeypatch, named, told):
    heard = []
    monkeypatch.setattr(lora.logger, "warning", lambda text, *values: heard.append(text % values))
    config = LoraConfig(r=2, target_modules=["query"], modules_to_save=list(named) or None)
    make_trainer(tmp_path, model=get_peft_model(make_model(), config))
    assert len(heard) == (told is not None)
    assert told is None or told in heard[0]


@pytest.mark.parametrize("whole", [False, True], ids=["adapters alone", "activations too"])
def test_adapters_of_a_sequence_model_by_hand(tmp_path, monkeypatch, whole):
    """Also which running statistics they do not save: Dice's, which are moved in training."""
    heard, batch = [], random_batch(lmctr.DINConfig(**CONFIG, embedding_dim=8), num_rows=6)
    batch["labels"] = torch.tensor([1.0, 0.0] * 3)
    monkeypatch.setattr(lora.logger, "warning", lambda text, *values: heard.append(text % values))

    def make():
        torch.manual_seed(0)
        return lmctr.DINForCTR(lmctr.DINConfig(**CONFIG, embedding_dim=8))

    def logits(model):
        with torch.no_grad():
            return model.eval()(**batch).logits

    named = [name.removesuffix(".running_mean") for name, _ in make().named_buffers() if "running_mean" in name]
    config = LoraConfig(
        r=2, target_modules="all-linear", modules_to_save=named if whole else None, init_lora_weights=False
    )
    rows = [{name: values[row] for name, values in batch.items()} for row in range(6)]
    args = lmctr.CTRTrainingArguments(
        tmp_path / "out", stage2_epochs=2, per_device_train_batch_size=6, use_cpu=True, disable_tqdm=True
    )
    model = get_peft_model(make(), config)
    data = lambda some: {name: torch.stack([row[name] for row in some]) for name in batch}, rows, rows
    of_texts = get_peft_model(make(), LoraConfig(target_modules="all-linear", task_type="SEQ_CLS"))
    with pytest.raises(ValueError, match="task_type SEQ_CLS hand on the inputs of texts, which DINForCTR does not"):
        lmctr.CTRTrainer(of_texts, args, *data)
    trainer = lmctr.CTRTrainer(model, args, *data)
    trainer.train()
    trainer.save_model(tmp_path / "adapters")
    expected = logits(model)
    again = (logits(PeftModel.from_pretrained(make(), tmp_path / "adapters")) - expected).abs().max() < 1e-6
    assert again == whole
    assert len(heard) == (not whole)
    for text in heard:
        assert text.startswith("training moves the running statistics of model.units.0.activations.0, ")
    assert load_adapter(make(), tmp_path / "adapters").peft_config["default"].r == 2
    torch.testing.assert_close(logits(merge_lora(model)), expected, atol=1e-5, rtol=1e-4)


def test_prompts_ahead_of_the_text_are_refused(tmp_path):
    model = get_peft_model(make_model(), PromptTuningConfig(num_virtual_tokens=2, task_type="SEQ_CLS"))
    with pytest.raises(
        ValueError, match=r"PromptTuningConfig puts vectors ahead .* CTRSinkForCTR has no place; accepted: LoRA"
    ):
        make_trainer(tmp_path, model=model)


def test_adapters_that_were_loaded_to_score_with_are_not_trained(tmp_path):
    lora.save_adapter(add_lora(make_model(), {"r": 4}), tmp_path / "adapter")
    loaded = load_adapter(make_model(), tmp_path / "adapter")
    with pytest.raises(
        ValueError, match=r"model: nothing of it is trained, .*; load its adapters with is_trainable=True"
    ):
        make_trainer(tmp_path / "out", model=loaded).train()
    with pytest.raises(ValueError, match=r"model: nothing of it is trained, all parameters have requires_grad=False$"):
        make_trainer(tmp_path / "out", model=make_model().requires_grad_(False)).train()


def test_the_best_of_adapters_of_transformers_cannot_be_loaded(tmp_path):
    model = make_model()
    try:
        model.add_adapter(LoraConfig(r=2, target_modules=["query"]))
    except ValueError as error:
        if "version of PEFT" not in str(error):  # 5.24 asks for 0.22
            raise
        pytest.skip(str(error))
    with pytest.raises(
        ValueError, match=r"model: it has adapters of model.add_adapter, .* load_best_model_at_end=False"
    ):
        make_trainer(tmp_path, model=model)
    make_trainer(tmp_path, model=model, load_best_model_at_end=False)


def test_checkpoints_and_merging_keep_the_scores(tmp_path):
    """The best checkpoint is loaded back with the sinks and the head, and the merged model scores as the wrapped one."""
    trainer = make_trainer(tmp_path, model=add_lora(make_model(), {"r": 4, "alpha": 8, "dropout": 0.0}))
    trainer.train()
    wrapped = trainer.predict(trainer.eval_dataset)
    best = max(
        entry["eval_auc"] for entry in trainer.state.log_history if entry.get("epoch", 0) > 1 and "eval_auc" in entry
    )
    assert wrapped.metrics["test_auc"] == best
    again = make_trainer(tmp_path / "again", model=add_lora(make_model(seed=5), {"r": 4, "alpha": 8, "dropout": 0.0}))
    again.model.base_model.model.model.language_model.load_state_dict(
        trainer.model.base_model.model.model.language_model.state_dict()
    )
    again._load_from_checkpoint(trainer.state.best_model_checkpoint)
    torch.testing.assert_close(
        torch.tensor(again.predict(trainer.eval_dataset).predictions),
        torch.tensor(wrapped.predictions),
        atol=1e-5,
        rtol=1e-4,
    )
    plain = merge_lora(trainer.model)
    assert type(plain).__name__ == "CTRSinkForCTR"
    assert not any("lora" in name for name in plain.state_dict())
    merged = make_trainer(tmp_path / "merged", model=plain).predict(trainer.eval_dataset)
    torch.testing.assert_close(
        torch.tensor(merged.predictions), torch.tensor(wrapped.predictions), atol=1e-5, rtol=1e-4
    )


def test_a_saved_model_with_adapters_is_loaded_onto_its_base(tmp_path):
    trainer = make_trainer(tmp_path / "run", model=add_lora(make_model(dropout=0.0), {"r": 4}), learning_rate=1e-2)
    trainer.train()
    trainer.save_model(tmp_path / "saved")
    loaded = load_adapter(make_model(dropout=0.0), tmp_path / "saved")
    found = make_trainer(tmp_path / "again", model=loaded).predict(trainer.eval_dataset).predictions
    torch.testing.assert_close(torch.tensor(found), torch.tensor(trainer.predict(trainer.eval_dataset).predictions))
    with pytest.raises(
        FileNotFoundError,
        match=r"no config.json: it holds adapters alone; .*merge_lora\(load_adapter.* ctr_config.json names",
    ):
        lmctr.runs.load(tmp_path / "saved").predict([])
    (tmp_path / "saved" / "ctr_config.json").unlink()  # as PEFT alone writes them
    with pytest.raises(FileNotFoundError, match=r"adapters of PEFT alone, without the ctr_config\.json"):
        lmctr.runs.load(tmp_path / "saved")


@pytest.mark.parametrize("lora", [False, True])
def test_new_modules_have_a_learning_rate_of_their_own(tmp_path, lora):
    model = add_lora(make_model(), {"r": 4}) if lora else make_model()
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    rates = {"learning_rate": 0.0, "new_modules_learning_rate": 1e-2}
    trainer = make_trainer(tmp_path, model=model, load_best_model_at_end=False, **rates)
    trainer.train()
    changed = {name for name, value in model.named_parameters() if not torch.equal(value, before[name])}
    new = {name for name in before if {"sink_embedding", "sink_bias", "head"} & set(name.split("."))}
    new = {name for name in new if dict(model.named_parameters())[name].requires_grad}
    assert new
    assert changed == new
    groups = trainer.optimizer.param_groups
    assert {group["initial_lr"] for group in groups} == {0.0, 1e-2}
    assert sum(len(group["params"]) for group in groups) == sum(p.requires_grad for p in model.parameters())
    for group in groups:  # weight decay stays as it was for each
        assert group["weight_decay"] == (trainer.args.weight_decay if group["params"][0].dim() > 1 else 0.0)


def test_models_and_values_without_new_modules(tmp_path):
    from toy_tables import make_table_trainer

    with pytest.raises(ValueError, match=r"has no modules beside a pretrained language model; leave it out"):
        make_table_trainer(tmp_path, new_modules_learning_rate=1e-3).train()
    with pytest.raises(ValueError, match=r"new_modules_learning_rate must be 0 or more, got -1"):
        make_trainer(tmp_path, new_modules_learning_rate=-1.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"rank": 4}, "unknown key 'rank' in training.lora"),
        ({"r": 0}, "training.lora.r is 0"),
        ({"alpha": 1.5}, "training.lora.alpha is 1.5"),
        ({"dropout": 1.0}, "training.lora.dropout is 1.0"),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        add_lora(make_model(), settings)
