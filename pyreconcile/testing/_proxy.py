"""A proxy in front of an API server that makes faults and writes every request down."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

import anyio
import anyio.from_thread
import anyio.to_thread
import yaml

from pyreconcile.certs import CertificateAuthority
from pyreconcile.client import ConnectOptions

from ._components import HOST, kubeconfig_text, write_private
from ._eventually import eventually
from ._proxy_faults import Fault
from ._proxy_requests import Matcher, ProxiedRequest, matches
from ._proxy_server import ProxyServer
from ._proxy_upstream import Upstream

__all__ = ["FaultProxy"]

_USER = "fault-proxy"


class FaultProxy:
    """A reverse proxy on the loopback interface between clients and an API server. An async context manager.

    Whoever comes through it acts as the user of ``kubeconfig``. It ends TLS itself, with an authority and a client
    certificate of its own, so only who has its `kubeconfig` gets in. It runs on a thread of its own: what a test does
    to its event loop does not disturb it, and its methods may be called from any thread.

    Each fault is in force while its ``with`` block runs, and several may be at once. ``match`` picks the requests: a
    `Match`, the beginning of a path, or a function of the `ProxiedRequest`; without it all are meant. ``times`` is how
    many requests a fault meets at most; the `Fault` that ``with`` gives counts them in ``hits``.

    Upgraded connections (exec, attach, port-forward) are answered with 501.

    Args:
        kubeconfig: file that says where the API server is, and who we are there.
        connect: says it in more detail; in place of ``kubeconfig``.
        tls: whether it serves HTTPS. If not, every local process gets in.
        clock: monotonic seconds, for the log and for delays.

    Raises:
        ConfigError: the kubeconfig cannot be used (on entering).
    """

    def __init__(
        self,
        kubeconfig: str | Path | None = None,
        *,
        connect: ConnectOptions | None = None,
        tls: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if connect is not None and kubeconfig is not None:
            raise ValueError("connect, kubeconfig: give one of them")
        self._connect = connect or ConnectOptions(kubeconfig=kubeconfig)
        self._with_tls = tls
        self._clock = clock
        self._stack = ExitStack()
        self._portal: anyio.from_thread.BlockingPortal | None = None
        self._server: ProxyServer | None = None
        self._directory: Path | None = None

    async def __aenter__(self) -> FaultProxy:
        await anyio.to_thread.run_sync(self._start)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(self._stop)

    def _start(self) -> None:
        with ExitStack() as stack:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pyreconcile-proxy-")))
            portal = stack.enter_context(anyio.from_thread.start_blocking_portal())
            authority = CertificateAuthority("pyreconcile-fault-proxy")
            tls = _tls(authority, directory) if self._with_tls else None
            server = ProxyServer(Upstream(self._connect), tls, self._clock)
            stack.enter_context(portal.wrap_async_context_manager(server))
            self._portal, self._server, self._directory = portal, server, directory
            write_private(self.kubeconfig, self._kubeconfig_text(authority))
            self._stack = stack.pop_all()

    def _stop(self) -> None:
        self._portal = None
        self._stack.close()

    def _kubeconfig_text(self, authority: CertificateAuthority) -> str:
        text = kubeconfig_text(self.url, authority.certificate, _USER, authority.issue_client(_USER))
        if self._with_tls:
            return text
        config = yaml.safe_load(text)
        config["clusters"][0]["cluster"] = {"server": self.url}
        config["users"][0]["user"] = {}
        return yaml.safe_dump(config)

    def _running(self) -> ProxyServer:
        if self._server is None:
            raise RuntimeError("the proxy does not run: use `async with FaultProxy(…) as proxy`")
        return self._server

    def _call(self, function: Callable[..., Any], *args: Any) -> Any:
        if self._portal is None:
            return None  # it has ended, and all faults with it
        return self._portal.call(function, *args)

    @property
    def url(self) -> str:
        """The proxy's URL."""
        return f"{'https' if self._with_tls else 'http'}://{HOST}:{self._running().port}"

    @property
    def kubeconfig(self) -> Path:
        """A kubeconfig file that leads through the proxy; it is gone when the proxy has ended."""
        self._running()
        assert self._directory is not None
        return self._directory / "kubeconfig"

    def connect_options(self, **changes: Any) -> ConnectOptions:
        """Return options for a client that goes through the proxy.

        Args:
            changes: fields of `ConnectOptions`.
        """
        return replace(ConnectOptions(kubeconfig=self.kubeconfig), **changes)

    def requests(self, match: Matcher | None = None, *, since: float = 0.0) -> list[ProxiedRequest]:
        """Return the requests so far, in the order in which they came.

        Args:
            match: which.
            since: leave out those that came before this time (seconds of ``time.monotonic``).
        """
        return [request for request in list(self._running().log) if request.time >= since and matches(match, request)]

    async def wait_for(
        self, match: Matcher | None = None, *, count: int = 1, since: float = 0.0, timeout: float = 10.0
    ) -> list[ProxiedRequest]:
        """Wait until requests came, and return them. They may not be answered yet: then ``status`` is None.

        Args:
            match, since: as in `requests`.
            count: how many are waited for.
            timeout: seconds.

        Raises:
            AssertionError: they did not come in time.
        """

        async def come() -> list[ProxiedRequest] | None:
            found = self.requests(match, since=since)
            return found if len(found) >= count else None

        found = await eventually(come, timeout=timeout, interval=0.01, what=f"{count} requests that match {match}")
        assert found is not None
        return found

    def drop_connections(self, match: Matcher | None = None) -> int:
        """Reset connections once; new ones are taken.

        Args:
            match: only those with a request in progress that it picks.

        Returns:
            How many connections that were.
        """
        return int(self._call(self._running().drop_connections, match))

    def retarget(self, url: str) -> None:
        """Send later requests to another API server, with the same credentials and authority.

        What is in progress stays where it is; `drop_connections` ends it.
        """
        self._call(self._running().retarget, url)

    @contextmanager
    def cut(self) -> Iterator[None]:
        """Reset all connections and refuse new ones."""
        server = self._running()
        self._call(server.begin_cut)
        try:
            yield
        finally:
            self._call(server.end_cut)

    @contextmanager
    def blackhole(self, *, new: bool = True) -> Iterator[None]:
        """Keep connections open and pass nothing on them, in neither direction; nothing tells the client.

        Connections that were there stay dead after the block, as if something on the way had forgotten them.

        Args:
            new: whether connections made meanwhile get no answer either; if not, they work.
        """
        server = self._running()
        self._call(lambda: server.begin_blackhole(new=new))
        try:
            yield
        finally:
            self._call(lambda: server.end_blackhole(new=new))

    @contextmanager
    def _fault(self, fault: Fault) -> Iterator[Fault]:
        if fault.times is not None and fault.times < 1:
            raise ValueError(f"times={fault.times}: must be at least 1")
        server = self._running()
        self._call(server.begin, fault)
        try:
            yield fault
        finally:
            self._call(server.end, fault)

    def refuse(self, match: Matcher, *, times: int | None = None) -> AbstractContextManager[Fault]:
        """Reset the connections of these requests, those in progress too; none reaches the API server."""
        return self._fault(Fault(kind="refuse", match=match, times=times))

    def answer(
        self, code: int, match: Matcher | None = None, *, times: int | None = None, retry_after: int | None = None
    ) -> AbstractContextManager[Fault]:
        """Answer with a status code in the API server's place, such as 410, 429 or 500.

        Args:
            code: 400 to 599.
            match, times: which, and how many.
            retry_after: seconds to name in ``Retry-After``.
        """
        if not 400 <= code < 600:
            raise ValueError(f"code={code}: must be from 400 to 599")
        return self._fault(Fault(kind="answer", match=match, times=times, code=code, retry_after=retry_after))

    def drop_response(self, match: Matcher | None = None, *, times: int | None = None) -> AbstractContextManager[Fault]:
        """Let the API server do it, and reset the connection in place of passing its answer on.

        Meets only what the API server answered with success; streams are left alone.
        """
        return self._fault(Fault(kind="drop_response", match=match, times=times))

    def delay_response(
        self, match: Matcher | None = None, *, seconds: float, times: int | None = None
    ) -> AbstractContextManager[Fault]:
        """Hold the API server's answers back for so many seconds, at most until the block ends. Not streams."""
        return self._fault(Fault(kind="delay_response", match=match, times=times, seconds=seconds))

    def delay_stream(self, match: Matcher | None = None, *, seconds: float) -> AbstractContextManager[Fault]:
        """Deliver each event of these watches, open ones too, so many seconds late.

        What is held back when the block ends is delivered then. With ``math.inf`` everything waits for that.
        """
        return self._fault(Fault(kind="delay_stream", match=match, seconds=seconds))

    def drop_bookmarks(self, match: Matcher | None = None) -> AbstractContextManager[Fault]:
        """Leave the bookmarks out of these watches, open ones too, but for the one that ends a streaming list."""
        return self._fault(Fault(kind="drop_bookmarks", match=match))


def _tls(authority: CertificateAuthority, directory: Path) -> ssl.SSLContext:
    pair = authority.issue([HOST, "localhost"])
    files = directory / "ca.crt", directory / "server.pem"
    write_private(files[0], authority.certificate)
    write_private(files[1], pair.certificate + pair.key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files[0])
    context.load_cert_chain(files[1])
    context.verify_mode = ssl.CERT_REQUIRED
    return context
