"""The ends of processes: of a launch of several, and of a loader's workers."""

from __future__ import annotations

import gc
import json
import multiprocessing
import os
import socket
import threading
import time
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import torch.distributed as dist

# How long the first waits until its word is read: those who were killed never read it, nor those who stand in a collective later on.
_SECONDS_TO_READ, _SECONDS_LATER = 60, 5
_SECONDS_TO_CLOSE = 10
_numbers = count()


def says_of_launch(world_size: int) -> list[str]:
    """A line on `accelerate launch` that was asked for several processes and started one, as it does on the CPU unless a configuration file says
    MULTI_GPU: it leaves the place where they would meet, and no ranks."""
    env = os.environ
    if world_size > 1 or "RANK" in env or "MASTER_PORT" not in env or "ACCELERATE_DYNAMO_USE_FULLGRAPH" not in env:
        return []
    return [
        "accelerate launch was asked for several processes and started this one alone, as it does with --cpu: launch with --config_file "
        "recipes/accelerate/cpu2.yaml, whose num_processes is the number, and set training.use_cpu true"
    ]


class FirstProcessError(ValueError):
    """The first process failed while this one waited for it; it says why itself."""

    is_told = True


class FirstProcess:
    """Lets all processes of a launch wait for what the first one does alone: however long that takes, and with its errors.

    A barrier would give up after half an hour, in which the first one may still be reading data; and where the first one fails, the others would
    stand in it. All processes make these objects in the same order, one for each piece of work such as a run.
    """

    def __init__(self, is_first: bool):
        self.is_first, self.number, self.meetings = is_first, next(_numbers), 0

    def _store(self) -> Any:
        """Where the processes leave word for each other; None: there is one process."""
        if not (dist.is_available() and dist.is_initialized()) or dist.get_world_size() == 1:
            return None
        return dist.distributed_c10d._get_default_store()

    @property
    def _key(self) -> str:
        return f"lmctr/{self.number}/{self.meetings}"

    def wait(self) -> None:
        """Wait until all processes are here.

        Raises:
            FirstProcessError: the first one failed on its way here.
        """
        store = self._store()
        if store is None:
            return
        key = self._key
        if self.is_first:
            store.set(key, json.dumps(None))
        else:
            store.wait([key], timedelta(days=30))
            error = json.loads(store.get(key))
            if error is not None:
                raise FirstProcessError(f"the first process failed: {error}")
        self.meetings += 1
        dist.barrier()

    def failed(self, error: BaseException) -> None:
        """Of the first process: let those who wait for it fail too. Of the others: let the first one know that they wait no longer."""
        if (store := self._store()) is None:
            return
        own = f"lmctr/{self.number}/failed"  # at whichever meeting
        with suppress(dist.DistError, RuntimeError):
            if not self.is_first:
                store.set(f"{own}/{dist.get_rank()}", "failed")
                return
            store.set(self._key, json.dumps(f"{type(error).__name__}: {error}"))
            others = [f"{own}/{rank}" for rank in range(dist.get_world_size()) if rank != dist.get_rank()]
            # the word goes with the process that holds it, so it stays until it was read
            store.wait(others, timedelta(seconds=_SECONDS_TO_READ if self.meetings < 2 else _SECONDS_LATER))


def leave_process_group() -> None:
    """Wait for the other processes and close the process group; nothing happens where there is none.

    Call it when nothing refers to the trainer or a wrapped model any more. `DistributedDataParallel` holds the group
    too, and the one that lets go of it last joins the group's threads: the wrapped model does that with Python's
    lock held, for which a thread of gloo may be waiting, and the process would hang (about one run in ten).
    """
    if not (dist.is_available() and dist.is_initialized()):
        return
    joins_again = dist.get_rank() != 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    dist.barrier()
    gc.collect()  # trainers and their callbacks refer to each other
    dist.destroy_process_group()
    if joins_again and "MASTER_PORT" in os.environ:
        _wait_until_closed(os.environ.get("MASTER_ADDR", "localhost"), int(os.environ["MASTER_PORT"]))


def _wait_until_closed(address: str, port: int) -> None:
    """Wait until the first process, where it holds the store itself, has closed it (torchrun's outlives the group): who joins the next training's group
    before finds the old store there, and all wait for ever. Not longer than some seconds, for something else may hold the port by then."""
    end = time.monotonic() + _SECONDS_TO_CLOSE
    with suppress(OSError):
        while time.monotonic() < end:
            socket.create_connection((address, port), timeout=1).close()
            time.sleep(0.02)


def end_with_parent(worker: int = 0) -> None:
    """Let a worker of a loader, a child of a grid, or a process of a launch end with the process whose it is, however that is killed.

    torch looks whether the process that forked it is still there. Where workers are forked by a server (Python's default from 3.14 on), that is
    the server, which waits for the workers. The launcher of several processes (torchrun's, which accelerate calls) ends them unless it is killed itself.
    """
    parent, launcher = multiprocessing.parent_process(), os.getppid()

    def end() -> None:
        while parent is None and os.getppid() == launcher:
            time.sleep(1)
        if parent is not None:
            parent.join()
        os._exit(1)

    if parent is not None or "TORCHELASTIC_RUN_ID" in os.environ:
        threading.Thread(target=end, daemon=True).start()
