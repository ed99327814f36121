"""Fully sharded data parallel (FSDP2): what accelerate wraps by recipes/accelerate/fsdp2.yaml, on one CPU process."""

import pytest
import torch
import torch.distributed as dist
import yaml
from test_split_layout import split_batch
from tiny_models import BACKBONES, sink_config

from lmctr import CTRSinkForCTR
from lmctr.training.lora import add_lora
from lmctr.utils.resources import find_resource


@pytest.fixture
def one_process(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def shard(model):
    """As accelerate does it: layers by the names that the model gives, innermost first, then the rest."""
    from accelerate import FullyShardedDataParallelPlugin
    from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    config = yaml.safe_load(find_resource("recipes", "accelerate/fsdp2.yaml").read_text())["fsdp_config"]
    plugin = FullyShardedDataParallelPlugin(
        fsdp_version=config["fsdp_version"],
        auto_wrap_policy=config["fsdp_auto_wrap_policy"].lower(),
        cpu_offload=False,
    )
    policy = fsdp2_prepare_auto_wrap_policy(plugin, model)
    mesh = init_device_mesh("cpu", (1,))
    wrapped = [module for module in model.modules() if module is not model and policy(module)]
    for module in reversed(wrapped):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return wrapped


@pytest.mark.parametrize("lora", [False, True], ids=["full", "lora"])
@pytest.mark.parametrize("layout", ["single", "split"])
@pytest.mark.parametrize("backbone", BACKBONES)
def test_sharded_training_step_equals_the_plain_one(backbone, layout, lora, one_process):
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        model = CTRSinkForCTR(sink_config(backbone, layout=layout, sink_bias_layers="all")).train()
        models.append(add_lora(model, {"r": 4, "dropout": 0.0}) if lora else model)
    sharded = models[1]
    batch = split_batch(model.config)
    if layout == "single":
        del batch["field_ids"]
    labels = torch.tensor([1.0, 0.0, 1.0])
    assert len(shard(sharded)) == 3  # the layers, and nothing that forward reaches past its own call
    losses = []
    for model in models:
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        for _ in range(2):
            loss = model(**batch, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        losses.append(model(**batch, labels=labels).loss.item())
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
