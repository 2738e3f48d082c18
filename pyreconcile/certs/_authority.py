"""A private certificate authority. Its library takes 40 ms to load, so this module is imported when one is made."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pyreconcile.certs._certificate import certificate_builder, key_usage
from pyreconcile.certs._pair import KeyPair
from pyreconcile.certs._sources import CA_LIFETIME, LEAF_LIFETIME


class CertificateAuthority:
    """A private certificate authority with an elliptic-curve key that never leaves this process.

    Args:
        common_name: names it in its certificate.
        now: the time of day.
    """

    def __init__(
        self, common_name: str = "pyreconcile-ca", *, now: Callable[[], datetime] = lambda: datetime.now(UTC)
    ) -> None:
        self._now = now
        self.expires = now() + CA_LIFETIME
        """When the CA's certificate, good for ten years, runs out."""
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        certificate = (
            certificate_builder(self._name, self._name, self._key.public_key(), now=now(), lifetime=CA_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(key_usage("digital_signature", "key_cert_sign", "crl_sign"), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.certificate = certificate.public_bytes(Encoding.PEM)
        """The CA's own certificate as PEM."""

    def issue(self, hosts: Sequence[str]) -> KeyPair:
        """Issue a server certificate for host names and IP addresses, good for 365 days.

        Raises:
            ValueError: ``hosts`` is empty.
        """
        if not hosts:
            raise ValueError("hosts is empty: name at least one host that the API server will dial")
        # A common name may have 64 characters at most; clients look at the alternative names only.
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        return self._issue(subject, ExtendedKeyUsageOID.SERVER_AUTH, names)

    def issue_client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """Issue a client certificate, good for 365 days, as Kubernetes takes it: of a user who is in groups.

        Raises:
            ValueError: ``user`` is empty or has more than 64 characters.
        """
        organizations = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject = x509.Name([*organizations, x509.NameAttribute(NameOID.COMMON_NAME, user)])
        return self._issue(subject, ExtendedKeyUsageOID.CLIENT_AUTH)

    def _issue(self, subject: x509.Name, usage: x509.ObjectIdentifier, *more: x509.ExtensionType) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            certificate_builder(subject, self._name, key.public_key(), now=self._now(), lifetime=LEAF_LIFETIME)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(key_usage("digital_signature"), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        for extension in more:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        return KeyPair(
            certificate.public_bytes(Encoding.PEM),
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()),
        )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)
