"""openapi.json, of which clients are made."""

import asyncio
from types import SimpleNamespace
from urllib.parse import urljoin

import httpx
import pytest

from lmctr.server.app import create_app
from lmctr.server.metrics import ServerMetrics


@pytest.mark.parametrize("prefix", ["", "/ctr"])
def test_it_leads_to_the_routes_from_where_it_was_read(prefix):
    """Below a prefix that a proxy takes off, too."""
    app = create_app(SimpleNamespace(batcher=SimpleNamespace(is_alive=True)), ServerMetrics())

    async def proxy(scope, receive, send):
        assert scope["path"].startswith(f"{prefix}/"), scope["path"]
        path = scope["path"].removeprefix(prefix)
        await app({**scope, "path": path, "raw_path": path.encode()}, receive, send)

    async def asked():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(proxy), base_url="http://proxy") as client:
            description = (await client.get(f"{prefix}/openapi.json")).json()
            (server,) = description.get("servers", [{"url": "/"}])  # the default of OpenAPI
            base = urljoin(f"http://proxy{prefix}/openapi.json", server["url"]).rstrip("/")
            assert {"/health", "/v1/score", "/v1/users/{user_id}/events"} <= {*description["paths"]}
            return (await client.get(f"{base}/health")).json()

    assert asyncio.run(asked()) == {"status": "ok"}
