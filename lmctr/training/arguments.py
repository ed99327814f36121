"""Training arguments of click-through-rate models: transformers' own, with CTR-Sink's defaults and two stages."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass, field, fields
from numbers import Real
from typing import Any, ClassVar

import torch
from accelerate.utils import DynamoBackend, parse_flag_from_env
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import get_available_reporting_integrations, get_reporting_integration_callbacks
from transformers.trainer_pt_utils import AcceleratorConfig
from transformers.trainer_utils import IntervalStrategy, SaveStrategy, SchedulerType
from transformers.training_args import trainer_log_levels
from transformers.utils import is_torch_bf16_gpu_available, is_torch_xla_available

from lmctr.evaluation.evaluator import LOWER_IS_BETTER
from lmctr.training.optim import EMBEDDING_OPTIMIZERS, try_optimizer
from lmctr.utils.lazy import load_target

_TRACKERS = [
    "clearml",
    "codecarbon",
    "comet_ml",
    "dagshub",
    "dvclive",
    "mlflow",
    "neptune",
    "swanlab",
    "tensorboard",
    "trackio",
    "wandb",
]
REFUSED: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(
        ("prediction_loss_only", "batch_eval_metrics"), (False, "metrics are exact and computed from all scores")
    ),
    "eval_do_concat_batches": (True, "metrics are exact and computed from all scores"),
    "include_for_metrics": ([], "metrics are exact and computed from all scores"),
    "dataloader_drop_last": (False, "each sample is seen exactly once per epoch"),
    "label_smoothing_factor": (0.0, "the loss is binary cross-entropy of 0/1 labels"),
    "auto_find_batch_size": (
        False,
        "it changes the global batch while training; set per_device_train_batch_size and gradient_accumulation_steps instead",
    ),
}
"""Arguments of `TrainingArguments` that would have no effect, with the value that they keep, and why."""
_LAUNCHED = "ACCELERATE_MIXED_PRECISION"
_SIZES = ("per_device_train_batch_size", "per_device_eval_batch_size", "gradient_accumulation_steps")
_FROM_0 = dict.fromkeys(
    (
        "warmup_steps",
        "weight_decay",
        "adam_epsilon",
        "embedding_learning_rate",
        "new_modules_learning_rate",
        "neftune_noise_alpha",
    ),
    float("inf"),
) | dict.fromkeys(("adam_beta1", "adam_beta2"), 1.0)
_NUMBERS = (
    *_SIZES,
    *("learning_rate", "ema_decay", "recency_half_life"),
    *("early_stopping_patience", "effective_rank_samples", "rolling_origin", "max_steps", "max_grad_norm"),
    *(*_FROM_0, "eval_accumulation_steps"),
)


def _field(default: Any, says: str) -> Any:
    return field(default=default, metadata={"help": says})


@dataclass
class CTRTrainingArguments(TrainingArguments):
    r"""[`~transformers.TrainingArguments`] with the defaults of CTR-Sink (arXiv 2508.03668, section 4.4; schedule and weight decay, which it
    does not state, are decided here) and two stages.

    The arguments of the parent class are accepted but for those of `REFUSED`. `num_train_epochs` is the sum of the stages; given alone, it
    is the epochs of both.
    The defaults differ from the parent's in: cosine schedule, warm-up over 5 % of the steps, fused AdamW, weight decay
    5e-5, evaluation and saving after each epoch, best checkpoint by validation AUC, at most two checkpoints kept,
    batches of samples of similar length, no reports to outside services.

    Args:
        stage1_epochs (`int`, defaults to 0):
            Epochs of stage 1, in which the prediction pools the sinks only (Eq. 6). 0 for models without sinks.
        stage2_epochs (`int`, defaults to 3):
            Epochs of stage 2, in which it pools all tokens. The best checkpoint comes from this stage.
        length_group_batches (`int`, defaults to 50):
            How many global batches of shuffled samples are sorted by length together before they are cut into batches.
            Larger means less padding and less random batches. Used with `train_sampling_strategy="group_by_length"`
            (default); `"random"` and `"sequential"` do not group.
        early_stopping_patience (`int`, *optional*):
            Stop after this many stage-2 evaluations in a row without improvement of `metric_for_best_model`.
        early_stopping_threshold (`float`, defaults to 0.0):
            Smallest change that counts as an improvement.
            Decay on a plateau: `lr_scheduler_type="reduce_lr_on_plateau"` with `lr_scheduler_kwargs` such as
            `{"factor": 0.1, "patience": 0}` (without warm-up) follows `metric_for_best_model`; its `mode` is set from it.
        embedding_optimizer (`str`, defaults to `"dense"`):
            How embedding tables are trained. `"dense"`: by `optim`, as every other parameter. `"lazy_adam"`
            ([`~lmctr.training.optim.LazyAdamW`]) and `"rowwise_adagrad"` ([`~lmctr.training.optim.RowwiseAdagrad`]): tables get COO
            gradients, and only the rows that the batch touches are updated, weight decay included; `optim` trains the rest.
        shard_tables (`bool`, defaults to `False`):
            Share the rows of the embedding tables between the processes of a launch: each holds, updates and saves its part, and a batch's
            rows are exchanged by all-to-all. Needs a sparse `embedding_optimizer`. Checkpoints can be resumed by another number of
            processes (with the same samples per step); the finished model is a folder like any other.
        embedding_learning_rate (`float`, *optional*):
            Peak learning rate of the tables with a sparse `embedding_optimizer`; default `learning_rate`.
        new_modules_learning_rate (`float`, *optional*):
            Peak learning rate of what a model has beside its pretrained language model (its `peft_modules_to_save`: of CTR-Sink the sink
            embedding, the sink bias and the head); default `learning_rate`.
        ema_decay (`float`, *optional*):
            Keep the exponential moving average of the weights with this decay, for example 0.999
            ([`~lmctr.training.averaging.WeightAverage`]): it is what is evaluated, saved and chosen by.
        recency_half_life (`float`, *optional*):
            Days after which a training sample counts half: it gets the weight 2^(-age / half-life), age being the time to the newest
            training sample, multiplied with the data's own. Metrics are not weighted by it.
        linear_start (`str`, defaults to `"logistic"`):
            `lmctr train` starts a model that has a linear way from statistics (or numeric fields, with `use_numeric_skip`) to the logits
            as the logistic regression on them, fitted on the training part like the baseline; the hidden layers add nothing yet.
            `"zero"`: the linear way starts at zero, the rest as ever.
        boosting_share (`float` or `"auto"`, defaults to 0.0):
            Above 0, `lmctr train` puts gradient-boosted trees on the statistics beside a model with such a linear way, and beside a tabular
            model without one trees on all its numeric and categorical fields and on the rates of values of the latter, of pairs of them and of
            lists (the mean of their values'). They are fitted on the training part and weighted as it is trained, and become a part of the model: its logits are (1 - share) * network +
            share * trees. Each learns by itself; 0.5 is a good share for models that are about as good, and `"auto"` trains with it and then
            takes the one by the log loss on validation
            ([`~lmctr.runs.inputs.boosting.choose_share`]), which may be 0. With `from_run` the earlier run's trees stay, with this share unless it is 0;
            where it has none, new ones are fitted.
        calibration (`str`, defaults to `"none"`):
            With `"intercept"`, `lmctr train` adds to the trained model's logits the number, of each task, with which the probabilities of the
            validation part sum up to its clicks ([`~lmctr.runs.inputs.calibration.calibrate`]); orders inside a task do not change. A `refit` keeps it.
        refit (`bool`, defaults to `False`):
            `lmctr train` chooses the number of steps on the validation part, then trains again, from the same seed, on training and
            validation together for as many steps in proportion to the samples; that model is saved and measured on the test part. The
            samples are those of before, of both parts, where `data.max_train_samples` and `max_eval_samples` drew some. With
            `load_best_model_at_end` false all steps are taken.
        from_run (`str`, *optional*):
            `lmctr train` goes on from this finished run (`--from RUN`): the run's processor gets ids for the new values of the training part
            and may give up old ones (`max_idle`, `max_size` of a field), tables are resized, weights are kept. Of a family of texts the
            processor stays as it is: tokenizer, prompt, scales and bins. Trained on is the training part of the recipe's data; where that is
            a log up to now, `data.since` says from when on.
        from_optimizer (`bool`, defaults to `True`):
            With `from_run`, whether the optimiser's state of the run's best checkpoint is kept too. Rates and schedule start anew. With
            `lora`, or after a run with it, there is none to keep: adapters are merged into the run's model, and new ones are put on that.
        rolling_origin (`int`, *optional*):
            `lmctr train` tries the recipe first at so many earlier cuts of the training part, each a validation part before the next,
            and reports the validation metric after each epoch, its mean over all cuts and the best epoch; with `refit` that epoch is
            the one that the second training ends with.
        bf16 (`bool` or `"auto"`, defaults to `False`):
            Compute in bfloat16 (autocast; weights and optimiser stay float32). `"auto"`: `lmctr train` does where the processor has units
            for it and a trial of a few steps is at least 1.1 times as fast; the choice is kept in the run folder.
        effective_rank_samples (`int`, *optional*):
            Measure the effective rank of a tabular model's representations on so many validation samples after each evaluation
            ([`~lmctr.training.diagnostics.EffectiveRankCallback`]); written to `effective_rank.jsonl` in `output_dir`.
        callbacks (`list[str]`, *optional*):
            `["module:Class"]`: callbacks of your own, subclasses of transformers' `TrainerCallback` that are made without arguments;
            the module must be importable (installed, in the current folder of `python -m lmctr`, or on PYTHONPATH).
        lora (`dict`, *optional*):
            `{r, alpha, dropout}`: adapt the language model by LoRA instead of training it whole; `lmctr train` applies
            it with [`~lmctr.training.lora.add_lora`] and saves the merged model. With `from_run` the adapters that the run folder keeps
            belong on the earlier run's model.

    Raises:
        ValueError: negative stages, no epoch at all, values that contradict each other.

    Example:

    ```python
    >>> args = CTRTrainingArguments("out", stage1_epochs=3, stage2_epochs=3, per_device_train_batch_size=64)
    >>> args.num_train_epochs
    6
    ```
    """

    launched: ClassVar[str | None] = None  # the precision that this process was launched with, once it was asked for

    stage1_epochs: int = _field(0, "Epochs that pool the sinks only.")
    stage2_epochs: int = _field(3, "Epochs that pool all tokens.")
    length_group_batches: int = _field(50, "Global batches sorted by length together.")
    early_stopping_patience: int | None = _field(None, "Stop after this many stage-2 evaluations without improvement.")
    early_stopping_threshold: float = _field(0.0, "Smallest change that is improvement.")

    embedding_optimizer: str = _field("dense", "Optimiser of embedding tables: dense, lazy_adam or rowwise_adagrad.")
    embedding_learning_rate: float | None = _field(
        None, "Peak learning rate of the tables with a sparse embedding_optimizer."
    )

    shard_tables: bool = _field(False, "Share the rows of embedding tables between the processes.")

    new_modules_learning_rate: float | None = _field(
        None, "Peak learning rate of what a model has beside its language model."
    )

    ema_decay: float | None = _field(None, "Decay of the average of the weights that is evaluated and saved.")
    recency_half_life: float | None = _field(None, "Days after which a training sample counts half.")
    linear_start: str = _field(
        "logistic", "What the linear way from statistics to the logits starts as: logistic or zero."
    )
    boosting_share: float | str = _field(
        0.0, "The share of boosted trees in the logits; 0: no trees; auto: as validation has it."
    )
    calibration: str = _field("none", "What calibrates the logits on validation: none or intercept.")
    rolling_origin: int | None = _field(
        None, "Earlier cuts of the training part on which the best epoch is looked for."
    )
    refit: bool = _field(False, "Train again on training and validation for the steps that were best on validation.")

    from_run: str | None = _field(
        None, "Finished run to go on from: its processor is extended or kept, its weights and optimiser state kept."
    )
    from_optimizer: bool = _field(True, "With from_run, whether the optimiser's state is kept too.")
    effective_rank_samples: int | None = _field(
        None, "Measure effective rank on so many samples after each evaluation."
    )
    callbacks: list[str] | None = field(default=None, metadata={"help": "Callbacks of your own: module:Class."})
    lora: dict | None = field(default=None, metadata={"help": "LoRA of the language model: {r, alpha, dropout}."})

    bf16: bool | str = _field(
        False, "bfloat16 autocast; auto: where the processor computes in it and a short trial shows a gain."
    )

    # Defaults that differ from the parent's.
    learning_rate: float = _field(1e-4, "Peak learning rate.")
    weight_decay: float = _field(5e-5, "AdamW weight decay.")
    lr_scheduler_type: str = _field("cosine", "Learning-rate schedule over both stages.")
    warmup_steps: float = _field(0.05, "Warm-up: steps, or below 1 a share of all steps.")
    optim: str = _field("adamw_torch_fused", "Optimiser.")
    per_device_train_batch_size: int = _field(64, "Samples per process and micro-batch.")
    per_device_eval_batch_size: int = _field(128, "Samples per process in evaluation.")
    eval_strategy: str = _field("epoch", "When to evaluate: epoch, steps or no.")
    save_strategy: str = _field("epoch", "When to save: epoch, steps, best or no.")
    save_total_limit: int | None = _field(2, "Checkpoints kept, the best one included.")
    load_best_model_at_end: bool = _field(True, "End with the best stage-2 checkpoint.")
    metric_for_best_model: str | None = _field(
        "eval_auc",
        "What decides the best. Of several labels eval_auc is the first's; eval_<label>_auc and eval_mean_auc are there too.",
    )
    logging_steps: float = _field(50, "Steps between two log lines.")
    report_to: None | str | list[str] = field(  # noqa: RUF036 (the order that HfArgumentParser reads)
        default="none", metadata={"help": "Trackers to report to."}
    )
    trackio_space_id: str | None = _field(None, "Space that Trackio reports to; None: it stays on this machine.")
    remove_unused_columns: bool = _field(False, "Samples are indices: nothing to remove.")
    train_sampling_strategy: str = _field("group_by_length", "group_by_length, random or sequential.")
    ddp_find_unused_parameters: bool | None = _field(False, "The families use every parameter in every step.")
    label_names: list[str] | None = field(
        default_factory=lambda: ["labels"], metadata={"help": "Without it metrics would vanish silently."}
    )

    def __post_init__(self):
        self._check_values()
        self._check_precision()
        self._check_evaluations()
        self._check_choices()
        self._check_embedding_optimizer()
        self._check_refused()
        self._set_epochs()
        self._check_best()
        self._rename_checkpointing()
        if self.greater_is_better is None and self.metric_for_best_model is not None:
            self.greater_is_better = not self.metric_for_best_model.endswith(LOWER_IS_BETTER)
        self.load_callbacks()  # an error in a name comes before the training
        self.report_to = "none" if self.report_to is None else self.report_to
        self._check_words()
        super().__post_init__()
        if self.tf32 is not None:  # transformers sets each value once in a process, and not again
            torch.backends.fp32_precision = "tf32" if self.tf32 else "ieee"
        self._check_device()
        self._check_trackers()
        self._set_plateau_mode()
        try_optimizer(self)

    def _check_values(self) -> None:
        """Types and bounds of single values."""
        for name, least in (("stage1_epochs", 0), ("stage2_epochs", 0), ("length_group_batches", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
        for name in _NUMBERS:
            value, may_lack = getattr(self, name), type(self).__dataclass_fields__[name].default is None
            if isinstance(value, bool) or not (isinstance(value, Real) or (value is None and may_lack)):
                raise ValueError(f"{name} must be a number{' or None' * may_lack}, got {value!r:.80}")
        for name, kind, what in (
            ("metric_for_best_model", str, "a text"),
            ("callbacks", list, "a list of module:Class"),
        ):
            if not isinstance(value := getattr(self, name), kind | None):
                raise ValueError(f"{name} must be {what} or None, got {value!r:.80}")
        for name in (*_SIZES, "eval_accumulation_steps"):
            if (value := getattr(self, name)) is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name, end in _FROM_0.items():
            if (value := getattr(self, name)) is not None and not 0.0 <= value < end:
                raise ValueError(f"{name} must be 0 or more{' and below 1' * (end == 1)}, got {value}")
        if not self.max_grad_norm >= 0.0:
            raise ValueError(f"max_grad_norm must be 0 or more, got {self.max_grad_norm}; 0 bounds nothing")
        for name, end in {"seed": 2**32, "data_seed": None, "dataloader_num_workers": None}.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value < (end or value + 1):
                raise ValueError(
                    f"{name} must be a whole number from 0{f' to {end - 1}' if end else ''}, got {value!r}"
                )
        if self.max_steps == 0:
            raise ValueError("max_steps must be at least 1, got 0; -1 for all steps of the epochs")
        if not 0.0 <= self.learning_rate < float("inf"):
            raise ValueError(
                f"learning_rate must be a number above 0, such as 1e-3, got {self.learning_rate}; 0 leaves these weights as they are"
            )

    def _check_precision(self) -> None:
        """Whether bfloat16 is wanted, by arguments or launcher, and can be had; `"auto"` is decided where there is a model."""
        # The trial needs the model and a batch: `lmctr train` makes it, and gives the arguments its answer.
        self.chooses_bf16 = self.bf16 == "auto"
        if self.chooses_bf16:
            self.bf16 = False
        if not isinstance(self.bf16, bool):
            raise ValueError(f"bf16 must be true, false or 'auto', got {self.bf16!r}")
        said = self.bf16
        self._follow_launcher()
        if self.bf16 and not (self.use_cpu or is_torch_bf16_gpu_available() or is_torch_xla_available()):
            off = "leave it out (training.bf16 false in a recipe)" if said else "launch with mixed_precision no"
            raise ValueError(
                f"bf16 is set{'' if said else ' by the launcher'}, but there is no accelerator that computes in bfloat16; {off} to "
                "train in float32, or set use_cpu too for bfloat16 on the CPU"
            )

    def _check_evaluations(self) -> None:
        """Epochs, and what needs evaluations."""
        if self.stage1_epochs + self.stage2_epochs < 1:
            raise ValueError("stage1_epochs + stage2_epochs must be at least 1, got 0 + 0: nothing would be trained")
        if self.rolling_origin is not None and self.eval_strategy != "epoch":
            raise ValueError(
                f"rolling_origin compares epochs: it needs eval_strategy 'epoch', got {self.eval_strategy!r}"
            )
        if self.rolling_origin is not None and (self.max_steps > 0 or not self.metric_for_best_model):
            raise ValueError(
                f"rolling_origin compares whole epochs by metric_for_best_model, got max_steps={self.max_steps} and "
                f"metric_for_best_model={self.metric_for_best_model!r}; set the epochs in place of max_steps, and a metric such as 'eval_auc'"
            )
        for name in ("early_stopping_patience", "effective_rank_samples", "rolling_origin"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
            if value is not None and self.eval_strategy == "no":
                raise ValueError(f"{name} needs evaluations: set eval_strategy to 'epoch' or 'steps'")
        if self.eval_on_start and self.eval_strategy == "no":
            raise ValueError("eval_on_start needs evaluations: set eval_strategy to 'epoch' or 'steps'")

    def _check_choices(self) -> None:
        """Choices of a training, each by itself."""
        if self.ema_decay is not None and not 0.0 < self.ema_decay < 1.0:
            raise ValueError(
                f"ema_decay must lie between 0 and 1, such as 0.999, got {self.ema_decay}; None for no average"
            )
        if self.recency_half_life is not None and not 0.0 < self.recency_half_life < float("inf"):
            raise ValueError(
                f"recency_half_life must be a number of days above 0, got {self.recency_half_life}; None for equal weights"
            )
        if self.linear_start not in ("logistic", "zero"):
            raise ValueError(f"linear_start must be 'logistic' or 'zero', got {self.linear_start!r}")
        if self.calibration not in ("none", "intercept"):
            raise ValueError(f"calibration must be 'none' or 'intercept', got {self.calibration!r}")
        self.chooses_share = self.boosting_share == "auto"
        if self.chooses_share:
            self.boosting_share = 0.5
        if not isinstance(self.boosting_share, Real) or not 0.0 <= self.boosting_share <= 1.0:
            raise ValueError(
                f"boosting_share must lie between 0 (no trees) and 1, or be 'auto', got {self.boosting_share!r}"
            )
        if self.train_sampling_strategy not in ("group_by_length", "random", "sequential"):
            raise ValueError(
                f"train_sampling_strategy must be group_by_length, random or sequential, got "
                f"{self.train_sampling_strategy!r}"
            )

    def _check_refused(self) -> None:
        """Arguments of the parent that have no effect, or a harmful one."""
        for name in ("bf16_full_eval", "fp16_full_eval"):
            if getattr(self, name):
                raise ValueError(
                    f"{name} turns the weights themselves to half precision when the trained model is measured, and they "
                    f"would be saved like that; set {name.split('_')[0]} instead, which computes in half precision only"
                )
        for name, (default, reason) in REFUSED.items():
            if getattr(self, name) not in (default, None):
                raise ValueError(f"{name}={getattr(self, name)!r} is not accepted: {reason}")

    def _check_best(self) -> None:
        """The best checkpoint is kept only where it is evaluated and saved."""
        if self.stage2_epochs == 0 or self.eval_strategy == "no":
            # The best checkpoint is chosen among stage-2 evaluations: without them the last weights are the result.
            self.load_best_model_at_end = False
        if self.load_best_model_at_end and self.save_strategy not in ("best", self.eval_strategy):
            raise ValueError(
                f"save_strategy={SaveStrategy(self.save_strategy).value!r} is not accepted beside eval_strategy="
                f"{IntervalStrategy(self.eval_strategy).value!r}: the best checkpoint is what is kept at the end; use the same for "
                "both or 'best', or set load_best_model_at_end to false to end with the last weights"
            )
        if self.load_best_model_at_end and self.eval_strategy == "steps":
            eval_steps = self.logging_steps if self.eval_steps is None else self.eval_steps
            if self.save_strategy != "best" and self.save_steps != eval_steps:
                raise ValueError(
                    f"eval_steps={eval_steps} and save_steps={self.save_steps} must be equal with "
                    "load_best_model_at_end: the best evaluation must have a checkpoint"
                )

    def _check_device(self) -> None:
        """What the device that was found cannot do."""
        wants_cpu = self.use_cpu or parse_flag_from_env("ACCELERATE_USE_CPU")
        if int(os.environ.get("WORLD_SIZE", 1)) > 1 and self.device.type == "cpu" and not wants_cpu:
            raise ValueError(
                f"this is one of {os.environ['WORLD_SIZE']} processes, and there is no accelerator: set use_cpu (training.use_cpu true in a "
                "recipe), without which each would train for itself"
            )
        if self.fp16 and self.device.type == "cpu":
            raise ValueError(
                "fp16 is set, but the training is on the CPU, where it would be float32; leave it out, or set bf16"
            )
        compilers = [backend.value.lower() for backend in DynamoBackend]
        if self.torch_compile and self.torch_compile_backend.lower() not in compilers:
            raise ValueError(
                f"torch_compile_backend is {self.torch_compile_backend!r}, accepted: {', '.join(compilers)}"
            )

    def _check_words(self) -> None:
        """Words that transformers and torch look up when they are used."""
        modes: Collection[str] = ()
        if self.torch_compile_mode is not None:
            from torch._inductor import list_mode_options  # takes seconds

            modes = list_mode_options()
        for name, accepted in (
            ("log_level", trainer_log_levels),
            ("log_level_replica", trainer_log_levels),
            ("torch_compile_mode", modes),
        ):
            if (value := getattr(self, name)) is not None and value not in accepted:
                raise ValueError(f"{name} is {value!r}, accepted: {', '.join(accepted)}")
        if isinstance(self.accelerator_config, dict):
            known = [item.name for item in fields(AcceleratorConfig)]
            unknown = [key for key in self.accelerator_config if key not in known]
            if unknown:
                raise ValueError(f"accelerator_config has no key {unknown[0]!r}; its keys: {', '.join(known)}")

    def _follow_launcher(self) -> None:
        """Compute as the launcher's `mixed_precision` says where the arguments say nothing, and let these say so; a choice (`bf16="auto"`) stands.

        The launcher's variable is read once: a training may leave its own precision there.
        """
        if CTRTrainingArguments.launched is None or self.chooses_bf16:
            CTRTrainingArguments.launched = "no" if self.chooses_bf16 else os.environ.get(_LAUNCHED, "no")
        if not (self.bf16 or self.fp16):
            os.environ[_LAUNCHED] = "no"
            if self.launched in ("bf16", "fp16"):
                setattr(self, self.launched, True)

    def _set_epochs(self) -> None:
        """Of `num_train_epochs`, where it alone was given, the second stage has what the first one leaves."""
        given, kinds = self.num_train_epochs, type(self).__dataclass_fields__
        if given not in (kinds["num_train_epochs"].default, self.stage1_epochs + self.stage2_epochs):
            if (
                self.stage2_epochs != kinds["stage2_epochs"].default
                or given != int(given)
                or given < self.stage1_epochs
            ):
                raise ValueError(
                    f"num_train_epochs={given:g}, with stage1_epochs={self.stage1_epochs} and stage2_epochs={self.stage2_epochs}: accepted is "
                    "their sum, or a whole number beside stage1_epochs alone; max_steps for parts of an epoch"
                )
            self.stage2_epochs = int(given) - self.stage1_epochs
        self.num_train_epochs = self.stage1_epochs + self.stage2_epochs

    def load_callbacks(self) -> list[type[TrainerCallback]]:
        """The classes that `callbacks` names; raises `ValueError` for what names none."""
        found = []
        for target in self.callbacks or ():
            try:
                callback = load_target(target)
            except (ImportError, AttributeError, ValueError) as error:
                raise ValueError(
                    f"callbacks: {target!r} cannot be loaded: {error}; give module:Class of a module that Python can import here "
                    "(its folder may have to be on PYTHONPATH)"
                ) from error
            if not (isinstance(callback, type) and issubclass(callback, TrainerCallback)):
                raise ValueError(f"callbacks: {target!r} is no subclass of transformers.TrainerCallback")
            found.append(callback)
        return found

    def _check_embedding_optimizer(self) -> None:
        if self.embedding_optimizer not in EMBEDDING_OPTIMIZERS:
            raise ValueError(
                f"embedding_optimizer must be {', '.join(EMBEDDING_OPTIMIZERS)}, got {self.embedding_optimizer!r}"
            )
        if self.torch_compile and self.embedding_optimizer != "dense":
            raise ValueError(
                f"torch_compile does not work with embedding_optimizer={self.embedding_optimizer!r}, whose sparse gradients a compiled "
                "graph cannot hold; choose dense, or leave torch_compile out"
            )
        if self.shard_tables and self.embedding_optimizer == "dense":
            raise ValueError(
                "shard_tables needs an optimiser that updates only the rows of a batch, but embedding_optimizer is 'dense'; choose "
                "lazy_adam or rowwise_adagrad"
            )
        if self.shard_tables and self.from_run is not None:
            raise ValueError(
                "shard_tables does not work with from_run, which reads whole tables of the earlier run; leave one out"
            )
        if self.shard_tables and self.ema_decay is not None:
            raise ValueError(
                f"shard_tables does not work with ema_decay={self.ema_decay}, which averages whole tables; leave one out"
            )
        rate = self.new_modules_learning_rate
        if rate is not None and self.embedding_optimizer != "dense":
            raise ValueError(
                f"new_modules_learning_rate works with embedding_optimizer='dense', got {self.embedding_optimizer!r}; leave one out"
            )
        if self.embedding_learning_rate is not None and self.embedding_optimizer == "dense":
            raise ValueError(
                "embedding_learning_rate has no effect with embedding_optimizer='dense', which trains the tables with "
                "learning_rate; leave it out, or choose lazy_adam or rowwise_adagrad"
            )

    def _check_trackers(self) -> None:
        try:
            get_reporting_integration_callbacks(self.report_to)
        except ValueError as error:
            raise ValueError(f"report_to: {error}") from error
        asked = set(self.report_to) & set(_TRACKERS)
        if missing := asked and asked - set(get_available_reporting_integrations()):  # which looks for each package
            in_extra = missing <= {"tensorboard", "trackio"}
            packages = "'lmctr[track]'" if in_extra else " ".join(sorted(missing)).replace("_", "-")
            raise ValueError(
                f"report_to names {', '.join(sorted(missing))}, which is not installed; pip install {packages}, or leave report_to "
                "(training.report_to in a recipe) out"
            )

    def _set_plateau_mode(self) -> None:
        """Let a plateau schedule wait for what counts as better, which torch would not know."""
        if self.lr_scheduler_type != SchedulerType.REDUCE_ON_PLATEAU:
            return
        if self.eval_strategy == "no":
            raise ValueError(
                "lr_scheduler_type='reduce_lr_on_plateau' needs evaluations: set eval_strategy to 'epoch'"
            )
        if self.refit:
            raise ValueError(
                "refit trains again without evaluations, which lr_scheduler_type='reduce_lr_on_plateau' needs; choose another schedule, "
                "such as 'cosine', or leave refit out"
            )
        kwargs = dict(self.lr_scheduler_kwargs or {})
        mode = "max" if self.greater_is_better else "min"
        if kwargs.setdefault("mode", mode) != mode:
            raise ValueError(
                f"lr_scheduler_kwargs has mode={kwargs['mode']!r}, but {self.metric_for_best_model} is better when it is "
                f"{'larger' if self.greater_is_better else 'smaller'}: leave mode out, or set {mode!r}"
            )
        self.lr_scheduler_kwargs = kwargs

    def _rename_checkpointing(self) -> None:
        """Accept `gradient_checkpointing` on every supported transformers; newer ones call it another name."""
        names = {item.name for item in fields(self)}
        for old in ("gradient_checkpointing", "gradient_checkpointing_kwargs"):
            new = old.replace("gradient", "activation")
            if new in names and getattr(self, new) is None and getattr(self, old) is not None:
                setattr(self, new, getattr(self, old))
                setattr(self, old, None)

    @property
    def n_gpu(self) -> int:
        """GPUs of this process: at most one. Several GPUs are used with one process each (`accelerate launch`)."""
        return min(1, super().n_gpu)

    @property
    def total_train_batch_size(self) -> int:
        """Samples per optimiser step over all processes."""
        return self.per_device_train_batch_size * self.gradient_accumulation_steps * self.world_size
