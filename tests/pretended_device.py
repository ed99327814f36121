"""An accelerator that is not there: its tensors say that they are on cuda:0, hold their values in this machine's memory, and refuse to be
mixed with others, as an accelerator's do. So a family's passes are tried on another device where there is none.

What C++ makes of a tensor's options (`at::zeros(shape, tensor.options())`) comes without the device, since its tensors know of none: `one_hot`
is made good below, the backward pass of `unbind` with an output that nothing reads is not.
"""

import contextlib
import traceback
from pathlib import Path

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import arg_tree_leaves, tree_map

import lmctr

DEVICE = torch.device("cuda", 0)
PACKAGE = str(Path(lmctr.__file__).parent)
# What takes tensors of both: a copy, and an index on the CPU.
COPIES = ("aten::_to_copy", "aten::copy_")
INDEXES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class OnDevice(torch.Tensor):
    """A tensor of the device, around its values."""

    @staticmethod
    def __new__(cls, values):
        return torch.Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            layout=values.layout,
            requires_grad=values.requires_grad,
        )

    def __init__(self, values):
        self.values_here = values.detach()

    device = property(lambda self: DEVICE)
    is_cuda = property(lambda self: True)
    is_cpu = property(lambda self: False)

    def __repr__(self, **_):
        return f"OnDevice({self.values_here!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _run(func, args, kwargs or {})

    # With both, `Module.to` makes new parameters instead of giving the old ones other memory.
    def __tensor_flatten__(self):
        return ["values_here"], None

    @staticmethod
    def __tensor_unflatten__(inner, *_):
        return OnDevice(inner["values_here"])


def _is_device(given):
    return given is not None and torch.device(given).type == DEVICE.type


def _run(func, args, kwargs):
    name, tensors = func._schema.name, [leaf for leaf in arg_tree_leaves(*args, **kwargs) if torch.is_tensor(leaf)]
    here = [one for one in tensors if not isinstance(one, OnDevice)]
    stays = len(here) < len(tensors)
    if stays and name not in COPIES:
        wrong = [one for one in here if one.dim()]
        if name in INDEXES and isinstance(args[0], OnDevice):
            wrong = [one for one in wrong if any(one is given for given in args[2:3])]
        if wrong:
            raise RuntimeError(f"{name}: tensors on {DEVICE} and on cpu, of shape {tuple(wrong[0].shape)}")
    if kwargs.get("device") is not None:
        stays = _is_device(kwargs["device"]) or (stays and name not in COPIES)
        kwargs = {**kwargs, "device": torch.device("cpu")}
    plain = (
        tree_map(lambda one: one.values_here if isinstance(one, OnDevice) else one, given) for given in (args, kwargs)
    )
    found = func(*next(plain), **next(plain))
    if name == "aten::_local_scalar_dense":
        _note_host_read()
        return found
    if not stays:
        return found
    found = tree_map(lambda one: OnDevice(one) if torch.is_tensor(one) else one, found)
    return return_and_correct_aliasing(func, args, kwargs, found) if len(here) < len(tensors) else found


host_reads = []  # by the package's own code, as `file:line`: each waits for all that the device has been asked for


def _note_host_read():
    for frame in reversed(traceback.extract_stack()):
        if not any(part in frame.filename for part in ("/torch/", __file__)):
            if frame.filename.startswith(PACKAGE):
                host_reads.append(f"{Path(frame.filename).name}:{frame.lineno}")
            return


class _Factories(TorchDispatchMode):
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_device(kwargs.get("device")) or any(
            isinstance(one, OnDevice) for one in arg_tree_leaves(*args, **kwargs)
        ):
            return _run(func, args, kwargs)
        return func(*args, **kwargs)


def _moved(tensor, device, dtype):
    place = tensor.device if device is None else DEVICE if _is_device(device) else torch.device(device)
    if place == tensor.device and dtype in (None, tensor.dtype):
        return tensor
    return torch.ops.aten._to_copy(tensor, dtype=dtype, device=place)


class _Functions(TorchFunctionMode):
    """What C++ decides by a device that it does not know."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        first = args[0] if args else None
        if func in (torch.tensor, torch.as_tensor) and _is_device(kwargs.get("device")):
            rest = {key: value for key, value in kwargs.items() if key != "device"}
            return _moved(func(*args, **rest), DEVICE, None)
        if func is torch.Tensor.type_as:
            return _moved(first, args[1].device, args[1].dtype)
        if isinstance(first, OnDevice):
            if func is torch.Tensor.tolist:
                _note_host_read()
                return first.values_here.tolist()
            if func in (torch.Tensor.numpy, torch.Tensor.__array__):
                raise TypeError(f"can't convert {DEVICE} device type tensor to numpy. Use Tensor.cpu() first")
            if func is torch.nn.functional.one_hot:
                return _moved(func(first.values_here, *args[1:], **kwargs), DEVICE, None)
            if func is torch.Tensor.cpu:
                return _moved(first, "cpu", None)
            if func is torch.Tensor.to:
                given = [*args[1:], *kwargs.values()]
                like = next((one for one in given if torch.is_tensor(one)), None)
                device = next((one for one in given if isinstance(one, (str, torch.device))), None)
                dtype = next((one for one in given if isinstance(one, torch.dtype)), None)
                return _moved(first, device if like is None else like.device, dtype if like is None else like.dtype)
        return func(*(_indexed(one) for one in args), **{key: _indexed(one) for key, one in kwargs.items()})


def _indexed(given):
    """With its number: without one, C++ asks the device which it is."""
    return DEVICE if isinstance(given, (str, torch.device)) and str(given) == DEVICE.type else given


@contextlib.contextmanager
def pretended(monkeypatch):
    """The device, inside; gives the list of host reads."""
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    # Tensors made in inference mode cannot be wrapped; without gradients they can.
    monkeypatch.setattr(torch._C, "_InferenceMode", lambda on: torch.no_grad() if on else contextlib.nullcontext())
    host_reads.clear()
    with _Functions(), _Factories():
        yield host_reads
