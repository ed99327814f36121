"""What users call recipe keys. The command line offers the key for such a word, before anything that knows all keys is imported."""

from __future__ import annotations

from lmctr.utils.suggest import nearest

COMMON_KEYS: dict[str, tuple[str, ...]] = {
    "data.name": ("dataset", "data"),
    "data.path": ("data_path", "data_dir", "dataset_path", "train_file"),
    "data.split": (),
    "data.fractions": (),
    "data.options": (),
    "data.max_train_samples": ("max_samples", "limit"),
    "data.max_eval_samples": (),
    "data.negative_share": ("negative_sampling", "negative_rate", "negative_ratio", "downsample", "neg_ratio"),
    "data.num_behaviors": ("history_length", "max_history"),
    "data.max_length": ("max_seq_length", "max_tokens"),
    "data.prompt": ("template",),
    "data.feedback": (),
    "model.family": ("model", "model_type", "model_name", "arch"),
    "model.backbone": ("model_name_or_path", "base_model", "pretrained"),
    "model.embedding_dim": ("emb_dim", "embed_dim", "embedding_size"),
    "model.hidden_units": ("mlp", "dnn_hidden_units"),
    "model.dropout": (),
    "training.learning_rate": ("lr",),
    "training.per_device_train_batch_size": ("batch_size", "train_batch_size", "bs"),
    "training.per_device_eval_batch_size": ("eval_batch_size", "test_batch_size"),
    "training.gradient_accumulation_steps": ("accumulation_steps", "grad_accum"),
    "training.stage1_epochs": (),
    "training.stage2_epochs": (),
    "training.epochs": ("num_epochs", "num_train_epochs"),
    "training.max_steps": ("steps",),
    "training.weight_decay": ("wd", "l2"),
    "training.warmup_steps": ("warmup",),
    "training.lr_scheduler_type": ("scheduler", "lr_scheduler"),
    "training.optim": ("optimizer", "optimiser"),
    "training.embedding_optimizer": ("sparse_optimizer",),
    "training.early_stopping_patience": ("patience",),
    "training.eval_steps": (),
    "training.save_steps": (),
    "training.logging_steps": ("log_every",),
    "training.report_to": ("wandb", "tensorboard", "logger"),
    "training.bf16": ("amp", "mixed_precision"),
    "training.fp16": (),
    "training.use_cpu": ("cpu", "no_cuda"),
    "training.seed": ("random_seed",),
    "training.lora": ("peft",),
}
"""Dotted keys that recipes set most, and other words for each."""

OTHER_WORDS = {word: key for key, words in COMMON_KEYS.items() for word in words}
"""The dotted key that each of the other words stands for."""


def meant_key(word: str) -> str | None:
    """The dotted key that a word without a group stands for: `"lr"` is `"training.learning_rate"`; None when nothing is close."""
    names = {key.partition(".")[2]: key for key in COMMON_KEYS} | OTHER_WORDS
    found = nearest(word, names)
    return None if found is None else names[found]
