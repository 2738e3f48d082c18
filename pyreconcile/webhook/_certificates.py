"""The server's certificate: one of our own making, or files that someone else writes and renews."""

from __future__ import annotations

import ipaddress
import ssl
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import structlog
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pyreconcile.metrics import Metrics

_CA_LIFETIME = timedelta(days=3650)
_LEAF_LIFETIME = timedelta(days=365)
_RENEW_BEFORE = timedelta(days=120)
_CLOCK_SKEW = timedelta(hours=1)  # the API server's clock may be behind ours

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate and its private key as PEM; the key stays out of ``repr``."""

    certificate: bytes
    key: bytes

    def __repr__(self) -> str:
        return "KeyPair(…)"


class CertificateAuthority:
    """A private certificate authority with an elliptic-curve key that never leaves this process."""

    def __init__(self, common_name: str = "pyreconcile-webhook-ca") -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            _builder(self._name, self._name, self._key.public_key(), _CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_key_usage(signs_certificates=True), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(Encoding.PEM)

    def issue(self, hosts: Sequence[str]) -> KeyPair:
        """Issue a server certificate for host names and IP addresses, good for 365 days.

        Raises:
            ValueError: ``hosts`` is empty.
        """
        if not hosts:
            raise ValueError("hosts is empty: name at least one host that the API server will dial")
        key = ec.generate_private_key(ec.SECP256R1())
        # A common name may have 64 characters at most; clients look at the alternative names only.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        certificate = (
            _builder(subject, self._name, key.public_key(), _LEAF_LIFETIME)
            .add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(signs_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        return KeyPair(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


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
        self._hosts = tuple(hosts)
        self._authority = CertificateAuthority()
        self._renew_at = datetime.min.replace(tzinfo=UTC)
        self.ca_bundle = self._authority.certificate

    def poll(self) -> KeyPair | None:
        """Return a fresh pair at first and when the last one nears its end."""
        now = datetime.now(UTC)
        if now < self._renew_at:
            return None
        self._renew_at = now + _LEAF_LIFETIME - _RENEW_BEFORE
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


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, lifetime: timedelta
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + lifetime)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _key_usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
