"""Keeping a kubeconfig's token fresh: exec plugins, auth providers and token files."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import structlog

from pyreconcile.client._errors import UnauthorizedError

_CHECK_PERIOD = 60.0
"""Seconds between two looks at a token file or an auth provider (client-go reads a token file once a minute)."""
_EARLY = 300.0
"""Seconds before its end at which kubernetes_asyncio takes an exec plugin's token for expired."""
_MIN_PERIOD = 10.0
"""Seconds between two runs of an exec plugin whose tokens are short-lived."""
_LOAD_LIMIT = 60.0
"""Seconds that a plugin or a provider may take."""
_AGAIN = 5.0
"""Seconds after which a renewal that failed is tried again while the old token still holds."""

log = structlog.get_logger()


class Credentials:
    """Renews the token in a configuration through the loader that put it there.

    It is the Configuration's ``refresh_api_key_hook``: called before each request, it does nothing until the token
    is due. A token that the server refuses before that is renewed once more by `renew_refused`. When the renewal
    fails before the token's end, the old one is used on, as client-go does with token files; one without a stated end
    is used until the server refuses it.
    """

    def __init__(
        self,
        loader: Any,
        configuration: Any,
        *,
        by_expiry: bool,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._loader = loader
        self._configuration = configuration
        self._by_expiry = by_expiry
        self._clock = clock
        self._lock = anyio.Lock()
        self._loads = 0
        self._end = float("inf")
        self._due = self._next_due()

    @classmethod
    def hooked(cls, loader: Any, configuration: Any, *, by_expiry: bool) -> Credentials:
        """Return what keeps the token in a configuration fresh, hooked in there.

        Args:
            loader: puts a new token into it with ``load_and_set``.
            configuration: kubernetes_asyncio's or `PlainSettings`.
            by_expiry: whether the loader knows when its token ends (``exec_plugin_expiry``).
        """
        credentials = cls(loader, configuration, by_expiry=by_expiry)
        configuration.refresh_api_key_hook = credentials.refresh
        return credentials

    @property
    def loads(self) -> int:
        """How often the credentials were loaded anew."""
        return self._loads

    def refresh(self, _: Any) -> Awaitable[None] | None:
        """Return a coroutine that renews the token when it is due, else None."""
        return self._renew(self._loads, forced=False) if self._clock() >= self._due else None

    async def renew_refused(self, loads: int) -> None:
        """Renew the token that the server refused, unless that happened since ``loads`` was read.

        Raises:
            UnauthorizedError: the plugin or provider failed.
        """
        await self._renew(loads, forced=True)

    async def _renew(self, loads: int, *, forced: bool) -> None:
        async with self._lock:
            if self._loads != loads or not (forced or self._clock() >= self._due):
                return
            # The loader keeps a token until its stated end, also one that the server no longer takes.
            self._loader.__dict__.pop("exec_plugin_expiry", None)
            try:
                with anyio.fail_after(_LOAD_LIMIT):
                    await self._loader.load_and_set(self._configuration)
            except Exception as error:
                reason = str(error) or repr(error)
                if forced or self._clock() >= self._end:
                    raise UnauthorizedError(f"the credentials cannot be renewed: {reason}") from error
                self._due = self._clock() + _AGAIN
                log.warning("credentials_not_renewed", error=reason, wait=_AGAIN)
                return
            self._loads += 1
            self._due = self._next_due()

    def _next_due(self) -> float:
        now = self._clock()
        if not self._by_expiry:
            return now + _CHECK_PERIOD
        expiry = getattr(self._loader, "exec_plugin_expiry", None)
        self._end = float("inf") if expiry is None else expiry.timestamp()
        if expiry is None:
            return self._end
        return max(now + 1, min(self._end, max(now + _MIN_PERIOD, self._end - _EARLY)))
