"""Small HTTP servers for probes and metrics."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final

import anyio
import structlog
from aiohttp import web
from anyio.abc import TaskStatus

log = structlog.get_logger()

# Seconds that running requests have at the end (rule MG-11).
_SHUTDOWN: Final = 60.0


def parse_address(option: str, address: str) -> tuple[str, int] | None:
    """Split a bind address into host (empty for every interface) and port; None when it turns the server off.

    Raises:
        ValueError: it is neither ``HOST:PORT``, ``:PORT``, ``0`` nor empty; the message names the option.
    """
    if address in ("", "0"):
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535 or (":" in host and not host.startswith("[")):
        raise ValueError(
            f"{option}: {address!r} is no address; write 'HOST:PORT' or ':PORT' "
            "(port 0 lets the system choose), or '0' to turn the server off"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _listen(host: str, port: int) -> socket.socket:
    if host:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


class HttpServer:
    """Serves plain HTTP with one handler.

    Args:
        name: shown in logs.
        option: the option that the address comes from, named in errors.
        address: where to listen; see `parse_address`.
        handler: answers a request.
    """

    needs_leader_election = False

    def __init__(
        self,
        name: str,
        *,
        option: str,
        address: str,
        handler: Callable[[web.BaseRequest], Awaitable[web.StreamResponse]],
    ) -> None:
        self.name = name
        self.port = 0
        """The port it listens on; 0 while it does not."""
        self._option = option
        self._address = address
        self._target = parse_address(option, address)
        self._handler = handler

    @property
    def enabled(self) -> bool:
        """Whether the address turns it on."""
        return self._target is not None

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop`` is set, then let running requests end (for 60 s at most).

        Raises:
            OSError: the address cannot be bound; the message names the option (rule MG-9).
        """
        if self._target is None:
            return
        host, port = self._target
        try:
            listener = _listen(host, port)
        except OSError as error:
            raise OSError(
                error.errno,
                f"{self._option}: cannot listen on {self._address}: {error.strerror or error}; "
                "choose another address, or '0' to turn the server off",
            ) from error
        server = web.Server(self._handler, access_log=None, handler_cancellation=True)
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN)
        try:
            await runner.setup()
            await web.SockSite(runner, listener).start()
            self.port = int(listener.getsockname()[1])
            log.info("http_server_listening", server=self.name, host=host or "*", port=self.port)
            task_status.started()
            await stop.wait()
        finally:
            self.port = 0
            with anyio.CancelScope(shield=True):
                await runner.cleanup()
            listener.close()


def text(status: int, body: str) -> web.Response:
    """Return a plain-text answer that no proxy keeps."""
    return web.Response(status=status, text=body, headers={"Cache-Control": "no-store"})
