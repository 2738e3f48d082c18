"""The certificate in the Secret that upstream's manager uses too (LWS §11)."""

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from pyreconcile.controller import Request, Result
from pyreconcile_controllers.lws_manager.certificates import renewed, trusted
from pyreconcile_controllers.lws_manager.rotation import RotationReconciler

HOST = "lws-webhook-service.lws-system.svc"
NOW = datetime(2026, 6, 1, tzinfo=UTC)
DAY = timedelta(days=1)


@pytest.fixture(scope="module")
def made():
    return renewed({}, HOST, NOW)


def load(pem):
    return x509.load_pem_x509_certificate(pem)


def hosts(certificate):
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return names.get_values_for_type(x509.DNSName)


def uses(certificate):
    allowed = certificate.extensions.get_extension_for_class(x509.KeyUsage).value
    known = ("digital_signature", "key_encipherment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign")
    return {use for use in known if getattr(allowed, use)}


def test_lws_11_the_secret_has_a_ca_and_a_certificate_as_upstream_makes_them(made):
    assert set(made) == {"ca.crt", "ca.key", "tls.crt", "tls.key"}
    authority, server = load(made["ca.crt"]), load(made["tls.crt"])
    server.verify_directly_issued_by(authority)
    assert authority.subject.rfc4514_string() == "CN=lws-ca,O=lws"
    assert hosts(authority) == ["lws-ca"]
    assert hosts(server) == [HOST]
    assert authority.not_valid_after_utc == NOW + 3650 * DAY
    assert server.not_valid_after_utc == NOW + 365 * DAY
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert uses(authority) == {"digital_signature", "key_encipherment", "key_cert_sign"}
    assert uses(server) == {"digital_signature", "key_encipherment"}
    for key in ("ca.key", "tls.key"):
        assert made[key].startswith(b"-----BEGIN RSA PRIVATE KEY-----")  # the only form that upstream takes


def test_lws_11_a_good_certificate_is_left_alone_until_90_days_before_its_end(made):
    assert renewed(made, HOST, NOW) is None
    assert renewed(made, HOST, NOW + 275 * DAY) is None
    later = renewed(made, HOST, NOW + 276 * DAY)
    assert (later["ca.crt"], later["ca.key"]) == (made["ca.crt"], made["ca.key"])
    assert load(later["tls.crt"]).not_valid_after_utc == NOW + (276 + 365) * DAY


def test_lws_11_a_ca_near_its_end_is_made_anew_with_its_certificate(made):
    at = NOW + 3561 * DAY
    later = renewed(made, HOST, at)
    assert later["ca.crt"] != made["ca.crt"]
    load(later["tls.crt"]).verify_directly_issued_by(load(later["ca.crt"]))
    assert renewed(later, HOST, at) is None


def test_lws_11_another_host_gets_another_certificate_of_the_same_ca(made):
    other = renewed(made, "other.lws-system.svc", NOW)
    assert other["ca.crt"] == made["ca.crt"]
    assert hosts(load(other["tls.crt"])) == ["other.lws-system.svc"]


@pytest.mark.parametrize("key", ["ca.crt", "ca.key", "tls.crt", "tls.key"])
@pytest.mark.parametrize("content", [None, b"", b"nonsense", b"-----BEGIN CERTIFICATE-----\nAAAA\n"])
def test_lws_11_what_is_missing_or_broken_is_made_anew(made, key, content):
    data = {name: value for name, value in made.items() if name != key}
    if content is not None:
        data[key] = content
    repaired = renewed(data, HOST, NOW)
    assert renewed(repaired, HOST, NOW) is None
    assert (repaired["ca.crt"] == made["ca.crt"]) == (key in ("tls.crt", "tls.key"))


def test_lws_11_keys_and_certificates_that_do_not_belong_together_are_made_anew(made):
    other = renewed({}, HOST, NOW)
    assert renewed({**made, "tls.key": other["tls.key"]}, HOST, NOW)["ca.crt"] == made["ca.crt"]
    assert renewed({**made, "ca.key": other["ca.key"]}, HOST, NOW)["ca.crt"] not in (made["ca.crt"], other["ca.crt"])
    mixed = {**made, "tls.crt": other["tls.crt"], "tls.key": other["tls.key"]}
    assert renewed(mixed, HOST, NOW)["ca.crt"] == made["ca.crt"]


def test_lws_11_a_key_that_upstream_cannot_read_is_made_anew(made):
    key = ec.generate_private_key(ec.SECP256R1())
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    assert renewed({**made, "ca.key": pem}, HOST, NOW)["ca.key"] != pem


def test_lws_11_a_ca_as_gos_library_writes_it_is_used():
    """Its serial number is 0, and its own name is the alternative name."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    name = x509.Name(
        [
            x509.NameAttribute(x509.NameOID.ORGANIZATION_NAME, "lws"),
            x509.NameAttribute(x509.NameOID.COMMON_NAME, "lws-ca"),
        ]
    )
    builder = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, NOW - DAY, NOW + 3650 * DAY)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("lws-ca")]), critical=False)
    )
    data = {
        "ca.crt": builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM),
        "ca.key": key.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption()),
    }
    made = renewed(data, HOST, NOW)
    assert {name: made[name] for name in data} == data


def test_lws_11_the_former_ca_stays_trusted_while_its_successor_spreads(made):
    at = NOW + 3561 * DAY
    later = renewed(made, HOST, at)
    bundle = trusted(later, made["ca.crt"], at)
    assert x509.load_pem_x509_certificates(bundle) == [load(later["ca.crt"]), load(made["ca.crt"])]
    assert trusted(later, bundle, at) == bundle
    assert trusted(later, bundle, NOW + 3651 * DAY) == later["ca.crt"]


def test_lws_11_a_ca_that_was_replaced_long_before_its_end_is_not_trusted_any_more(made):
    other = renewed({}, HOST, NOW)
    assert trusted(other, made["ca.crt"], NOW) == other["ca.crt"]
    assert trusted(made, made["ca.crt"], NOW) == made["ca.crt"]


@pytest.mark.parametrize("before", [b"", b"nonsense"])
def test_lws_11_a_bundle_that_is_none_is_replaced(made, before):
    assert trusted(made, before, NOW) == made["ca.crt"]


async def test_lws_11_the_certificate_is_looked_at_every_12_hours_and_taken_up_once_it_is_in_place():
    done = []

    class InPlace:
        async def ensure(self):
            done.append("ensured")

    async def take():
        done.append("taken")

    result = await RotationReconciler(InPlace(), take).reconcile(Request("lws-system", "lws-webhook-server-cert"))
    assert result == Result(requeue_after=12 * 3600)
    assert done == ["ensured", "taken"]
