"""The end of a launch of several processes."""

from __future__ import annotations

import gc


def leave_process_group() -> None:
    """Wait for the other processes and close the process group; nothing happens where there is none.

    Call it when nothing refers to the trainer or a wrapped model any more. `DistributedDataParallel` holds the group
    too, and the one that lets go of it last joins the group's threads: the wrapped model does that with Python's
    lock held, for which a thread of gloo may be waiting, and the process would hang (about one run in ten).
    """
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return
    dist.barrier()
    gc.collect()  # trainers and their callbacks refer to each other
    dist.destroy_process_group()
