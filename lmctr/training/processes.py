"""The ends of processes: of a launch of several, and of a loader's workers."""

from __future__ import annotations

import gc
import multiprocessing
import os
import threading
from multiprocessing.connection import wait


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


def end_with_parent(worker: int) -> None:
    """Let a worker of a loader end with the process whose worker it is, however that is killed.

    torch looks whether the process that forked it is still there. Where workers are forked by a server (Python's default from 3.14 on), that is
    the server, which waits for the workers.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_exit_after, args=(parent.sentinel,), daemon=True).start()


def _exit_after(sentinel: int) -> None:
    wait([sentinel])
    os._exit(1)
