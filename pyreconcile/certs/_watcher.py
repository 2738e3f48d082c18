"""The SSL context of a server, kept up to date (rule MG-12)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, Protocol

import anyio
import anyio.to_thread
import structlog
from anyio.abc import TaskStatus

from pyreconcile.certs._folders import FolderWatch, watch_folders
from pyreconcile.certs._pair import KeyPair, TLSVersion, load_pair, server_context
from pyreconcile.certs._sources import CertificateSource

POLL: Final = 10.0
"""Seconds between two looks at the files, beside those that file events cause (rule MG-12)."""

# Certificate and key are two files: a look between the writing of both finds a broken pair.
_SETTLE: Final = 0.1

log = structlog.get_logger()


class CertificateMetrics(Protocol):
    """Counts reads of a certificate; `pyreconcile.metrics.Metrics` is one."""

    def certificate_read(self, *, ok: bool) -> None:
        """Count one attempt."""


class CertificateWatcher:
    """A server's SSL context; a new certificate serves from the next handshake on, without a restart.

    While it runs, it looks at the certificate when its files change and every ``poll`` seconds. Content is compared,
    so files that are written anew but equal change nothing. A broken or missing pair leaves the old one in place.

    Args:
        source: where the certificate comes from.
        metrics: counts the reads.
        client_ca: file with the CA of client certificates; when given, clients must show one.
        minimum_version: the oldest version of TLS that is spoken.
        ciphers: what may be used with TLS 1.2, as OpenSSL names it.
        poll: seconds between two looks.

    Raises:
        OSError: the certificate or ``client_ca`` cannot be read, or is broken.
    """

    name = "certificate watcher"
    needs_leader_election = False

    def __init__(
        self,
        source: CertificateSource,
        *,
        metrics: CertificateMetrics,
        client_ca: Path | None = None,
        minimum_version: TLSVersion = "TLSv1.2",
        ciphers: str | None = None,
        poll: float = POLL,
    ) -> None:
        self._source = source
        self._metrics = metrics
        self._poll = poll
        self._callbacks: list[Callable[[], None]] = []
        self._served: KeyPair | None = None
        self.context = server_context(client_ca, minimum_version=minimum_version, ciphers=ciphers)
        """What the server uses."""
        self._served = self._read()
        load_pair(self.context, self._served)
        self._bundle = source.ca_bundle

    @property
    def ca_bundle(self) -> bytes:
        """The CA's certificates (PEM) with which clients can trust the server; empty when it is not known."""
        return self._bundle

    def on_change(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, on the loop of `run`, after each change of the certificate or the CA bundle.

        What it raises is logged.
        """
        self._callbacks.append(callback)

    async def reload(self) -> bool:
        """Take up a new certificate or CA bundle if there is one; tell whether there was."""
        try:
            pair = await anyio.to_thread.run_sync(self._read)
            renewed = pair != self._served
            if renewed:
                # On the loop, where the handshakes are: none sees the new certificate with the old key.
                load_pair(self.context, pair)
                self._served = pair
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            log.warning("certificate_not_reloaded", error=str(error), advice="the old one is still served")
            return False
        bundle = self._source.ca_bundle
        if not renewed and bundle == self._bundle:
            return False
        self._bundle = bundle
        log.info("certificate_reloaded")
        for callback in self._callbacks:
            try:
                callback()
            except Exception as error:
                log.exception("certificate_callback_failed", error=repr(error))
        return True

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Keep the certificate up to date until ``stop`` is set."""
        with watch_folders() as changes:
            changes.watch(self._folders())
            task_status.started()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._follow, changes)
                await stop.wait()
                tasks.cancel_scope.cancel()

    async def _follow(self, changes: FolderWatch) -> None:
        while True:
            await self.reload()
            with anyio.move_on_after(self._poll):
                await changes.changed()
                await anyio.sleep(_SETTLE)
            # Links may lead elsewhere now, and a folder may have been replaced.
            changes.watch(self._folders())

    def _folders(self) -> set[Path]:
        files = self._source.files
        return {path.parent for path in files} | {path.resolve().parent for path in files}

    def _read(self) -> KeyPair:
        try:
            pair = self._source.read()
            if pair != self._served:
                load_pair(server_context(), pair)  # proves the pair before the live context is touched
        except (OSError, ValueError):
            self._metrics.certificate_read(ok=False)
            raise
        self._metrics.certificate_read(ok=True)
        return pair
