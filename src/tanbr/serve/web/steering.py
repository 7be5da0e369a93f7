"""Routes that change what is served; the entrance asks for the administration token."""

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Response

from tanbr.serve.web import logs, requests, responses
from tanbr.serve.web.answering import view
from tanbr.serve.web.service_api import ServiceApi
from tanbr.serve.web.workers import Workers


def add_steering(app: FastAPI, service: ServiceApi) -> None:
    """Add the routes; merges are waited for in a thread."""
    workers = Workers("administration", threads=4, waiting=16)

    async def act(action: str, work: Callable[[], Any]) -> Response:
        await workers.run(work)
        now = await workers.run(service.state)
        logs.say("admin", action=action, slot=now.slot, merge_version=now.merge_version)
        return view({"slot": now.slot, "merge_version": now.merge_version, "pinned": now.pinned})

    @app.post("/v1/admin/pin", tags=["steering"], response_model=responses.AdminResponse)
    async def pin(body: requests.PinRequest) -> Response:
        """Serve one blend, or one merge version, until `unpin`; the router chooses nothing meanwhile."""
        target = body.blend if isinstance(body, requests.PinBlend) else body.merge_version
        return await act("pin", lambda: service.pin(target))

    @app.post("/v1/admin/unpin", tags=["steering"], response_model=responses.AdminResponse)
    async def unpin() -> Response:
        """Let the router choose again, from the next slot on."""
        return await act("unpin", service.unpin)

    @app.post("/v1/admin/rollback", tags=["steering"], response_model=responses.AdminResponse)
    async def rollback(body: requests.RollbackRequest | None = None) -> Response:
        """Serve an earlier merge version until the slot ends; the router is told that its blend was bad."""
        return await act("rollback", lambda: service.rollback(None if body is None else body.merge_version))

    @app.post("/v1/admin/slot", tags=["steering"], response_model=responses.AdminResponse)
    async def slot() -> Response:
        """End the slot now."""
        return await act("slot", service.end_slot)
