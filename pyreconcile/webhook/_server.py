"""The HTTPS server that the API server asks."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import anyio
import orjson
import structlog
from aiohttp import web
from anyio.abc import TaskStatus

from pyreconcile.api import KubeObject, RawObject, Resource
from pyreconcile.certs import CertificateWatcher, TLSOptions, choose_source
from pyreconcile.metrics import Metrics, WebhookMetrics
from pyreconcile.webhook._handlers import (
    DEFAULT_TIMEOUT,
    MAX_TIMEOUT,
    Defaulter,
    DefaulterHandler,
    Handler,
    Mutator,
    MutatorHandler,
    RawValidator,
    RawValidatorHandler,
    Validator,
    ValidatorHandler,
    run_handlers,
)
from pyreconcile.webhook._request import answer

T = TypeVar("T", bound=KubeObject)

MAX_BODY = 7 * 1024 * 1024  # bytes; a body must be smaller (rule WH-3)
CERT_FOLDER = "k8s-webhook-server/serving-certs"  # below the temporary folder, as controller-runtime has it (rule WH-1)
# The API server's transport drops idle connections after 90 s; ours must live longer, or a request may meet a
# connection that is just being closed.
_KEEP_ALIVE = 120.0
_SHUTDOWN = 10.0  # seconds that running requests have at the end
_CUT_OFF = 0.01  # seconds at a hard stop; aiohttp takes 0 for no limit
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104
_PATH = re.compile(r"((/[A-Za-z0-9_-]+)+|/)\Z")

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReference:
    """The Service through which an API server reaches webhooks inside the cluster."""

    namespace: str
    name: str
    port: int = 443


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookOptions:
    """How the webhook server listens and what certificate it shows.

    Args:
        bind_address: ``host:port``; an empty host is every interface, port 0 lets the kernel choose. ``0``, ``-1`` or
            an empty text turns the server off (rule WH-1).
        cert_dir: folder with certificate and key (and ``ca.crt``, if it is to go into webhook configurations), taken
            up anew when they change. Without it ``k8s-webhook-server/serving-certs`` below the temporary folder is
            used if it has the files; else a CA and a certificate are made at start.
        cert_name: file of the certificate in that folder.
        key_name: file of the private key in that folder.
        hosts: names and addresses that the made certificate is good for; those of ``service`` are added.
        service: the Service in front of this server, when the manager runs inside the cluster.
        client_ca: file with the CA of client certificates; when given, clients must show one.

    Raises:
        ValueError: a value is not of that form; the message names the field.
    """

    bind_address: str = ":9443"
    cert_dir: Path | str | None = None
    cert_name: str = "tls.crt"
    key_name: str = "tls.key"
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    service: ServiceReference | None = None
    client_ca: Path | str | None = None

    def __post_init__(self) -> None:
        _split_address(self.bind_address)
        self.tls  # noqa: B018 - checks the names

    @property
    def tls(self) -> TLSOptions:
        """What of it is about the certificate."""
        return TLSOptions(
            cert_dir=self.cert_dir,
            cert_name=self.cert_name,
            key_name=self.key_name,
            hosts=self.hosts,
            client_ca=self.client_ca,
        )


@dataclass(frozen=True, slots=True)
class _Route:
    handlers: tuple[Handler, ...]
    metrics: WebhookMetrics


class WebhookServer:
    """Serves admission webhooks over HTTPS. Register handlers, then `run` it, usually as part of a manager."""

    name = "webhook server"
    needs_leader_election = False

    def __init__(self, options: WebhookOptions | None = None, *, metrics: Metrics | None = None) -> None:
        self.options = options or WebhookOptions()
        self._metrics = metrics or Metrics()
        self._routes: dict[str, _Route] = {}
        self._target = _split_address(self.options.bind_address)
        self._port = 0
        self._watcher: CertificateWatcher | None = None

    @property
    def enabled(self) -> bool:
        """Whether the address turns it on."""
        return self._target is not None

    @property
    def port(self) -> int:
        """The port that the server listens on.

        Raises:
            RuntimeError: it does not listen.
        """
        if not self._port:
            raise RuntimeError("the webhook server does not listen yet: read its port once it has started")
        return self._port

    @property
    def ca_bundle(self) -> bytes:
        """The CA (PEM) with which clients can trust this server; empty when ``cert_dir`` has no ``ca.crt``.

        Raises:
            OSError: the files in ``cert_dir`` cannot be read.
        """
        return self.certificates.ca_bundle

    @property
    def certificates(self) -> CertificateWatcher:
        """What keeps the certificate up to date; its ``on_change`` tells of a new certificate or CA.

        Raises:
            OSError: the files in ``cert_dir`` cannot be read.
        """
        if self._watcher is None:
            options = self.options
            source = choose_source(options.tls, default_folder=CERT_FOLDER, hosts=_service_hosts(options.service))
            client_ca = None if options.client_ca is None else Path(options.client_ca)
            self._watcher = CertificateWatcher(source, client_ca=client_ca, metrics=self._metrics)
        return self._watcher

    @property
    def paths(self) -> tuple[str, ...]:
        """The registered paths."""
        return tuple(self._routes)

    def add(self, path: str, *handlers: Handler) -> str:
        """Serve handlers at a path, one after the other; the first refusal ends a request (rule WH-8).

        Raises:
            ValueError: the path is taken or not of the form ``/word/word``, or there is no handler.
        """
        if not _PATH.match(path):
            raise ValueError(f"webhook path {path!r} must consist of segments of letters, digits, '-' and '_'")
        if path in self._routes:
            raise ValueError(f"webhook path {path!r} is registered already: give another path, or all handlers at once")
        if not handlers:
            raise ValueError(f"webhook path {path!r} needs at least one handler")
        self._routes[path] = _Route(handlers, self._metrics.webhook(path))
        return path

    def add_mutator(self, kind: type[KubeObject], *mutators: Mutator, path: str | None = None) -> str:
        """Serve functions that change the parsed object; return the path.

        The cheapest way, for kinds with much traffic such as pods. See `add` for what is raised.
        """
        return self.add(path or mutating_path(kind), *map(MutatorHandler, mutators))

    def add_defaulter(self, kind: type[T], *defaulters: Defaulter[T], path: str | None = None) -> str:
        """Serve functions that fill in defaults on the typed object; return the path.

        Only what a function changed is sent back; all else stays as the user wrote it. See `add` for what is raised.
        """
        return self.add(path or mutating_path(kind), *(DefaulterHandler(kind, one) for one in defaulters))

    def add_validator(self, kind: type[T], *validators: Validator[T], path: str | None = None) -> str:
        """Serve validators of the typed object; return the path. See `add` for what is raised."""
        return self.add(path or validating_path(kind), *(ValidatorHandler(kind, one) for one in validators))

    def add_raw_validator(self, kind: type[KubeObject], *validators: RawValidator, path: str | None = None) -> str:
        """Serve functions that check the parsed objects of a request; return the path. See `add` for what is raised."""
        return self.add(path or validating_path(kind), *map(RawValidatorHandler, validators))

    async def call(self, path: str, review: RawObject) -> RawObject:
        """Answer a review without HTTP, for tests.

        Raises:
            KeyError: nothing is registered at the path.
        """
        route = self._routes[path]
        return await run_handlers(route.handlers, review, on_panic=route.metrics.panic)

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop`` is set, then let running requests end (for 10 s at most). Cancelling ends them at once.

        A server whose address turns it off returns at once.

        Raises:
            OSError: the address cannot be bound, or the certificate not be read.
        """
        if self._target is None:
            return
        host, port = self._target
        certificates = self.certificates
        server = web.Server(
            self._serve, access_log=None, keepalive_timeout=_KEEP_ALIVE, handler_cancellation=True, tcp_keepalive=True
        )
        runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=_SHUTDOWN)
        graceful = False
        try:
            await runner.setup()
            site: web.BaseSite
            if host:
                site = web.TCPSite(runner, host, port, ssl_context=certificates.context)
            else:
                site = web.SockSite(runner, _listen_everywhere(port), ssl_context=certificates.context)
            await site.start()
            self._port = runner.addresses[0][1]
            _log.info("webhook server listening", host=host or "*", port=self._port, paths=sorted(self._routes))
            task_status.started()
            await certificates.run(stop)
            graceful = True
        finally:
            self._port = 0
            with anyio.CancelScope(shield=True):
                if not graceful:
                    await server.shutdown(_CUT_OFF)
                await runner.cleanup()

    async def check_ready(self) -> None:
        """Readiness check: make a TLS handshake with the own port, for 10 s at most (rule WH-1).

        Raises:
            RuntimeError: the server does not listen.
            OSError, TimeoutError: the handshake fails.
        """
        port = self.port
        host = self._target[0] if self._target else ""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        if host in _EVERYWHERE:
            host = "localhost"
        with anyio.fail_after(10):
            stream = await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
            await stream.aclose()

    async def _serve(self, http: web.BaseRequest) -> web.StreamResponse:
        route = self._routes.get(http.path)
        if route is None:
            return web.Response(status=404, text="no webhook at this path")
        start = time.perf_counter()
        route.metrics.in_flight(1)
        try:
            review = await _answer(route, http)
            return web.Response(body=orjson.dumps(review), content_type="application/json")
        finally:
            route.metrics.in_flight(-1)
            # The HTTP status is 200 whatever the verdict (rule WH-4).
            route.metrics.served(200, time.perf_counter() - start)


async def _answer(route: _Route, http: web.BaseRequest) -> RawObject:
    body = await _read_body(http)
    if body is None:
        return _error(413, "RequestEntityTooLarge", f"the body must be smaller than {MAX_BODY} bytes")
    if not body:
        return _error(400, "BadRequest", "the body is empty")
    content_type = http.headers.get("Content-Type", "")
    if content_type != "application/json":
        return _error(400, "BadRequest", f"the Content-Type must be application/json, not {content_type!r}")
    try:
        review = orjson.loads(body)
    except ValueError as error:
        return _error(400, "BadRequest", f"the body is no JSON: {error}")
    return await run_handlers(route.handlers, review, timeout=_timeout(http), on_panic=route.metrics.panic)


async def _read_body(http: web.BaseRequest) -> bytes | None:
    if (http.content_length or 0) >= MAX_BODY:
        return None
    body = bytearray()
    async for chunk in http.content.iter_any():
        body += chunk
        if len(body) >= MAX_BODY:
            return None
    return bytes(body)


def _timeout(http: web.BaseRequest) -> float:
    """Seconds that the API server waits: it says so in the query, as in ``?timeout=10s``."""
    match = re.fullmatch(r"(\d+)s", http.query.get("timeout", ""))
    return min(float(match[1]), MAX_TIMEOUT) if match and int(match[1]) else DEFAULT_TIMEOUT


def _error(code: int, reason: str, message: str) -> RawObject:
    return answer(None, None, code=code, reason=reason, message=message)


def mutating_path(kind: type[KubeObject]) -> str:
    """Return the path of a kind's mutating webhook, as in ``/mutate-apps-v1-deployment`` (rule WH-2)."""
    return f"/mutate-{_suffix(kind.resource)}"


def validating_path(kind: type[KubeObject]) -> str:
    """Return the path of a kind's validating webhook, as in ``/validate--v1-pod`` (rule WH-2)."""
    return f"/validate-{_suffix(kind.resource)}"


def _suffix(resource: Resource) -> str:
    return f"{resource.group.replace('.', '-')}-{resource.version}-{resource.kind.lower()}"


def _service_hosts(service: ServiceReference | None) -> list[str]:
    if service is None:
        return []
    short = f"{service.name}.{service.namespace}.svc"
    return [short, f"{short}.cluster.local", f"{service.name}.{service.namespace}", service.name]


def _listen_everywhere(port: int) -> socket.socket:
    """Open one socket for IPv6 and IPv4, so that port 0 gives the same port in both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


def _split_address(address: str) -> tuple[str, int] | None:
    if address in ("", "0", "-1"):
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > 65535:
        raise ValueError(f"bind_address {address!r} must be 'host:port' or ':port', as in ':9443', or '0' for none")
    return host.removeprefix("[").removesuffix("]"), int(port)
