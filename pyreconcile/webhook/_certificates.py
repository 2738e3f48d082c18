"""The server's certificate: one of our own making, or files that someone else writes and renews."""

from __future__ import annotations

import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import structlog

from pyreconcile.metrics import Metrics

LEAF_LIFETIME = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=120)

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key as PEM; the key stays out of ``repr``."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


class CertificateSource(Protocol):
    """Where the server's certificate comes from."""

    ca_bundle: bytes

    def poll(self) -> KeyPair | None:
        """Return the pair to serve when it is another one than last time, else None.

        Raises:
            OSError: it cannot be read.
        """
        ...


class GeneratedCertificates:
    """A CA made at start, and server certificates from it, renewed 120 days before they run out."""

    def __init__(self, hosts: Sequence[str]) -> None:
        from pyreconcile.webhook._authority import CertificateAuthority

        self._hosts = tuple(hosts)
        self._authority = CertificateAuthority()
        self._renew_at = datetime.min.replace(tzinfo=UTC)
        self.ca_bundle = self._authority.certificate

    def poll(self) -> KeyPair | None:
        """Return a fresh pair at first and when the last one nears its end."""
        now = datetime.now(UTC)
        if now < self._renew_at:
            return None
        self._renew_at = now + LEAF_LIFETIME - _RENEW_BEFORE
        return self._authority.issue(self._hosts)


class CertificateFiles:
    """``tls.crt`` and ``tls.key`` in a folder, and ``ca.crt`` when it is there; compared by content (rule MG-12)."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last: KeyPair | None = None
        self.ca_bundle = b""

    def poll(self) -> KeyPair | None:
        """Read the files; they may be symbolic links that Kubernetes swaps."""
        pair = KeyPair((self._folder / "tls.crt").read_bytes(), (self._folder / "tls.key").read_bytes())
        authority = self._folder / "ca.crt"
        if authority.is_file():
            self.ca_bundle = authority.read_bytes()
        if pair == self._last:
            return None
        self._last = pair
        return pair


class ServerTLS:
    """The server's SSL context; a new certificate serves from the next handshake on, without a restart."""

    def __init__(self, source: CertificateSource, *, client_ca: Path | None = None, metrics: Metrics) -> None:
        self.source = source
        self._metrics = metrics
        self.context = _server_context()
        if client_ca is not None:
            self.context.load_verify_locations(cafile=client_ca)
            self.context.verify_mode = ssl.CERT_REQUIRED
        self._take_up()

    def reload(self) -> bool:
        """Take up a new certificate if there is one; a broken or missing pair leaves the old one in place."""
        try:
            taken = self._take_up()
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            _log.warning("webhook certificate not reloaded, serving the old one", error=str(error))
            return False
        if taken:
            _log.info("webhook certificate reloaded")
        return taken

    def _take_up(self) -> bool:
        try:
            pair = self.source.poll()
            if pair is not None:
                _load(_server_context(), pair)  # proves the pair before the live context is touched
                _load(self.context, pair)
        except (OSError, ValueError):
            self._metrics.certificate_read(ok=False)
            raise
        self._metrics.certificate_read(ok=True)
        return pair is not None


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    return context


def _load(context: ssl.SSLContext, pair: KeyPair) -> None:
    # The ssl module reads certificates from files only.
    with tempfile.TemporaryDirectory(prefix="pyreconcile-tls-") as folder:
        certificate, key = Path(folder, "tls.crt"), Path(folder, "tls.key")
        certificate.write_bytes(pair.certificate)
        key.touch(mode=0o600)
        key.write_bytes(pair.key)
        context.load_cert_chain(certificate, key)
