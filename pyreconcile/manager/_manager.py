"""The manager: starts everything in order, and stops it in order (rules MG-1 to MG-9, LE-8)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from types import TracebackType
from typing import Self

import anyio
import structlog
from aiohttp import web
from anyio.abc import TaskGroup, TaskStatus

from pyreconcile.api import unstructured
from pyreconcile.cache import Cache
from pyreconcile.client import Client, connect
from pyreconcile.election import Elector, LeadershipLostError
from pyreconcile.events import EventBroadcaster, EventRecorder
from pyreconcile.manager._groups import Runnable, RunnableGroup, runnable_name
from pyreconcile.manager._health import HealthCheck, HealthEndpoints
from pyreconcile.manager._http import HttpServer, text
from pyreconcile.manager._options import ManagerOptions
from pyreconcile.manager._signals import stop_on_signals
from pyreconcile.metrics import CONTENT_TYPE, Metrics
from pyreconcile.webhook import WebhookServer

log = structlog.get_logger()

_LEASE = unstructured("coordination.k8s.io/v1", "Lease")


class GracefulTimeoutError(Exception):
    """Something did not end within the graceful shutdown timeout and was cancelled."""


class Manager:
    """Runs controllers and all they share: client, cache, election, webhooks, probes and metrics.

    ::

        async with Manager(options) as manager:
            Builder(manager).for_(ModelCache).complete(ModelCacheReconciler())
            await manager.run()

    Entering opens the client, leaving closes it.

    Args:
        options: how it runs.
        metrics: counts into these; by default its own.
        elector: takes part in an election of another kind than ``options.leader_election`` describes.
        exit_process: ends the process at a second signal.

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
    ) -> None:
        self.options = options = options or ManagerOptions()
        self.metrics = metrics or Metrics()
        self.elected = anyio.Event()
        """Set once this process may act; at once when there is no election."""
        self.webhooks: WebhookServer | None = None
        """The webhook server; None when the options have no ``webhook``."""
        connection = options.connect
        if connection.metrics is None:
            connection = replace(connection, metrics=self.metrics)
        self._connection = connection
        self.elector = elector
        """The elector; None without an election."""
        if elector is None and options.leader_election is not None:
            self.elector = Elector(
                connection,
                options.leader_election,
                metrics=self.metrics,
                on_started_leading=lambda: self._note_leading("became leader"),
                on_stopped_leading=lambda: self._note_leading("stopped leading"),
            )
        self._exit_process = exit_process
        self._stack = AsyncExitStack()
        self._live: Client | None = None

        # In the order of starting (rule MG-1).
        self._http = RunnableGroup("http", self._fail)
        self._webhooks = RunnableGroup("webhooks", self._fail)
        self._caches = RunnableGroup("caches", self._fail)
        self._others = RunnableGroup("others", self._fail)
        self._leader_only = RunnableGroup("leader-only", self._fail)

        self._health = HealthEndpoints()
        if self.elector is not None:
            self._health.healthz.add("leader-election", self.elector.check_health)
        self._health_server = HttpServer(
            "health probes",
            option="health_probe_bind_address",
            address=options.health_probe_bind_address,
            handler=self._health.serve,
        )
        self._metrics_server = HttpServer(
            "metrics",
            option="metrics_bind_address",
            address=options.metrics_bind_address,
            handler=self._serve_metrics,
        )
        for server in (self._health_server, self._metrics_server):
            if server.enabled:
                self._http.add(server)
        if options.webhook is not None:
            self.webhooks = WebhookServer(options.webhook, metrics=self.metrics)
            self._webhooks.add(self.webhooks)

        self._before_leading: list[Callable[[], Awaitable[None]]] = []
        self._started = False
        self._tasks: TaskGroup | None = None
        self._stop_wanted = anyio.Event()
        self._workers_ended = anyio.Event()
        self._election_begins = anyio.Event()
        self._election_over = anyio.Event()
        self._starting = anyio.CancelScope()
        self._stopping = anyio.CancelScope()
        self._led = False
        self._error: Exception | None = None
        self._stop_error: Exception | None = None

    async def __aenter__(self) -> Self:
        """Open the client."""
        self._live = live = await self._stack.enter_async_context(connect(self._connection))
        self._cache = Cache(live, self.options.cache, metrics=self.metrics)
        self._caches.add(_CacheRunner(self._cache))
        self._unfenced = live.with_options(reader=self._cache, write_observer=self._cache)
        guard = None if self.elector is None else self.elector.check
        self._client = live.with_options(reader=self._cache, write_observer=self._cache, write_guard=guard)
        self._broadcaster = EventBroadcaster(live)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close the client."""
        await self._stack.__aexit__(kind, error, traceback)

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

    def recorder(self, component: str) -> EventRecorder:
        """Return a recorder of events whose ``reportingController`` is ``component``."""
        self._check_open()
        return self._broadcaster.recorder(component)

    def still_leader(self) -> bool:
        """Tell whether this process may act now: it leads, or there is no election."""
        return self.elector is None or self.elector.still_leader()

    def add(self, runnable: Runnable) -> None:
        """Run something as part of the manager; when the manager runs already, at once (rule MG-4).

        Raises:
            RuntimeError: the manager is stopping.
        """
        if self._stop_wanted.is_set():
            raise RuntimeError(f"cannot add {runnable_name(runnable)!r}: the manager is stopping")
        if isinstance(runnable, WebhookServer):
            self._webhooks.add(runnable)
        elif getattr(runnable, "needs_leader_election", True):
            self._leader_only.add(runnable)
        else:
            self._others.add(runnable)

    def before_leading(self, hook: Callable[[], Awaitable[None]]) -> None:
        """Run a coroutine function once this process may act, before any leader-only runnable starts.

        Webhooks and caches are up by then. Hooks run one after another; an error stops the manager, and a stop that
        comes first cancels them.

        Raises:
            RuntimeError: the manager has started.
        """
        self._check_not_started("before_leading")
        self._before_leading.append(hook)

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

        ``task_status.started()`` is called when all but leader-only runnables have been started and caches have
        synced. Cancelling stops at once, without the graceful time, but still gives the Lease back.

        Raises:
            RuntimeError: it was run before, or not entered.
            LeadershipLostError: leadership ended; the process should exit (rule LE-8).
            GracefulTimeoutError: something did not end in time.
            Exception: whatever a runnable failed with; the first one. Together with a `GracefulTimeoutError` both come
                in an `ExceptionGroup` (rule MG-5).
        """
        self._check_open()
        self._check_not_started("run")
        self._started = True
        with ExitStack() as signals:
            if self.options.handle_signals:
                signals.enter_context(stop_on_signals(self._stop_wanted.set, exit_process=self._exit_process))
            async with anyio.create_task_group() as services:
                services.start_soon(self._run_services)
                try:
                    async with anyio.create_task_group() as tasks:
                        await self._run_tasks(tasks, stop, task_status)
                        tasks.cancel_scope.cancel()
                finally:
                    self._stop_wanted.set()
                    self._workers_ended.set()
                    self._election_begins.set()
        self._raise_errors()

    async def _run_tasks(self, tasks: TaskGroup, stop: anyio.Event | None, task_status: TaskStatus[None]) -> None:
        self._tasks = tasks
        if stop is not None:
            tasks.start_soon(self._await_stop, stop)
        tasks.start_soon(self._start_in_order, tasks, task_status)
        await self._stop_wanted.wait()
        if not self.elected.is_set():
            self._election_over.set()  # rule LE-10
        await self._stop_in_order()

    async def _await_stop(self, stop: anyio.Event) -> None:
        await stop.wait()
        self._stop_wanted.set()

    async def _start_in_order(self, tasks: TaskGroup, task_status: TaskStatus[None]) -> None:
        with self._starting:
            for group in (self._http, self._webhooks, self._caches):
                group.start(tasks)
                await group.wait_ready()
                if self._stop_wanted.is_set():
                    return
            self._others.start(tasks)
            task_status.started()
            if self.elector is not None:
                self._election_begins.set()
                await self.elector.elected.wait()
            if not self._stop_wanted.is_set():
                self.elected.set()
                await self._run_hooks()
            if not self._stop_wanted.is_set():
                self._leader_only.start(tasks)

    async def _run_hooks(self) -> None:
        try:
            for hook in self._before_leading:
                await hook()
        except Exception as error:
            self._fail("before_leading", error)

    async def _stop_in_order(self) -> None:
        self._starting.cancel()
        workers = (self._others, self._leader_only)
        groups = (*workers, self._caches, self._webhooks, self._http)
        grace = self.options.graceful_shutdown_timeout
        late: list[str] = []
        with self._stopping:
            if grace >= 0:
                self._stopping.deadline = anyio.current_time() + grace
            for group in groups:
                await group.stop()
        if self._stopping.cancel_called:
            late = [name for group in groups for name in group.running]
            await self._others.cancel(self._leader_only)
            for group in (self._caches, self._webhooks, self._http):
                await group.cancel()
        if late and grace > 0 and not isinstance(self._error, LeadershipLostError):
            self._stop_error = GracefulTimeoutError(
                f"graceful_shutdown_timeout: {grace:g} s were not enough to stop {', '.join(map(repr, late))}"
            )

    async def _run_services(self) -> None:
        """Run what must outlive the workers, also when the manager is cancelled: first the election, then events."""
        events_stop = anyio.Event()
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._broadcaster.run, events_stop)
                try:
                    await self._run_election()
                    await self._workers_ended.wait()
                finally:
                    events_stop.set()

    async def _run_election(self) -> None:
        await self._election_begins.wait()
        if self.elector is None or self._stop_wanted.is_set():
            return
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._end_election)
            try:
                await self.elector.run(self._election_over)
            except Exception as error:
                self._fail("election", error)
                self._stopping.cancel()  # no graceful time: others may lead by now (rule LE-8)
            tasks.cancel_scope.cancel()

    async def _end_election(self) -> None:
        await self._workers_ended.wait()
        self._election_over.set()

    def _fail(self, name: str, error: Exception) -> None:
        if self._stop_wanted.is_set():
            log.error("runnable_failed_while_stopping", runnable=name, error=repr(error))
            return
        log.error("runnable_failed", runnable=name, error=repr(error))
        self._error = error
        self._stop_wanted.set()

    def _raise_errors(self) -> None:
        errors = [error for error in (self._error, self._stop_error) if error is not None]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise ExceptionGroup("the manager failed, and did not stop in time", errors)

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

    def _check_open(self) -> None:
        if self._live is None:
            raise RuntimeError("the manager is not open: use it inside 'async with Manager(options) as manager:'")

    def _check_not_started(self, what: str) -> None:
        if self._started:
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
