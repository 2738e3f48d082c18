"""The debug port: what this process is doing, also while its event loop is blocked (rule MG-11)."""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import anyio.to_thread
import orjson
import structlog
from aiohttp import web
from anyio.abc import TaskStatus

from pyreconcile.manager import _inspect
from pyreconcile.manager._http import HttpServer, text

log = structlog.get_logger()

_PROFILE_SECONDS: Final = 10.0
_PROFILE_MAX: Final = 300.0
_PING_SECONDS: Final = 10.0
_TRACE_FRAMES: Final = 10

_INDEX: Final = """\
/debug/tasks               what every task waits for, and what every thread runs
/debug/loop                how late the event loop is; if it is blocked, where
/debug/memory              memory, the most frequent types, and allocations while these are traced
/debug/memory/trace        POST begins to trace allocations, which costs speed; DELETE ends it
/debug/state               leadership, runnables, queues and informers
/debug/profile?seconds=10  samples of the main thread, as folded stacks (for flame graphs)
"""


class DebugServer:
    """Serves the debug pages on a thread and an event loop of its own, to programs and people but not to web pages.

    Args:
        address: where to listen; ``0`` is off.
        state: what ``/debug/state`` shows; called on the debug thread, so it must only read.
    """

    name = "debug"
    needs_leader_election = False

    def __init__(self, address: str, state: Callable[[], Mapping[str, Any]]) -> None:
        self._state = state
        self._server = HttpServer("debug", option="debug_bind_address", address=address, handler=self._serve)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._stop_asked = threading.Event()
        self._end: Callable[[], object] | None = None

    @property
    def enabled(self) -> bool:
        """Whether the address turns it on."""
        return self._server.enabled

    @property
    def port(self) -> int:
        """The port it listens on; 0 while it does not."""
        return self._server.port

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Serve until ``stop`` is set.

        Raises:
            OSError: the address cannot be bound; the message names the option.
        """
        host = self._server.host
        if host == "" or (_is_address(host) and ip_address(host).is_unspecified):
            log.warning("debug_port_open_to_all", advice="bind it to 127.0.0.1: it shows what the process holds")
        self._loop = loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        up = anyio.Event()

        async def follow() -> None:
            try:
                await up.wait()
                task_status.started()
                await stop.wait()
            finally:
                self._ask_to_stop()

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(follow)
            serve = functools.partial(anyio.run, self._serve_here, lambda: loop.call_soon_threadsafe(up.set))
            # A thread of its own, beside those that user code may use up; it ends as soon as it is asked to.
            await anyio.to_thread.run_sync(serve, limiter=anyio.CapacityLimiter(1))
            tasks.cancel_scope.cancel()

    def _ask_to_stop(self) -> None:
        self._stop_asked.set()
        if (end := self._end) is not None:
            with suppress(RuntimeError):  # its loop has just been closed
                end()

    async def _serve_here(self, up: Callable[[], object]) -> None:
        loop, over = asyncio.get_running_loop(), anyio.Event()
        self._end = lambda: loop.call_soon_threadsafe(over.set)
        if self._stop_asked.is_set():
            return
        async with anyio.create_task_group() as tasks:
            await tasks.start(self._server.run, anyio.Event())
            up()
            await over.wait()
            tasks.cancel_scope.cancel()  # nobody is to wait for a profile that still runs

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        pages: dict[tuple[str, str], Callable[[web.BaseRequest], Awaitable[web.Response]]] = {
            ("GET", "tasks"): self._tasks,
            ("GET", "loop"): self._loop_lag,
            ("GET", "memory"): self._memory,
            ("POST", "memory/trace"): self._trace,
            ("DELETE", "memory/trace"): self._trace,
            ("GET", "state"): self._show_state,
            ("GET", "profile"): self._profile,
        }
        if (foreign := _foreign(request)) is not None:
            return text(403, f"{foreign}: the debug pages are not for web pages; use an address or localhost\n")
        path = request.path.strip("/")
        if path in ("", "debug"):
            return text(200, _INDEX)
        page = pages.get((request.method, path.removeprefix("debug/")))
        return text(404, _INDEX) if page is None else await page(request)

    async def _tasks(self, request: web.BaseRequest) -> web.Response:
        assert self._loop is not None
        return text(200, _inspect.threads() + _inspect.tasks(self._loop))

    async def _loop_lag(self, request: web.BaseRequest) -> web.Response:
        """Have the main loop answer a call, and tell how long that took."""
        assert self._loop is not None
        here, answered = asyncio.get_running_loop(), anyio.Event()
        began = here.time()
        self._loop.call_soon_threadsafe(lambda: here.call_soon_threadsafe(answered.set))
        with anyio.move_on_after(0.2):
            await answered.wait()
        blocked = None if answered.is_set() else _inspect.stack_of_thread(self._thread)
        with anyio.move_on_after(_PING_SECONDS):
            await answered.wait()
        return _json(
            {
                "answered": answered.is_set(),
                "lag_seconds": round(here.time() - began, 6),
                "tasks": len(asyncio.all_tasks(self._loop)),
                "blocked_at": blocked,
            }
        )

    async def _memory(self, request: web.BaseRequest) -> web.Response:
        return _json(_inspect.memory())

    async def _trace(self, request: web.BaseRequest) -> web.Response:
        if request.method == "POST":
            tracemalloc.start(_TRACE_FRAMES)
        else:
            tracemalloc.stop()
            gc.collect()
        return _json({"tracing": tracemalloc.is_tracing()})

    async def _show_state(self, request: web.BaseRequest) -> web.Response:
        return _json(self._state())

    async def _profile(self, request: web.BaseRequest) -> web.Response:
        try:
            seconds = float(request.query.get("seconds", _PROFILE_SECONDS))
        except ValueError:
            seconds = 0.0
        if not 0 < seconds <= _PROFILE_MAX:
            return text(400, f"seconds: must be above 0 and at most {_PROFILE_MAX:g}\n")
        return text(200, await _inspect.profile(self._thread, seconds))


def _foreign(request: web.BaseRequest) -> str | None:
    """Return what tells that a web page sent a request: its origin, or a name that it had resolve to our address."""
    if origin := request.headers.get("Origin"):
        return f"Origin {origin}"
    if request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin"):
        return "a request from another site"
    host = request.headers.get("Host", "")
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        name = ""
    return None if name == "localhost" or _is_address(name) else f"Host {host}"


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _json(value: Any) -> web.Response:
    body = orjson.dumps(value, default=str, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
    return web.Response(body=body, content_type="application/json", headers={"Cache-Control": "no-store"})
