"""A certificate and its key, and putting them into an SSL context."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from pyreconcile._files import HeldFile


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key as PEM; the key stays out of ``repr``."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


def server_context(client_ca: Path | None = None) -> ssl.SSLContext:
    """Return a context for a server of HTTP/1.1 over TLS 1.2 or newer, without a certificate yet.

    With ``client_ca``, clients must show a certificate of that CA.

    Raises:
        OSError: ``client_ca`` cannot be read.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if client_ca is not None:
        context.load_verify_locations(cafile=client_ca)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def load_pair(context: ssl.SSLContext, pair: KeyPair) -> None:
    """Have ``context`` show a pair from the next handshake on.

    Raises:
        OSError: the pair is broken, or key and certificate do not belong together (`ssl.SSLError`).
    """
    with HeldFile(pair.certificate) as certificate, HeldFile(pair.key) as key:
        context.load_cert_chain(certificate.path, key.path)
