"""What the model families share besides layers: the base class and the loss."""

import copy
import itertools
import operator
import os
import re
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.optim.optimizer import register_optimizer_step_post_hook
from transformers import PreTrainedConfig, PreTrainedModel

from lmctr.models.common.boosted_trees import TreesBeside
from lmctr.models.common.configuration import own_keys
from lmctr.models.common.linear_path import LinearPath
from lmctr.utils.hub_uploads import upload_modified_files
from lmctr.utils.in_package import stays_in_package
from lmctr.utils.integrity import resealing
from lmctr.utils.suggest import unknown_key_message
from lmctr.utils.tensors import as_readable_as_its_folder

IGNORED_LABEL = -100
"""A row with this label counts nowhere: the collators use it for filler rows in distributed batches."""


def without_values(tensor: torch.Tensor) -> bool:
    """Whether no shape may follow from a tensor's values: in an exported graph, and on the meta device."""
    return torch.compiler.is_exporting() or tensor.is_meta


def row_weights(labels: torch.Tensor, sample_weight: torch.Tensor | None = None) -> torch.Tensor:
    """What each entry of `labels` counts in the loss: its weight (default 1), 0 for an ignored one. float32."""
    weight = (labels != IGNORED_LABEL).to(torch.float32)
    return weight if sample_weight is None else weight * sample_weight.to(torch.float32)


def check_weights(sample_weight: torch.Tensor | None) -> None:
    """Raises `ValueError` for negative weights and NaN; on accelerators, and in compiled code, they are not looked at."""
    if sample_weight is None or not sample_weight.is_cpu or torch.compiler.is_compiling():
        return
    wrong = ~(sample_weight >= 0)
    if wrong.any():
        raise ValueError(f"sample_weight: {sample_weight[wrong][0].item():g} is no weight; accepted: 0 and above")


def count_items(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """() float32, the summed weight of the entries of `labels` that count, with the weights of `sample_weight` (..) where given."""
    labels, weight = batch["labels"], batch.get("sample_weight")
    if weight is not None:
        weight = weight.reshape(weight.shape + (1,) * (labels.dim() - weight.dim()))
    return row_weights(labels, weight).sum()


def plain_model(model: torch.nn.Module) -> torch.nn.Module:
    """The model inside a PEFT wrapper; another model as it is."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def weights_version(model: nn.Module, parameters: Iterable[nn.Parameter] | None = None) -> tuple:
    """Changes whenever a weight of a model, or of some of its parameters, is changed in place, replaced or moved (by an optimiser, a load,
    `.to`), or other adapters act, or act with another scale; reads nothing but adapters' weights, which PEFT's hotswap changes without a trace.
    Other changes of `.data` in place are not seen."""
    own = model.parameters() if parameters is None else parameters
    return (adapters_of(model), _sizes_of_adapters(model), *map(version_of, own))


class _Watched(NamedTuple):
    """Where a weight lies, and the number of its storage: no other has it, also where it comes to lie at the address of a dead one."""

    address: int
    storage: StorageWeakRef
    number: int


def version_of(weight: torch.Tensor) -> tuple[int, int]:
    """The number of a weight's storage, and how often it was changed there; a tensor of inference mode does not count that."""
    known, address = _WATCHED.get(id(weight)), weight.data_ptr()
    if known is None or known.address != address or known.storage.expired():
        with _WATCHING:
            if _WATCHED.get(id(weight)) is known:  # else another thread was faster
                if len(_WATCHED).bit_count() == 1:  # now and then
                    for key in [key for key, own in _WATCHED.items() if own.storage.expired()]:
                        del _WATCHED[key]
                storage = StorageWeakRef(weight.untyped_storage())
                _WATCHED[id(weight)] = _Watched(address, storage, next(_NUMBERS))
            known = _WATCHED[id(weight)]
    return known.number, 0 if weight.is_inference() else weight._version


_WATCHED: dict[int, _Watched] = {}  # by identity; torch swaps no tensors that have weak references themselves
_WATCHING, _NUMBERS = threading.Lock(), itertools.count()


def _count_step(optimizer: torch.optim.Optimizer, *unused: Any) -> None:
    """Fused kernels change weights and count nothing: a step of any optimiser is a change of the weights that are watched."""
    if _WATCHED and not torch.compiler.is_compiling():
        stepped = (weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None)
        torch.autograd.graph.increment_version([one for one in stepped if id(one) in _WATCHED])


register_optimizer_step_post_hook(_count_step)


_OF_ADAPTERS = ("active_adapter", "merged_adapters", "scaling")


def adapters_of(model: nn.Module) -> tuple:
    """Which PEFT adapters act, with what scale, are switched off or merged, module by module; empty for a model without."""
    if "peft" not in sys.modules:
        return ()
    return tuple(
        (module._disable_adapters, *(str(getattr(module, name, None)) for name in _OF_ADAPTERS))
        for module in model.modules()
        if hasattr(module, "_disable_adapters")
    )


def _sizes_of_adapters(model: nn.Module) -> tuple[float, ...]:
    """The norms of the matrices of PEFT's LoRA, which are small."""
    if "peft" not in sys.modules:
        return ()
    own = [one.detach() for name, one in model.named_parameters() if ".lora_" in name and not one.is_meta]
    return tuple(torch.stack([norm.to(own[0].device) for norm in torch._foreach_norm(own)]).tolist()) if own else ()


@contextmanager
def evaluation_mode(model: torch.nn.Module) -> Iterator[None]:
    """The model in evaluation mode inside the block; afterwards each of its modules is in the mode that it was in.

    A model that others use meanwhile needs an [`evaluation_copy`].
    """
    training = [module for module in model.modules() if module.training]  # of a model that serves: none
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def evaluation_copy(model: torch.nn.Module) -> torch.nn.Module:
    """The model itself where all of it is in evaluation mode; else a copy of its modules in that mode, with the same weights and buffers.

    So a model that is being trained can be scored with from other threads: its mode is not touched. The copy is one of
    [`KeptOfWeights`].
    """
    if not any(module.training for module in model.modules()):
        return model
    return _COPIES.of(model, lambda model: copy_with_same_weights(model).eval())


def copy_with_same_weights(model: torch.nn.Module) -> torch.nn.Module:
    """A copy of a model's modules, with the model's own weights, buffers and configurations."""
    configs = (module.config for module in model.modules() if hasattr(module, "config"))
    kept = [*model.parameters(), *model.buffers(), *configs]
    return copy.deepcopy(model, {id(one): one for one in kept})


class KeptOfWeights:
    """What was made of models, kept until weights, buffers, modules or configurations are replaced by others (a change in place is a change of
    both), a hook comes or goes, or other adapters act."""

    def __init__(self) -> None:
        self._kept: weakref.WeakKeyDictionary[torch.nn.Module, tuple] = weakref.WeakKeyDictionary()
        self._lock = threading.Lock()

    def of(self, model: torch.nn.Module, make: Callable[[torch.nn.Module], Any]) -> Any:
        """What `make` gave for the model as its weights are."""
        modules = [*model.modules()]
        shared = [*model.parameters(), *model.buffers(), *(module.__dict__.get("config") for module in modules)]
        hooks = [tuple(own) for module in modules for own in (module._forward_pre_hooks, module._forward_hooks) if own]
        about = [*map(weakref.ref, modules)], hooks, adapters_of(model)  # modules may hold the model
        with self._lock:
            known, before, made = self._kept.get(model, ((), None, None))
            if before != about or len(known) != len(shared) or any(map(operator.is_not, known, shared)):
                made = make(model)
                self._kept[model] = (shared, about, made)
            return made


_COPIES = KeptOfWeights()


def _checkpointed(layer: nn.Module, checkpoint: Callable[..., Any], function: Callable[..., Any], *args) -> Any:
    """`checkpoint(function, *args)` of a layer, whose running statistics the recomputation does not move: it works on copies. `ValueError` where
    the layer draws random numbers and the recomputation would draw others."""
    if torch.compiler.is_compiling():  # a graph moves them once
        return checkpoint(function, *args)
    options = getattr(checkpoint, "keywords", {})
    if options.get("use_reentrant"):
        has_gradient = any(isinstance(one, torch.Tensor) and one.requires_grad for one in args)
        if not has_gradient:  # without it such a checkpoint cuts the gradient of the layer's weights off
            return function(*args)
    has_run = False

    def run(*args) -> Any:
        nonlocal has_run
        if has_run:
            with _copied_statistics(layer):
                return function(*args)
        has_run = True
        if options.get("preserve_rng_state", True):
            return function(*args)
        before = _random_states()
        found = function(*args)
        if not all(map(torch.equal, before, _random_states())):
            raise ValueError(
                f"preserve_rng_state=False: {type(layer).__name__} draws random numbers (dropout, experts), and would draw others where it is "
                "recomputed, with wrong gradients; leave it out of gradient_checkpointing_kwargs"
            )
        return found

    return checkpoint(run, *args)


def _random_states() -> list[torch.Tensor]:
    """The states of the generators of the CPU and, where it is in use, of this process's GPU."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state()] if torch.cuda.is_initialized() else [])]


@contextmanager
def _copied_statistics(layer: nn.Module) -> Iterator[None]:
    """A block in which a layer's modules with running statistics have copies of their buffers in their place."""
    own = [(module, module._buffers) for module in layer.modules() if "running_mean" in module._buffers]
    for module, buffers in own:
        module._buffers = {name: None if one is None else one.clone() for name, one in buffers.items()}
    try:
        yield
    finally:
        for module, buffers in own:
            module._buffers = buffers


def ctr_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    sample_weight: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | float | None = None,
    soft_labels: bool = False,
) -> torch.Tensor:
    """Binary cross-entropy with logits, averaged over the rows that count.

    Args:
        logits: any shape, float.
        labels: the shape of `logits`, 0 or 1; `IGNORED_LABEL` (-100) leaves an entry out.
        sample_weight: broadcastable to `logits`, non-negative.
        num_items_in_batch: divisor. Default: the summed weight of the entries that count in this call. The trainer
            passes the sum over all processes and accumulation steps, so that the loss is the mean over the whole batch.
        soft_labels: whether probabilities between 0 and 1 are labels too.

    Returns:
        () float32. Zero (with zero gradient) when no entry counts.

    Raises:
        ValueError: when the shapes of `logits` and `labels` differ, or a label is none. On accelerators the values are checked by an
            assertion on the device.
    """
    if logits.shape != labels.shape:
        raise ValueError(
            f"labels: shape {tuple(labels.shape)} does not fit logits of shape {tuple(logits.shape)}; "
            "give one label per logit"
        )
    labels = labels.to(torch.float32)
    _check_labels(labels, soft_labels)
    check_weights(sample_weight)
    weight = row_weights(labels, sample_weight)
    # The clamp only moves ignored labels, whose weight is 0.
    loss = F.binary_cross_entropy_with_logits(logits.float(), labels.clamp(0.0, 1.0), weight=weight, reduction="sum")
    if num_items_in_batch is None:
        num_items_in_batch = weight.sum().clamp_min(torch.finfo(torch.float32).tiny)
    return loss / num_items_in_batch


def task_loss(
    config: PreTrainedConfig,
    logits: torch.Tensor,
    labels: torch.Tensor,
    sample_weight: torch.Tensor | None = None,
    num_items_in_batch: torch.Tensor | float | None = None,
) -> torch.Tensor:
    """Binary cross-entropy over samples and tasks: sum_t w_t sum_i l_ti / (number of labels that count).

    With one task of weight 1, or equal weights of 1, this is the mean over the labels that count; a task's weight scales its part
    of the sum and leaves the divisor alone.

    Args:
        config: `num_tasks` and `task_weights`.
        logits, labels: of any shape, with a trailing task axis for several tasks; -100 leaves an entry out.
        sample_weight: (B,) or in the shape of the samples.
        num_items_in_batch: see [`ctr_loss`].
    """
    weight = torch.ones((), device=logits.device)
    if sample_weight is not None:
        weight = sample_weight.to(torch.float32)
        weight = weight.reshape(weight.shape + (1,) * (logits.dim() - weight.dim()))
    if num_items_in_batch is None:
        num_items_in_batch = row_weights(labels, weight).sum().clamp_min(torch.finfo(torch.float32).tiny)
    task_weights = torch.tensor(config.task_weights, dtype=torch.float32, device=logits.device)
    weight = weight * (task_weights if config.num_tasks > 1 else task_weights[0])
    return ctr_loss(logits, labels, weight, num_items_in_batch, config.soft_labels)


def _check_labels(labels: torch.Tensor, soft_labels: bool) -> None:
    if torch.compiler.is_compiling():
        return
    right = ((labels >= 0) & (labels <= 1)) if soft_labels else ((labels == 0) | (labels == 1))
    wrong = ~(right | (labels == IGNORED_LABEL))
    hint = "" if soft_labels else "; probabilities need soft_labels=True in the configuration"
    refuse_labels(labels, wrong, "0 to 1" if soft_labels else "0 or 1", hint)


def refuse_labels(labels: torch.Tensor, wrong: torch.Tensor, accepted: str, hint: str = "") -> None:
    """Raises `ValueError` for the first label where the mask is true; on accelerators by an assertion on the device."""
    accepted = f"accepted: {accepted}, and {IGNORED_LABEL} for what is left out"
    if not labels.is_cpu:
        torch._assert_async(~wrong.any(), f"labels: a value is no label; {accepted}")
    elif wrong.any():
        place = wrong.nonzero()[0].tolist()
        raise ValueError(f"labels: {labels[tuple(place)].item():g} at {place} is no label; {accepted}{hint}")


def calibrated(config: PreTrainedConfig, logits: torch.Tensor) -> torch.Tensor:
    """Logits (..), with a trailing task axis for several tasks, and what `config.calibration` adds to them."""
    added = config.calibration
    if added is None:
        return logits
    return logits + (added[0] if len(added) == 1 else torch.tensor(added, dtype=logits.dtype, device=logits.device))


class CTRPreTrainedModel(PreTrainedModel):
    """Base of every lmctr model: `PreTrainedModel` that reads weights from safetensors only, never from pickles.

    A module with `init_parameters(config)` says itself how its new weights are made.

    Attributes:
        poolings: what the `pooling` of its forward may be, "all" and "sinks"; none where its forward has no such argument.
    """

    register_for_auto_class = classmethod(stays_in_package)
    _upload_modified_files = upload_modified_files
    poolings: tuple[str, ...] = ()

    @torch.no_grad()
    def _init_weights(self, module: torch.nn.Module) -> None:
        if hasattr(module, "init_parameters"):
            module.init_parameters(self.config)
        else:
            super()._init_weights(module)

    def count_items(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        """() float32, what a batch counts in its loss: its part of `num_items_in_batch`."""
        return count_items(batch)

    def bake(self) -> "CTRPreTrainedModel":
        """Make once what depends on nothing but parameters, for scoring: the model itself, changed in place. Here nothing does."""
        return self

    def diagnostic_points(self) -> dict[str, torch.nn.Module]:
        """Places to look at representations, by label in the order of the computation; empty where the family names none."""
        return {}

    def begin_epoch(self) -> None:
        """Called before each epoch of training: what the model keeps from batch to batch is renewed."""

    def epoch_state(self) -> dict[str, torch.Tensor]:
        """What the model keeps from batch to batch, for a checkpoint in the middle of an epoch; empty where that is nothing."""
        return {}

    def load_epoch_state(self, state: dict[str, torch.Tensor]) -> None:
        """Go on with what `epoch_state` gave, after [`begin_epoch`]."""

    def linear_path(self) -> LinearPath | None:
        """The linear way from the statistics to the logits; None where the model has none."""
        return None

    def trees_beside(self) -> TreesBeside | None:
        """What mixes the logits with boosted trees, where they are to stand; None where the model has no place for them."""
        path = self.linear_path()
        return None if path is None else path.skip

    def is_trees_alone(self, options: Mapping[str, Any]) -> bool:
        """Whether a prediction needs nothing of the network: the trees have all of the logits, and none of the `options` asks for more than
        logits. Who looks at the network's parts, as analyses do, runs without gradients, but not in inference mode."""
        if torch.compiler.is_compiling() or not torch.is_inference_mode_enabled():  # dynamo may not ask the latter
            return False
        if self.training or any(own is not None for own in options.values()):
            return False
        beside = None if self.config.output_hidden_states or self.config.output_attentions else self.trees_beside()
        return beside is not None and beside.trees is not None and beside.share == 1.0

    def save_pretrained(
        self, save_directory: str | os.PathLike, is_main_process: bool = True, *args, **kwargs
    ) -> None:
        """As `PreTrainedModel.save_pretrained`; the checksums of a run's folder are kept true, and no earlier weights stay there."""
        with resealing(save_directory) if is_main_process else nullcontext():
            super().save_pretrained(save_directory, is_main_process, *args, **kwargs)
            weights = {path.stem: path for path in Path(save_directory).glob("*.safetensors") if is_main_process}
            for stem in [*weights]:  # an earlier whole file, which transformers would read in place of new shards
                if (shard := re.fullmatch(r"(model.*)-\d{5}-of-\d{5}", stem)) and shard[1] in weights:
                    weights.pop(shard[1]).unlink()
            for path in weights.values():
                as_readable_as_its_folder(path)

    def save_beside(self, folder: Path) -> None:
        """Write what the model keeps beside its weights into a run's folder."""

    def load_beside(self, folder: Path) -> None:
        """Take up what `save_beside` wrote; raises `ValueError` where it does not belong to these weights."""

    def with_kept(self, inputs: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """Inputs of a forward pass in evaluation, with what the model keeps of them from earlier ones in their place. Here nothing is."""
        return inputs

    def same_weights(self) -> AbstractContextManager[None]:
        """A block in which the weights are copied, moved or rounded on purpose: what the model keeps of them stays good."""
        return nullcontext()

    def load_adapter(self, *args, **kwargs) -> Any:
        """As in the parent, which `from_pretrained` of a folder of adapters calls. Raises `ValueError` where weights of theirs stay new."""
        found = super().load_adapter(*args, **kwargs)
        if found.missing_keys:  # transformers does not know DoRA's again
            raise ValueError(
                f"the adapters have no {min(found.missing_keys)} that transformers knows, and would act with a new one; load the base model, and them "
                "with peft.PeftModel.from_pretrained(model, folder)"
            )
        return found

    @classmethod
    def from_pretrained(cls, *args, use_safetensors: bool | None = True, **kwargs) -> "CTRPreTrainedModel":
        """As `PreTrainedModel.from_pretrained`. Raises `ValueError` for `use_safetensors=False` and for an unknown argument."""
        if use_safetensors is False:
            raise ValueError("use_safetensors=False is not accepted: lmctr reads no pickled weights")
        try:
            return super().from_pretrained(*args, use_safetensors=True, **kwargs)
        except TypeError as error:  # of the constructor, which transformers gives what is left
            found = re.search(r"__init__\(\) got an unexpected keyword argument '(\w+)'", str(error))
            if found is None or found[1] not in kwargs:
                raise
            note = "accepted: the arguments of PreTrainedModel.from_pretrained, and keys of the configuration"
            where = f"{cls.__name__}.from_pretrained"
            raise ValueError(unknown_key_message(found[1], own_keys(cls.config_class), where, note)) from None

    def _set_gradient_checkpointing(self, enable: bool = True, *args, **kwargs) -> None:
        super()._set_gradient_checkpointing(enable, *args, **kwargs)
        for layer in self.modules() if enable else ():
            if hasattr(layer, "gradient_checkpointing"):
                layer._gradient_checkpointing_func = partial(_checkpointed, layer, layer._gradient_checkpointing_func)

    def resize_token_embeddings(self, *args, **kwargs) -> nn.Module:
        """As in the parent, of a language model. Raises `ValueError` for tables of ids, whose vocabularies grow with their processor."""
        if not self.config.has_tokenizer:
            raise ValueError(
                f"{type(self).__name__} has tables of ids, not of words: they grow with the processor's vocabularies (processor.extend, "
                "lmctr train RECIPE --from RUN)"
            )
        return super().resize_token_embeddings(*args, **kwargs)


def check_head(model: Any) -> None:
    """Raises `ValueError` for the base model of a family, which has no head to score with."""
    if isinstance(model, CTRPreTrainedModel) and model.base_model is model:
        raise ValueError(f"model: a {type(model).__name__} has no head to score with; load it with AutoModelForCTR")


class WithHeadMixin:
    """The parts of a family's `XForCTR`: the base model at `self.model`, then a head at `self.head`.

    Attributes:
        base_class: the family's `XModel`. A class without one makes its parts in an `__init__` of its own.
    """

    base_class: ClassVar[type[PreTrainedModel] | None] = None

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        if self.base_class is not None:
            self.make_parts(config)
            self.post_init()

    def make_parts(self, config: PreTrainedConfig) -> None:
        self.model = self.base_class(config)
        self.head = self.new_head(config)

    def last_layer(self) -> nn.Linear:
        """The layer of the head that gives the logits."""
        return [layer for layer in self.head.modules() if isinstance(layer, nn.Linear)][-1]

    def new_head(self, config: PreTrainedConfig) -> nn.Module:
        """What turns the representation into logits; `self.model` is there already."""
        raise NotImplementedError(f"{type(self).__name__} has no new_head")
