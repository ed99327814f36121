"""Fully sharded data parallel (FSDP2): what accelerate wraps by recipes/accelerate/fsdp2.yaml, on one and two CPU processes; LoRA under DDP."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import warm
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


def shard(model, processes=1):
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
    mesh = init_device_mesh("cpu", (processes,))
    wrapped = [module for module in model.modules() if module is not model and policy(module)]
    for module in reversed(wrapped):
        fully_shard(module, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return wrapped


@pytest.mark.filterwarnings("error:FSDP2-wrapped module")
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


@pytest.mark.parametrize("mode", ["fsdp", "lora"])
def test_two_processes_equal_one(mode, tmp_path):
    """Ten steps of AdamW on a tiny Qwen2: sharded by FSDP2, and with LoRA under DDP."""
    from fsdp_worker import train

    running = warm.launch(Path(__file__).with_name("fsdp_worker.py"), tmp_path / "weights.pt", mode)
    assert [process.wait() for process in running] == [0, 0], running
    expected, found = train(mode), torch.load(tmp_path / "weights.pt")
    assert expected.keys() == found.keys()
    torch.manual_seed(0)
    before = CTRSinkForCTR(sink_config("qwen2", sink_bias_layers="all")).state_dict()
    assert mode == "lora" or any(not torch.allclose(found[name], before[name], atol=1e-2) for name in before)
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, atol=1e-5, rtol=0, msg=name)


@pytest.mark.parametrize("name", ["one_gpu", "cpu2", "ddp", "fsdp2", "sharded"])
def test_the_launcher_takes_the_shipped_configurations(name):
    """Each key is one that accelerate knows: it refuses others when it starts."""
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(find_resource("recipes", f"accelerate/{name}.yaml")))
    assert config.num_processes == {"one_gpu": 1, "cpu2": 2}.get(name, 4)
    assert (config.distributed_type == "FSDP") == (name == "fsdp2")
