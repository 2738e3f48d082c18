"""The HTTPS server that the API server asks."""

from __future__ import annotations

import re
import socket
import ssl
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.api import KubeObject, RawObject, copy_json
from pyreconcile.certs import CertificateWatcher, GeneratedCertificates, choose_source
from pyreconcile.metrics import Metrics
from pyreconcile.webhook._conversion import Conversions
from pyreconcile.webhook._handlers import (
    Defaulter,
    DefaulterHandler,
    Handler,
    Mutator,
    MutatorHandler,
    RawValidator,
    RawValidatorHandler,
    Validator,
    ValidatorHandler,
)
from pyreconcile.webhook._http import HTTPServer, Request, Response, text
from pyreconcile.webhook._options import (
    CONVERSION_PATH,
    WebhookOptions,
    mutating_path,
    service_hosts,
    split_address,
    validating_path,
)
from pyreconcile.webhook._routes import AdmissionRoute, AdmitAllRoute, ConversionRoute, Route

T = TypeVar("T", bound=KubeObject)

CERT_FOLDER = "k8s-webhook-server/serving-certs"  # below the temporary folder, as controller-runtime has it (rule WH-1)
_SHUTDOWN = 10.0  # seconds that running requests have at the end
_READY_LIMIT = 10.0  # seconds of the handshake that tells whether it serves (rule WH-1)
_EVERYWHERE = ("", "0.0.0.0", "::")  # noqa: S104
_PATH = re.compile(r"((/[A-Za-z0-9_-]+)+|/)\Z")

_log = structlog.get_logger()


class WebhookServer:
    """Serves admission and conversion webhooks over HTTPS.

    Register handlers, then `run` it, usually as part of a manager.
    """

    name = "webhook server"
    needs_leader_election = False

    def __init__(self, options: WebhookOptions | None = None, *, metrics: Metrics | None = None) -> None:
        self.options = options or WebhookOptions()
        self._metrics = metrics or Metrics()
        self._routes: dict[str, Route] = {}
        self._conversions: ConversionRoute | None = None
        self._target = split_address(self.options.bind_address)
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
            source = options.certificates
            if source is None:
                source = choose_source(options.tls, default_folder=CERT_FOLDER, hosts=service_hosts(options.service))
            if options.service is not None and isinstance(source, GeneratedCertificates):
                _log.warning(
                    "certificate_of_this_process_behind_a_service",
                    service=f"{options.service.namespace}/{options.service.name}",
                    advice="of several processes, also during a rolling update, the API server trusts only the one "
                    "that installed last: set cert_dir, or have one replica with strategy Recreate",
                )
            client_ca = None if options.client_ca is None else Path(options.client_ca)
            self._watcher = CertificateWatcher(
                source,
                client_ca=client_ca,
                minimum_version=options.minimum_version,
                ciphers=options.ciphers,
                metrics=self._metrics,
            )
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
        self._routes[path] = AdmissionRoute(handlers, self._metrics.webhook(path))
        return path

    def add_mutator(
        self,
        kind: type[KubeObject],
        *mutators: Mutator,
        path: str | None = None,
        copy: Callable[[RawObject], RawObject] = copy_json,
    ) -> str:
        """Serve functions that change the parsed object; return the path.

        The cheapest way, for kinds with much traffic such as pods. ``copy`` makes what a function may change, of which
        the difference to the object is then sent. One that copies only what the functions change, and shares the rest
        with the object, saves most of the work. See `add` for what is raised.
        """
        return self.add(path or mutating_path(kind), *(MutatorHandler(one, copy) for one in mutators))

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

    def admit_all(self, kind: type[KubeObject], *, path: str | None = None) -> str:
        """Serve a validating webhook that admits everything, at the least cost; return the path.

        For configurations that come from elsewhere and name a webhook that has nothing to check here. See `add` for
        what is raised.
        """
        path = self.add(path or validating_path(kind), RawValidatorHandler(lambda request: None))
        self._routes[path] = AdmitAllRoute(self._routes[path])
        return path

    def add_conversion(self, conversions: Conversions) -> str:
        """Serve the conversions of a kind at ``/convert``, where those of other kinds may be too; return the path.

        Tell the API server by `conversion_config` in the CRD, or by `install_conversion` (rule WH-9).

        Raises:
            ValueError: the kind's conversions are registered already, or the path is taken by something else.
            PartialConversionError: two of its versions cannot be turned into one another.
        """
        if self._conversions is None:
            if CONVERSION_PATH in self._routes:
                raise ValueError(f"webhook path {CONVERSION_PATH!r} is registered already: conversions need it")
            route = ConversionRoute(self._metrics.webhook(CONVERSION_PATH), self._metrics.conversion_panic)
            route.add(conversions)
            self._routes[CONVERSION_PATH] = self._conversions = route
        else:
            self._conversions.add(conversions)
        return CONVERSION_PATH

    def converts(self, group: str, kind: str) -> bool:
        """Whether the conversions of a kind are registered."""
        return self._conversions is not None and (group, kind) in self._conversions.kinds

    async def call(self, path: str, review: RawObject) -> RawObject:
        """Answer a review without HTTP, for tests.

        Raises:
            KeyError: nothing is registered at the path.
            ValueError: at the path of conversions: this is no ConversionReview.
        """
        return await self._routes[path].call(review)

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
        sock = None if host else _listen_everywhere(port)
        server = HTTPServer(self._serve, limit=self._limit)
        try:
            async with server.listening(host, port, context=certificates.context, grace=_SHUTDOWN, sock=sock) as bound:
                self._port = bound
                _log.info("webhook server listening", host=host or "*", port=bound, paths=sorted(self._routes))
                task_status.started()
                await certificates.run(stop)
                self._port = 0
        finally:
            self._port = 0

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
        with anyio.fail_after(_READY_LIMIT):
            stream = await anyio.connect_tcp(host, port, ssl_context=context, tls_standard_compatible=False)
            await stream.aclose()

    async def _serve(self, request: Request) -> Response:
        route = self._routes.get(request.path)
        if route is None:
            return text(404, "no webhook at this path")
        start = time.perf_counter()
        status = 500
        route.metrics.in_flight(1)
        try:
            response = await route.serve(request)
            status = response.status
            return response
        finally:
            route.metrics.in_flight(-1)
            route.metrics.served(status, time.perf_counter() - start)

    def _limit(self, path: str) -> int:
        route = self._routes.get(path)
        return 0 if route is None else route.max_body


def _listen_everywhere(port: int) -> socket.socket:
    """Open one socket for IPv6 and IPv4, so that port 0 gives the same port in both."""
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))
