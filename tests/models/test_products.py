"""Float32 products by oneDNN: equal to float64, and only where they are meant to be."""

import copy

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

from lmctr.models.common import products
from lmctr.models.common.products import Linear

pytestmark = pytest.mark.skipif(
    not torch.backends.mkldnn.is_available(), reason="this build of torch has no oneDNN for CPUs"
)


@pytest.fixture
def forced(monkeypatch):
    """As on a processor that gains by it; gives the calls that went that way."""
    calls = []
    product = products._product
    monkeypatch.setattr(products, "prefers_onednn", lambda: True)
    monkeypatch.setattr(products, "_product", lambda *given: calls.append(given) or product(*given))
    return calls


@pytest.mark.parametrize("shape", [(700,), (40, 20)])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(130, 140), (64, 160)]
)  # the latter's weight gradient goes the plain way
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_float64(forced, shape, inputs, outputs, bias):
    torch.manual_seed(0)
    layer = Linear(inputs, outputs, bias=bias)
    plain = copy.deepcopy(layer).double()
    states = torch.randn(*shape, inputs, requires_grad=True)
    wide = states.detach().double().requires_grad_()
    gradient = torch.randn(*shape[::-1], outputs).transpose(
        0, len(shape) - 1
    )  # strided where there are two dimensions
    layer(states).backward(gradient)
    nn.functional.linear(wide, plain.weight, plain.bias).backward(gradient.double())
    assert len(forced) == (3 if inputs > 128 else 2)
    torch.testing.assert_close(layer(states).double(), plain(wide), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(states.grad.double(), wide.grad, rtol=1e-5, atol=1e-5)
    for own, wanted in zip(layer.parameters(), plain.parameters()):
        torch.testing.assert_close(own.grad.double(), wanted.grad, rtol=1e-4, atol=1e-4)


def test_frozen_parts_get_no_gradient(forced):
    layer = Linear(130, 140)
    layer.weight.requires_grad_(False)
    states = torch.randn(700, 130)
    layer(states).sum().backward()
    assert layer.weight.grad is None
    assert layer.bias.grad.tolist() == [700.0] * 140
    assert len(forced) == 1
    with torch.no_grad():
        assert not layer(states).requires_grad


def test_small_products_other_types_and_autocast_go_the_plain_way(forced):
    layer = Linear(130, 140)
    layer(torch.randn(3, 130))
    layer.double()(torch.randn(700, 130, dtype=torch.float64))
    layer.float()
    with torch.autocast("cpu", torch.bfloat16):
        assert layer(torch.randn(700, 130)).dtype == torch.bfloat16
    assert Linear(130, 140, device="meta")(torch.empty(700, 130, device="meta")).shape == (700, 140)
    assert forced == []
    layer(torch.randn(700, 130))
    assert len(forced) == 1


def test_operations_are_counted_alike(forced, monkeypatch):
    layer, states = Linear(130, 140), torch.randn(700, 130, requires_grad=True)

    def counted():
        with FlopCounterMode(display=False) as counter:
            layer(states).sum().backward()
        return counter.get_total_flops()

    own = counted()
    assert len(forced) == 3
    monkeypatch.setattr(products, "prefers_onednn", lambda: False)
    assert own == counted() == 3 * 2 * 700 * 130 * 140


def test_the_processor_decides(monkeypatch, tmp_path):
    told = tmp_path / "cpuinfo"
    monkeypatch.setattr(products, "Path", lambda path: told)
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    for maker, capability, wanted in (
        ("AuthenticAMD", "AVX512", True),
        ("AuthenticAMD", "AVX2", False),  # MKL uses all of it
        ("GenuineIntel", "AVX512", False),
    ):
        told.write_text(f"vendor_id : {maker}\n")
        monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda capability=capability: capability)
        assert products.prefers_onednn.__wrapped__() is wanted


def test_who_counts_functions_of_torch_sees_it(forced):
    """Counts of FLOPs by shapes need not count every row's operations anew on such a processor."""

    class Names(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            seen.append(function.__name__)
            return function(*args, **(kwargs or {}))

    seen, states, layer = [], torch.randn(200, 130), Linear(130, 140)
    plain = layer(states)
    with Names():
        counted = layer(states)
    assert "linear" in seen
    assert len(forced) == 2
    torch.testing.assert_close(counted, plain, rtol=0, atol=0)
