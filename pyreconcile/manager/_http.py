"""Small HTTP servers for probes, metrics and debugging."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

import anyio
import structlog
from aiohttp import web
from anyio.abc import TaskStatus

from pyreconcile.certs import CertificateWatcher

log = structlog.get_logger()

SHUTDOWN: Final = 60.0
"""Seconds that running requests have at the end (rule MG-11)."""

_CUT_OFF: Final = 0.01  # seconds at a hard stop; aiohttp takes 0 for no limit


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


Handler: TypeAlias = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]


class HttpServer:
    """Serves HTTP with one handler.

    Args:
        name: shown in logs.
        option: the option that the address comes from, named in errors.
        address: where to listen; see `parse_address`.
        handler: answers a request.
        certificates: opens the certificate at the start, for TLS; without it, plain HTTP is spoken.
        shutdown_timeout: seconds that running requests have at the end.
    """

    needs_leader_election = False

    def __init__(
        self,
        name: str,
        *,
        option: str,
        address: str,
        handler: Handler,
        certificates: Callable[[], CertificateWatcher] | None = None,
        shutdown_timeout: float = SHUTDOWN,
    ) -> None:
        self.name = name
        self.port = 0
        """The port it listens on; 0 while it does not."""
        self._option = option
        self._address = address
        self._target = parse_address(option, address)
        self._handler = handler
        self._certificates = certificates
        self._shutdown_timeout = shutdown_timeout

    @property
    def enabled(self) -> bool:
        """Whether the address turns it on."""
        return self._target is not None

    @property
    def host(self) -> str:
        """The host it is to listen on; empty for every interface."""
        return "" if self._target is None else self._target[0]

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop`` is set, then let running requests end, for the shutdown timeout at most.

        Cancelling ends them at once.

        Raises:
            OSError: the address cannot be bound, which the message says with the option (rule MG-9); or the
                certificate cannot be read.
        """
        if self._target is None:
            return
        certificates = None if self._certificates is None else self._certificates()
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
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=self._shutdown_timeout)
        graceful = False
        try:
            await runner.setup()
            context = None if certificates is None else certificates.context
            await web.SockSite(runner, listener, ssl_context=context).start()
            self.port = int(listener.getsockname()[1])
            log.info(
                "http_server_listening", server=self.name, host=host or "*", port=self.port, tls=context is not None
            )
            task_status.started()
            await (stop.wait() if certificates is None else certificates.run(stop))
            graceful = True
        finally:
            self.port = 0
            with anyio.CancelScope(shield=True):
                if not graceful:
                    await server.shutdown(_CUT_OFF)
                await runner.cleanup()
            listener.close()


def text(status: int, body: str) -> web.Response:
    """Return a plain-text answer that no proxy keeps."""
    return web.Response(status=status, text=body, headers={"Cache-Control": "no-store"})
