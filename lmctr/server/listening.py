"""A server of uvicorn that stops without resetting the connections of those who came just before."""

from __future__ import annotations

import asyncio
import socket
from contextlib import suppress
from functools import partial

import uvicorn

_LAST_WORDS = 0.1  # seconds until a request has come of who was taken on last


class Server(uvicorn.Server):
    """uvicorn's own closes what it listens at with those in it who wait to be taken on, and right after it who has asked nothing yet."""

    async def shutdown(self, sockets: list[socket.socket]) -> None:
        loop, waiting = asyncio.get_running_loop(), []
        for listening, server in zip(sockets, self.servers):
            with suppress(OSError):  # nobody waits any more
                while True:
                    waiting.append(listening.accept()[0])
            server.close()
        values = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        for connection in waiting:
            connection.setblocking(False)
            await loop.connect_accepted_socket(partial(self.config.http_protocol_class, **values), connection)
        await asyncio.sleep(_LAST_WORDS)
        await super().shutdown(sockets)
