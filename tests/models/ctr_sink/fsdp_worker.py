"""One process of a launch that trains a tiny language model, sharded by FSDP2 or with LoRA under DDP: `fsdp_worker.py FILE MODE`."""

import os
import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from test_sharding_ctr_sink import shard  # noqa: E402
from test_split_layout import split_batch  # noqa: E402
from tiny_models import sink_config  # noqa: E402
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

from lmctr import CTRSinkForCTR  # noqa: E402
from lmctr.training.lora import add_lora  # noqa: E402

STEPS = 10


def train(mode, rank=0, processes=1):
    """Ten steps on batches of six rows, of which each process has its part; the weights of the whole model."""
    torch.manual_seed(0)
    model = CTRSinkForCTR(sink_config("qwen2", sink_bias_layers="all")).train()
    plain = model = add_lora(model, {"r": 4, "dropout": 0.0}) if mode == "lora" else model
    if processes > 1 and mode == "fsdp":
        assert len(shard(model, processes)) == 3
    elif processes > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01, eps=1e-3)
    parts = [split_batch(plain.config, extra=2 * seed, seed=seed) for seed in range(2)]
    labels = [torch.tensor([1.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 1.0])]
    for part in parts:
        del part["field_ids"]
    for _ in range(STEPS):
        own = range(2) if processes == 1 else [rank]
        for (
            part
        ) in own:  # as CTRTrainer: each row has its share of the mean over all; gradients are averaged over processes
            (model(**parts[part], labels=labels[part], num_items_in_batch=6.0).loss * processes).backward()
        optimizer.step()
        optimizer.zero_grad()
    options = StateDictOptions(full_state_dict=True, cpu_offload=True)
    return get_model_state_dict(plain, options=options) if mode == "fsdp" else plain.state_dict()


if __name__ == "__main__":
    file, mode, rank, processes = sys.argv[1], sys.argv[2], int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo")
    weights = train(mode, rank, processes)
    if rank == 0:
        torch.save(weights, file)
    dist.barrier()
    dist.destroy_process_group()
