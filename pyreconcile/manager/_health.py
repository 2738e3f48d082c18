"""Health and readiness checks (rule MG-8)."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection
from typing import Final, TypeAlias

import anyio
import structlog
from aiohttp import web

from pyreconcile.manager._http import text

log = structlog.get_logger()

HealthCheck: TypeAlias = Callable[[], Awaitable[None] | None]
"""A check: raises to say that something is wrong. Its reason goes to the log, not to the caller."""

# Seconds one check may take; a kubelet waits 1 s by default and gives up by itself.
_LIMIT: Final = 10.0


def ping() -> None:
    """Hold as long as the process answers; the check when no other is registered."""


class Checks:
    """The checks behind one endpoint."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._checks: dict[str, HealthCheck] = {}

    def serves(self, path: str) -> bool:
        """Tell whether a path is that of all the checks or of one of them."""
        return path == self.path or path.startswith(f"{self.path}/")

    def __contains__(self, name: str) -> bool:
        return name in self._checks

    def add(self, name: str, check: HealthCheck) -> None:
        """Register a check under ``<path>/<name>``.

        Raises:
            ValueError: the name is taken, or not fit for a path.
        """
        if not name or "/" in name or name in self._checks:
            raise ValueError(f"check {name!r}: give it a name without slashes that no other check of {self.path} has")
        self._checks[name] = check

    async def answer(self, name: str = "", *, verbose: bool = False, exclude: Collection[str] = ()) -> tuple[int, str]:
        """Run one check, or all but the excluded ones; return HTTP status and body."""
        checks = self._checks or {"ping": ping}
        if name:
            if name not in checks:
                return 404, f"no check {name}\n"
            checks = {name: checks[name]}
        lines = []
        if unknown := sorted(set(exclude) - set(checks)):
            lines.append(f"warn: some checks cannot be excluded: no match for {', '.join(map(repr, unknown))}\n")
        failed = False
        results = []
        for check_name, check in sorted(checks.items()):
            if check_name in exclude:
                results.append(f"[+]{check_name} excluded: ok\n")
            elif await self._holds(check_name, check):
                results.append(f"[+]{check_name} ok\n")
            else:
                failed = True
                results.append(f"[-]{check_name} failed: reason withheld\n")
        if failed or verbose:
            lines += [*results, f"{self.path.strip('/')} check {'failed' if failed else 'passed'}\n"]
        else:
            lines.append("ok")
        return (500 if failed else 200), "".join(lines)

    async def _holds(self, name: str, check: HealthCheck) -> bool:
        try:
            with anyio.fail_after(_LIMIT):
                result = check()
                if inspect.isawaitable(result):
                    await result
        except Exception as error:
            log.warning("health_check_failed", path=self.path, check=name, error=repr(error))
            return False
        return True


class HealthEndpoints:
    """Serves the two probes, by default at ``/healthz`` and ``/readyz``."""

    def __init__(self, liveness: str = "/healthz", readiness: str = "/readyz") -> None:
        self.healthz = Checks(liveness)
        self.readyz = Checks(readiness)

    async def serve(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a probe."""
        found = [checks for checks in (self.healthz, self.readyz) if checks.serves(request.path)]
        if not found:
            return text(404, "not found\n")
        checks = max(found, key=lambda one: len(one.path))
        name = request.path[len(checks.path) + 1 :]
        if request.method not in ("GET", "HEAD"):
            return text(405, "use GET\n")
        query = request.query
        return text(*await checks.answer(name, verbose="verbose" in query, exclude=query.getall("exclude", [])))
