"""A certificate and its key, and putting them into an SSL context."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

from pyreconcile._files import HeldFile

TLSVersion: TypeAlias = Literal["TLSv1.2", "TLSv1.3"]
"""The oldest version of TLS that a server speaks."""

_VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key as PEM; the key stays out of ``repr``."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


def server_context(
    client_ca: Path | None = None, *, minimum_version: TLSVersion = "TLSv1.2", ciphers: str | None = None
) -> ssl.SSLContext:
    """Return a context for a server of HTTP/1.1 over TLS, without a certificate yet.

    Args:
        client_ca: when given, clients must show a certificate of that CA.
        minimum_version: the oldest version that it speaks.
        ciphers: what may be used with TLS 1.2, as OpenSSL names it; by default what Python takes for safe.

    Raises:
        KeyError: ``minimum_version`` is none of the two.
        OSError: ``client_ca`` cannot be read, or OpenSSL knows none of the ciphers (`ssl.SSLError`).
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = _VERSIONS[minimum_version]
    if ciphers is not None:
        context.set_ciphers(ciphers)
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
