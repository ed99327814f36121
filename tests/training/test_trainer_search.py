"""The Trainer's search for hyperparameters, over what this trainer trains by."""

import copy

import pytest
from toy_training import make_trainer
from transformers import TrainerCallback


@pytest.mark.parametrize(
    ("values", "epochs", "message"),
    [
        ({"stage2_epochs": 3}, 4, None),
        ({"num_train_epochs": 3}, 3, None),
        ({"stage1_epochs": 0, "stage2_epochs": 1}, 1, None),
        ({"learning_rate": 1e-3}, 2, None),
        ({"learnin_rate": 1e-3}, None, "unknown key 'learnin_rate' in hp_space; did you mean 'learning_rate'"),
        ({"recency_half_life": -3.0}, None, "hp_space: recency_half_life must be a number of days above 0, got -3"),
        ({"embedding_learning_rate": 0.1}, None, "hp_space: embedding_learning_rate has no effect with embedding_opt"),
        ({"ema_decay": 0.9}, None, "hp_space: ema_decay is read when the trainer is made"),
        *(
            (
                {key: value},
                None,
                f"hp_space: {key} is read by `lmctr train` alone, and would change nothing; accepted: ",
            )
            for key, value in (
                *(("boosting_share", 0.5), ("linear_start", "zero"), ("refit", True), ("lora", {"r": 8})),
                *(("rolling_origin", 2), ("from_run", "run"), ("from_optimizer", False)),
            )
        ),
    ],
)
def test_values_of_a_search_are_checked_and_count(tmp_path, values, epochs, message):
    trainer = make_trainer(
        tmp_path, save_strategy="no", load_best_model_at_end=False, stage1_epochs=1, stage2_epochs=1
    )
    model = trainer.model
    trainer.model_init = lambda: copy.deepcopy(model)
    if message is None:
        trainer.hyperparameter_search(lambda trial: values, n_trials=1)
        assert trainer.state.epoch == trainer.args.stage1_epochs + trainer.args.stage2_epochs == epochs
    else:
        with pytest.raises(ValueError, match=message):
            trainer.hyperparameter_search(lambda trial: values, n_trials=1)


def test_a_search_looks_for_the_metric_of_the_best_model(tmp_path):
    trainer = make_trainer(
        tmp_path, save_strategy="no", load_best_model_at_end=False, stage1_epochs=0, stage2_epochs=1
    )
    model = trainer.model
    trainer.model_init = lambda: copy.deepcopy(model)
    with pytest.raises(
        ValueError, match=r"direction='minimize', but eval_auc, which is looked for .* is better the other way"
    ):
        trainer.hyperparameter_search(n_trials=1, direction="minimize")
    seen = []

    class Seen(TrainerCallback):
        def on_evaluate(self, args, state, control, metrics=None, **kwargs):
            seen.append(metrics["eval_auc"])

    trainer.add_callback(Seen())
    best = trainer.hyperparameter_search(lambda trial: {"learning_rate": [1e-6, 1e-2][trial.number]}, n_trials=2)
    assert len(set(seen)) == 2
    assert best.objective == max(seen)
