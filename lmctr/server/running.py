"""`lmctr serve`: load, probe, listen; drain on SIGTERM, take over a new version of the model on SIGHUP."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import os
import shlex
import signal
import socket
import sys
import threading
from contextlib import nullcontext, suppress
from functools import partial
from pathlib import Path

import torch

from lmctr.runs.answers.engine import Engine
from lmctr.runs.answers.served import ServedModel, bound
from lmctr.runs.examples import example_request
from lmctr.utils.lock import owned
from lmctr.utils.measure import keep_freed_memory, usable_device

from .options import ServeOptions

_MOST_WORKERS = 4  # by default; the interpreter lets one thread at a time run between the operations of torch
_LONGEST = 4000  # characters of a request that is printed
_LAST_WORDS = 0.1  # seconds until a request has come of who was taken on last
_STATES = "kept_states.tsv"
_LOST = " {:,} could not go over, and their users are answered 404 until they are started again"
logger = logging.getLogger("lmctr.server")


def serve(options: ServeOptions) -> int:
    """Serve until SIGTERM or SIGINT; requests that were taken are answered first.

    Raises:
        ImportError: the extra `serve` is not installed.
        FileNotFoundError, ValueError: what [`ServedModel`] raises; a model that gives other logits for the run's reference rows is not served.
        OSError: the address is taken.
    """
    try:
        import uvicorn

        from .app import create_app
        from .metrics import ServerMetrics
    except ImportError as error:
        raise ImportError(f"lmctr serve needs the extra serve: pip install 'lmctr[serve]' ({error})") from error
    workers, threads = _workers(options)
    torch.set_num_threads(threads)
    keep_freed_memory()
    asked = threading.Event()  # for a new version, while the first one is loaded
    if hasattr(signal, "SIGHUP"):
        signal.signal(signal.SIGHUP, lambda *_: asked.set())
    own = nullcontext() if options.states is None else owned(options.states, "lmctr serve --states")
    with bound(options.host, options.port) as address, own:  # what is taken is told before the model is loaded
        metrics, served = ServerMetrics(), _load(options)
        example = _example(served)
        engine = Engine(
            served,
            workers=workers,
            max_positions=options.batch_positions,
            max_wait=options.batch_wait_ms / 1000,
            max_queue=options.max_queue,
            max_candidates=options.max_candidates,
            max_history=options.max_history,
            max_state_bytes=options.state_memory << 20,
            time_to_live=options.state_ttl,
            on_batch=metrics.on_batch,
        )
        file = None if options.states is None else Path(options.states) / _STATES
        if file is not None:
            _take_up(engine, file)
        app = create_app(engine, metrics, deadline=options.deadline_ms / 1000, max_body=options.max_body << 20)
        # What stands now stays: the collector need not walk over it again and again, for 100 ms and more each time.
        gc.collect()
        gc.freeze()
        server = server_class()(
            uvicorn.Config(
                app,
                log_level="warning",
                access_log=False,
                timeout_graceful_shutdown=options.drain_seconds,
                timeout_keep_alive=75,
            )
        )
        if hasattr(signal, "SIGHUP"):
            signal.signal(
                signal.SIGHUP, lambda *_: threading.Thread(target=_reload, args=(engine, options), daemon=True).start()
            )
            if asked.is_set():
                signal.raise_signal(signal.SIGHUP)
        # uvicorn takes these over when it runs, and raises the signal again when it has stopped; by then all is done.
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        if file is not None:  # from now on states go on: after a crash it would tell of users as they were before
            file.unlink(missing_ok=True)
        address.listen(2048)  # before the line below: who reads it may ask at once, and waits until uvicorn takes over
        host, port = address.getsockname()[:2]
        version = f"{engine.served.kind}, version {engine.served.version}"
        print(f"serving {options.run} ({version}) at http://{host}:{port}", flush=True)
        if example is not None:
            print(f"try: curl -s http://{host}:{port}/v1/score -d {shlex.quote(example)}", flush=True)
        try:
            server.run(sockets=[address])
        finally:
            ended = engine.close(timeout=1.0)  # who waited for an answer was waited for
            left = file is None or _leave(engine, file)
        if not ended:
            logger.warning("stopped in the middle of work that nobody waits for any more")
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(int(not left))  # a thread inside torch would not let the interpreter end
    return int(not left)


def server_class() -> type:
    """uvicorn's server, but for its end: who waits to be taken on then, or has asked nothing yet, is answered, where its own resets the connection."""
    import uvicorn

    class Server(uvicorn.Server):
        async def shutdown(self, sockets: list[socket.socket]) -> None:
            waiting = []
            for listening, server in zip(sockets, self.servers):
                with suppress(OSError):  # nobody waits any more
                    while True:
                        waiting.append(listening.accept()[0])
                server.close()
            values = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
            for own in waiting:
                own.setblocking(False)
                make = partial(self.config.http_protocol_class, **values)
                await asyncio.get_running_loop().connect_accepted_socket(make, own)
            await asyncio.sleep(_LAST_WORDS)
            await super().shutdown(sockets)

    return Server


def _workers(options: ServeOptions) -> tuple[int, int]:
    """How many threads score, and torch's threads in each: small forward passes gain little from threads of their own, and two at a time on two
    cores score up to twice the candidates of one that has both."""
    cores = torch.get_num_threads()
    if options.workers is None and usable_device(options.device).type != "cpu":
        return 1, options.threads or cores
    workers = options.workers or max(1, min(_MOST_WORKERS, cores // (options.threads or 1)))
    return workers, options.threads or max(1, cores // workers)


def _load(options: ServeOptions) -> ServedModel:
    served = ServedModel(options.run, options.device, options.batch_size, options.max_tokens, options.dtype)
    if served.probe is None:
        print(f"warning: {options.run} holds no reference rows; no known answer was compared", file=sys.stderr)
    if served.not_joined is not None:
        print(f"warning: rows need all columns, none is joined: {served.not_joined}", file=sys.stderr)
    return served


def _example(served: ServedModel) -> str | None:
    """A request that the model answers, as JSON; none where no example is known, or a long one."""
    try:
        request = example_request(served.folder, served.items)
        written = json.dumps(request, ensure_ascii=False, allow_nan=False)
        (answer,) = served.score([(served.check(json.loads(written)), None)])
    except ValueError:
        return None
    return None if isinstance(answer, Exception) or len(written) > _LONGEST else written


def _take_up(engine: Engine, file: Path) -> None:
    """The states of a process before."""
    if not engine.served.reads_histories:
        raise ValueError(
            f"--states: {engine.served.name} reads {engine.served.kind}, no histories; it keeps no states"
        )
    if not file.exists():
        logger.warning("no kept states to take up: %s is not there", file)
        return
    count = engine.restore(file)
    logger.warning("%s kept states of users taken up from %s", f"{count:,}", file)

    def finish() -> None:
        if gone := engine.states.finish_move():
            logger.warning("of the kept states%s", _LOST.format(gone))

    threading.Thread(target=finish, daemon=True).start()


def _leave(engine: Engine, file: Path) -> bool:
    """Write the states for the next process. Returns whether that went well."""
    try:
        count, busy = engine.save(file)
    except OSError as error:
        told = "%s kept states of users are lost, and their users are answered 404 until they are started again: %s"
        logger.error(told, f"{len(engine.states.all()):,}", error)
        return False
    left = f"; {busy:,} not, as their users' requests had not ended" if busy else ""
    logger.warning("%s kept states of users written to %s%s", f"{count:,}", file, left)
    return True


_reloading = threading.Lock()  # so that the newest stands at last


def _reload(engine: Engine, options: ServeOptions) -> None:
    """Load the model anew and go over to it; where that fails, the earlier one stays."""
    try:
        with _reloading:
            served = _load(options)
            kept, gone = engine.swap(served)
    except Exception as error:
        engine.swaps["refused"] += 1
        logger.error("the new model is refused, the earlier one stays: %s", error)
        return
    gc.collect()
    gc.freeze()
    lost = f";{_LOST.format(gone)}" if gone else ""
    logger.warning("serving version %s now, with %s kept states of users%s", served.version, f"{kept:,}", lost)
