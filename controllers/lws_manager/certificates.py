"""The content of the webhooks' Secret: a CA with its key, and a server certificate of it (LWS §11). No I/O.

Upstream's manager reads and writes the same Secret, so keys are RSA in PKCS #1, the only form that it takes, and the
CA's certificate is good for the CA's own name, which it checks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pyreconcile.certs import certificate_builder, key_usage

# pkg/cert/cert.go and the rotator that it uses.
CA_NAME: Final = "lws-ca"
CA_ORGANIZATION: Final = "lws"
CA_LIFETIME: Final = timedelta(days=3650)
SERVER_LIFETIME: Final = timedelta(days=365)
AHEAD: Final = timedelta(days=90)
"""How long before its end a certificate is renewed."""

CA_CERTIFICATE: Final = "ca.crt"
CA_KEY: Final = "ca.key"
CERTIFICATE: Final = "tls.crt"
KEY: Final = "tls.key"
"""The keys in the Secret."""


def renewed(data: Mapping[str, bytes], host: str, now: datetime) -> dict[str, bytes] | None:
    """Return the content that has to take the place of ``data``; None when that is good for 90 days more.

    A server certificate that is missing or near its end is made anew by the same CA; so is everything when the CA
    itself is missing, broken or near its end.

    Args:
        data: what the Secret holds; may be empty.
        host: the name that the API server dials.
        now: the time of day.
    """
    authority = _authority(data, now + AHEAD)
    if authority is None:
        authority = _new_authority(now)
    elif _serves(data, authority[0], host, now + AHEAD):
        return None
    certificate, key = authority
    server_key = _new_key()
    server = (
        certificate_builder(
            _name(host), certificate.subject, server_key.public_key(), now=now, lifetime=SERVER_LIFETIME
        )
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        .add_extension(key_usage("digital_signature", "key_encipherment"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {
        CA_CERTIFICATE: certificate.public_bytes(Encoding.PEM),
        CA_KEY: _pem(key),
        CERTIFICATE: server.public_bytes(Encoding.PEM),
        KEY: _pem(server_key),
    }


def trusted(data: Mapping[str, bytes], before: bytes, now: datetime) -> bytes:
    """Return what clients have to trust: the CA of ``data``, and one of ``before`` that was renewed in time.

    The API server gets both while a CA follows another, since replicas take up the new certificate one by one. A CA
    that is far from its end was not renewed but replaced, as after a key leaked: it is not trusted any longer.
    """
    own = data[CA_CERTIFICATE]
    try:
        known = _load_certificates(before)
    except ValueError:
        return own
    earlier = [
        pem
        for one in known
        if now < one.not_valid_after_utc <= now + AHEAD
        and (pem := one.public_bytes(Encoding.PEM)).strip() != own.strip()
    ]
    return b"".join([own, *earlier[:1]])


def _authority(data: Mapping[str, bytes], at: datetime) -> tuple[x509.Certificate, rsa.RSAPrivateKey] | None:
    try:
        [certificate] = _load_certificates(data.get(CA_CERTIFICATE, b""))
        key = load_pem_private_key(data.get(CA_KEY, b""), password=None)
    except (ValueError, TypeError):
        return None
    good = (
        isinstance(key, rsa.RSAPrivateKey)
        and _is_of(certificate, key)
        and _holds(certificate, at)
        and _good_for(certificate, CA_NAME)
    )
    return (certificate, key) if good and isinstance(key, rsa.RSAPrivateKey) else None


def _serves(data: Mapping[str, bytes], authority: x509.Certificate, host: str, at: datetime) -> bool:
    try:
        certificate = _load_certificates(data.get(CERTIFICATE, b""))[0]
        key = load_pem_private_key(data.get(KEY, b""), password=None)
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, IndexError, InvalidSignature):
        return False
    return (
        isinstance(key, rsa.RSAPrivateKey)
        and _is_of(certificate, key)
        and _holds(certificate, at)
        and _good_for(certificate, host)
    )


def _load_certificates(pem: bytes) -> list[x509.Certificate]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the CA that upstream makes has the serial number 0
        return x509.load_pem_x509_certificates(pem)


def _is_of(certificate: x509.Certificate, key: rsa.RSAPrivateKey) -> bool:
    form = (Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def _holds(certificate: x509.Certificate, at: datetime) -> bool:
    return certificate.not_valid_before_utc <= at <= certificate.not_valid_after_utc


def _good_for(certificate: x509.Certificate, host: str) -> bool:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return False
    return host in names.get_values_for_type(x509.DNSName)


def _new_authority(now: datetime) -> tuple[x509.Certificate, rsa.RSAPrivateKey]:
    key = _new_key()
    name = _name(CA_NAME, CA_ORGANIZATION)
    certificate = (
        certificate_builder(name, name, key.public_key(), now=now, lifetime=CA_LIFETIME)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(CA_NAME)]), critical=False)
        .add_extension(key_usage("digital_signature", "key_encipherment", "key_cert_sign"), critical=True)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    return certificate, key


def _new_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


def _pem(key: rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())


def _name(common: str, organization: str | None = None) -> x509.Name:
    # A common name may have 64 characters at most; clients look at the alternative names only.
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, common[:64])]
    if organization:
        parts.insert(0, x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization))
    return x509.Name(parts)
