"""What made certificates have in common, and what each key may be used for."""

from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from pyreconcile.certs import CertificateAuthority, certificate_builder, key_usage

START = datetime(2026, 1, 1, tzinfo=UTC)
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "someone")])
USES = ("digital_signature", "key_encipherment", "key_cert_sign", "crl_sign")
OTHERS = ("content_commitment", "data_encipherment", "key_agreement")


def uses(certificate: bytes | x509.Certificate) -> set[str]:
    if isinstance(certificate, bytes):
        certificate = x509.load_pem_x509_certificate(certificate)
    extension = certificate.extensions.get_extension_for_class(x509.KeyUsage)
    assert extension.critical
    return {use for use in (*USES, *OTHERS) if getattr(extension.value, use)}


@pytest.mark.parametrize(
    "key",
    [ec.generate_private_key(ec.SECP256R1()), rsa.generate_private_key(public_exponent=65537, key_size=2048)],
    ids=["ec", "rsa"],
)
def test_a_certificate_is_good_from_an_hour_before_and_names_its_key(key):
    builder = certificate_builder(NAME, NAME, key.public_key(), now=START, lifetime=timedelta(days=2))
    certificate = builder.add_extension(key_usage("digital_signature"), critical=True).sign(key, hashes.SHA256())
    assert (certificate.subject, certificate.issuer) == (NAME, NAME)
    assert certificate.not_valid_before_utc == START - timedelta(hours=1)
    assert certificate.not_valid_after_utc == START + timedelta(days=2)
    named = certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    assert named == x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    assert uses(certificate) == {"digital_signature"}


def test_only_the_authority_may_sign_certificates():
    authority = CertificateAuthority()
    assert uses(authority.certificate) == {"digital_signature", "key_cert_sign", "crl_sign"}
    assert uses(authority.issue(["localhost"]).certificate) == {"digital_signature"}


def test_the_library_is_loaded_only_when_a_certificate_is_made():
    code = "import sys, pyreconcile.certs; print('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"
