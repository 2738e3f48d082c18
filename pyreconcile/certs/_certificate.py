"""What all certificates have in common, whoever signs them and whatever their keys are. Loaded when first used."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

_CLOCK_SKEW = timedelta(hours=1)  # the API server's clock may be behind ours

KeyUse: TypeAlias = Literal["digital_signature", "key_encipherment", "key_cert_sign", "crl_sign"]


def certificate_builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, *, now: datetime, lifetime: timedelta
) -> x509.CertificateBuilder:
    """Begin a certificate, to which its extensions are added before it is signed.

    `CertificateAuthority` makes whole ones; this is for keys or extensions that it does not have. The serial number
    is random, and the key is named by its hash (RFC 5280, 4.2.1.2).

    Args:
        subject: whom it is for.
        issuer: who will sign it; the subject itself for an authority of one's own.
        key: the subject's public key, of any kind.
        now: the time of day. The certificate is good from an hour before, for servers whose clock is behind.
        lifetime: how long it is good after ``now``.
    """
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


def key_usage(*uses: KeyUse) -> x509.KeyUsage:
    """Return the extension that allows a key these uses, by their names in `x509.KeyUsage`, and no others."""
    return x509.KeyUsage(
        digital_signature="digital_signature" in uses,
        key_encipherment="key_encipherment" in uses,
        key_cert_sign="key_cert_sign" in uses,
        crl_sign="crl_sign" in uses,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
