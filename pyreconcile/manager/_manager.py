"""The manager: starts everything in order, and stops it in order (rules MG-1 to MG-9, LE-8)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import anyio
from aiohttp import web
from anyio.abc import TaskStatus

from pyreconcile.api import unstructured
from pyreconcile.cache import Cache
from pyreconcile.certs import CertificateWatcher, choose_source
from pyreconcile.client import Client, connect
from pyreconcile.controller import PROCESS_NAMES, ControllerNames
from pyreconcile.election import Elector
from pyreconcile.events import EventBroadcaster, EventRecorder, EventsApi
from pyreconcile.manager._access import AccessReview, guarded
from pyreconcile.manager._debug import DebugServer
from pyreconcile.manager._groups import Runnable
from pyreconcile.manager._health import HealthCheck, HealthEndpoints
from pyreconcile.manager._http import HttpServer, text
from pyreconcile.manager._lifecycle import Lifecycle
from pyreconcile.manager._logging import withhold_locals
from pyreconcile.manager._loop_monitor import LoopMonitor
from pyreconcile.manager._options import ManagerOptions
from pyreconcile.manager._signals import stop_on_signals
from pyreconcile.manager._state import describe_groups, describe_informers
from pyreconcile.metrics import CONTENT_TYPE, Metrics
from pyreconcile.webhook import WebhookServer

# Below the temporary folder, as controller-runtime has it (rule MG-9).
_METRICS_CERT_FOLDER = "k8s-metrics-server/serving-certs"

_LEASE = unstructured("coordination.k8s.io/v1", "Lease")


class Manager:
    """Runs controllers and all they share: client, cache, election, webhooks, probes and metrics.

    ::

        async with Manager(options) as manager:
            Builder(manager).for_(ModelCache).complete(ModelCacheReconciler())
            await manager.run()

    Entering opens the client, leaving closes it. If structlog is not configured, a manager has it show tracebacks
    without local variables, which may hold a Secret.

    Args:
        options: how it runs.
        metrics: counts into these; by default its own.
        elector: takes part in an election of another kind than ``options.leader_election`` describes.
        exit_process: ends the process at a second signal, and when a runnable does not end at all after leadership was
            lost (rule LE-8) or, with ``handle_signals``, after the graceful time.
        controller_names: keeps the names of its controllers unique; by default among all managers of the process.

    Raises:
        ConfigError: (on entering) no way to the API server was found.
    """

    def __init__(
        self,
        options: ManagerOptions | None = None,
        *,
        metrics: Metrics | None = None,
        elector: Elector | None = None,
        exit_process: Callable[[int], object] = os._exit,
        controller_names: ControllerNames = PROCESS_NAMES,
    ) -> None:
        withhold_locals()
        self.options = options = options or ManagerOptions()
        self.controller_names = controller_names
        """The names that controllers have taken, in the whole process by default (rule RC-7)."""
        self.metrics = metrics or Metrics()
        self.webhooks: WebhookServer | None = None
        """The webhook server, None without ``webhook`` options. It listens if handlers were registered before `run`."""
        connection = options.connect
        if connection.metrics is None:
            connection = replace(connection, metrics=self.metrics)
        self._connection = connection
        self.elector = elector
        """The elector; None without an election."""
        if elector is None and options.leader_election is not None:
            self.elector = Elector(connection, options.leader_election)
        if self.elector is not None:
            self.elector.observe(
                on_started_leading=lambda: self._note_leading("became leader"),
                on_stopped_leading=lambda: self._note_leading("stopped leading"),
                metrics=self.metrics,
            )
        self._exit_process = exit_process
        self._stack = AsyncExitStack()
        self._live: Client | None = None
        self._led = False
        self._lifecycle = Lifecycle(
            self.elector,
            grace=options.graceful_shutdown_timeout,
            exit_process=exit_process,
            owns_process=options.handle_signals,
        )

        self._health = HealthEndpoints(options.liveness_endpoint, options.readiness_endpoint)
        if self.elector is not None:
            self._health.healthz.add("leader-election", self.elector.check_health)
        self._health_server = HttpServer(
            "health probes",
            option="health_probe_bind_address",
            address=options.health_probe_bind_address,
            handler=self._health.serve,
        )
        review = AccessReview(lambda: self.unfenced_client.transport) if options.metrics_authorization else None
        self._metrics_server = HttpServer(
            "metrics",
            option="metrics_bind_address",
            address=options.metrics_bind_address,
            handler=self._serve_metrics if review is None else guarded(review, self._serve_metrics),
            certificates=None if options.metrics_tls is None else self._open_metrics_certificate,
        )
        self._debug_server = DebugServer(options.debug_bind_address, self._describe)
        for server in (self._health_server, self._metrics_server, self._debug_server):
            if server.enabled:
                self._lifecycle.http.add(server)
        if self._metrics_server.enabled:
            self._lifecycle.others.add(LoopMonitor(self.metrics.loop_lag))
        if options.webhook is not None:
            self.webhooks = WebhookServer(options.webhook, metrics=self.metrics)

    async def __aenter__(self) -> Self:
        """Open the client."""
        async with AsyncExitStack() as stack:
            live = await stack.enter_async_context(connect(self._connection))
            self._cache = Cache(live, self.options.cache, metrics=self.metrics)
            self._unfenced = live.with_options(
                reader=self._cache, write_observer=self._cache, uncached=self.options.uncached
            )
            guard = None if self.elector is None else self.elector.check
            self._client = self._unfenced.with_options(write_guard=guard)
            self._broadcaster = EventBroadcaster(live)
            self._lifecycle.caches.add(_CacheRunner(self._cache))
            self._live = live
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client, and free the names of the controllers."""
        self.controller_names.release(self)
        await self._stack.__aexit__(kind, error, traceback)

    @property
    def elected(self) -> anyio.Event:
        """Set once this process may act; without an election when all else is up."""
        return self._lifecycle.elected

    @property
    def client(self) -> Client:
        """Reads from the cache, writes to the server; under an election writes are refused while not leading.

        A refused write raises `NotLeaderError` (rule LE-11). `live_client` reads from the server.
        """
        self._check_open()
        return self._client

    @property
    def live_client(self) -> Client:
        """As `client`, but reads come from the server too."""
        return self.client.live

    @property
    def api_reader(self) -> Client:
        """Another name for `live_client`, as controller-runtime has it."""
        return self.live_client

    @property
    def unfenced_client(self) -> Client:
        """As `client`, for what acts on every replica: writes are not tied to an election."""
        self._check_open()
        return self._unfenced

    @property
    def cache(self) -> Cache:
        """The cache that `client` reads from."""
        self._check_open()
        return self._cache

    @property
    def metrics_port(self) -> int:
        """The port that ``/metrics`` is served on; 0 while it is not."""
        return self._metrics_server.port

    @property
    def health_probe_port(self) -> int:
        """The port that ``/healthz`` and ``/readyz`` are served on; 0 while they are not."""
        return self._health_server.port

    @property
    def debug_port(self) -> int:
        """The port of the debug pages; 0 while they are not served."""
        return self._debug_server.port

    def recorder(self, component: str, *, api: EventsApi | None = None) -> EventRecorder:
        """Return a recorder of events whose ``reportingController`` is ``component``.

        ``api`` is the form in which they are written; by default that of the options.
        """
        self._check_open()
        return self._broadcaster.recorder(component, api=api or self.options.events_api)

    def still_leader(self) -> bool:
        """Tell whether this process may act now: it leads, or there is no election."""
        return self.elector is None or self.elector.still_leader()

    def yield_leadership(self) -> bool:
        """Stop in order and then give the Lease back, so that another replica leads; `run` returns (rule LE-13).

        The Lease is given back also if ``release_on_cancel`` is off. Restarted, this process is a candidate again. It
        returns False, and does nothing, when this process does not lead, or has no election.
        """
        if self.elector is None or not self.elector.still_leader():
            return False
        self.elector.release_at_end()
        self._lifecycle.stop_wanted.set()
        return True

    def add(self, runnable: Runnable) -> None:
        """Run something as part of the manager; when the manager runs already, at once (rule MG-4).

        Raises:
            RuntimeError: the manager is stopping.
        """
        self._lifecycle.add(runnable)

    def before_leading(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function once this process may act, before any leader-only runnable starts.

        Webhooks and caches are up by then. Hooks run one after another; an error stops the manager, and a stop that
        comes first cancels them.

        Raises:
            RuntimeError: the manager has started.
        """
        self._check_not_started("before_leading")
        self._lifecycle.hooks.append(hook)

    def add_healthz_check(self, name: str, check: HealthCheck) -> None:
        """Register a check under ``/healthz/<name>``: a function or coroutine function that raises when unhealthy.

        Raises:
            RuntimeError: the manager has started (rule MG-8).
            ValueError: the name is taken.
        """
        self._check_not_started(f"health check {name!r}")
        self._health.healthz.add(name, check)

    def add_readyz_check(self, name: str, check: HealthCheck) -> None:
        """Register a check under ``/readyz/<name>``; see `add_healthz_check`."""
        self._check_not_started(f"readiness check {name!r}")
        self._health.readyz.add(name, check)

    async def run(
        self, stop: anyio.Event | None = None, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED
    ) -> None:
        """Run until ``stop`` is set, a signal comes (if so configured), or something fails; then stop in order.

        ``task_status.started()`` is called when caches have synced and everything has been started; under an election,
        everything but what waits for it. Cancelling stops at once, without the graceful time, but still gives the Lease
        back.

        Raises:
            RuntimeError: it was run before, or not entered.
            LeadershipLostError: leadership ended; the process should exit (rule LE-8).
            GracefulTimeoutError: something did not end in time.
            Exception: whatever a runnable failed with; the first one. Together with a `GracefulTimeoutError` both come
                in an `ExceptionGroup` (rule MG-5).
        """
        self._check_open()
        self._check_not_started("run")
        lifecycle = self._lifecycle
        if self.webhooks is not None and self.webhooks.paths and self.webhooks.enabled:
            lifecycle.webhooks.add(self.webhooks)
            if "webhook" not in self._health.readyz:  # the user may have one of that name
                self._health.readyz.add("webhook", self.webhooks.check_ready)
        with ExitStack() as signals:
            if self.options.handle_signals:
                signals.enter_context(stop_on_signals(lifecycle.stop_wanted.set, exit_process=self._exit_process))
            await lifecycle.run(self._broadcaster.run, stop, task_status)

    def _note_leading(self, what: str) -> None:
        """Record the events of rule LE-7."""
        elector = self.elector
        if elector is None or not (self._led or what == "became leader"):
            return
        self._led = True
        options = elector.options
        lease = _LEASE.from_dict({"metadata": {"name": options.name, "namespace": options.namespace}})
        note = f"{options.identity} {what}"
        self._broadcaster.recorder("leader-election").event(
            lease, "Normal", "LeaderElection", note, action=what.title()
        )

    async def _serve_metrics(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics":
            return text(404, "not found: the metrics are under /metrics\n")
        response = web.Response(body=self.metrics.render(), headers={"Content-Type": CONTENT_TYPE})
        response.enable_compression()
        return response

    def _open_metrics_certificate(self) -> CertificateWatcher:
        options = self.options.metrics_tls
        assert options is not None
        source = choose_source(options, default_folder=_METRICS_CERT_FOLDER)
        client_ca = None if options.client_ca is None else Path(options.client_ca)
        return CertificateWatcher(
            source,
            metrics=self.metrics,
            client_ca=client_ca,
            minimum_version=options.minimum_version,
            ciphers=options.ciphers,
        )

    def _describe(self) -> dict[str, object]:
        """Tell the state for the debug port; called on its thread."""
        lifecycle = self._lifecycle
        return {
            "leading": self.still_leader(),
            "elected": lifecycle.elected.is_set(),
            "stopping": lifecycle.stop_wanted.is_set(),
            "runnables": describe_groups(lifecycle.groups),
            "informers": describe_informers(self._cache),
        }

    def _check_open(self) -> None:
        if self._live is None:
            raise RuntimeError("the manager is not open: use it inside 'async with Manager(options) as manager:'")

    def _check_not_started(self, what: str) -> None:
        if self._lifecycle.started:
            raise RuntimeError(f"{what}: the manager has been started already")


class _CacheRunner:
    """Runs a cache; up once it has synced."""

    name = "cache"
    needs_leader_election = False

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None]) -> None:
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._serve, stop, tasks.cancel_scope)
            await self._cache.wait_for_sync()
            task_status.started()

    async def _serve(self, stop: anyio.Event, scope: anyio.CancelScope, *, task_status: TaskStatus[None]) -> None:
        await self._cache.run(stop, task_status=task_status)
        scope.cancel()  # stopped before it synced
