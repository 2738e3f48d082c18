"""Which versions of TLS and which ciphers a server takes."""

from __future__ import annotations

import ssl

import pytest

from pyreconcile.certs import CertificateWatcher, GeneratedCertificates, TLSOptions
from pyreconcile.metrics import Metrics


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[str | None, str]:
    """Make a handshake in memory; return the version and the cipher that were agreed on."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                continue
    cipher = ours.cipher()
    assert cipher is not None
    return ours.version(), cipher[0]


def client_context(*, version: ssl.TLSVersion, ciphers: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = version
    if ciphers:
        context.set_ciphers(ciphers)
    return context


def server(**wanted: str) -> ssl.SSLContext:
    return CertificateWatcher(GeneratedCertificates(["localhost"]), metrics=Metrics(), **wanted).context  # type: ignore[arg-type]


def test_mg_12_a_server_speaks_tls_1_2_and_1_3():
    for version, name in ((ssl.TLSVersion.TLSv1_2, "TLSv1.2"), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
        assert shake_hands(server(), client_context(version=version))[0] == name


def test_mg_12_a_minimum_version_keeps_older_clients_out():
    context = server(minimum_version="TLSv1.3")
    assert shake_hands(context, client_context(version=ssl.TLSVersion.TLSv1_3))[0] == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        shake_hands(context, client_context(version=ssl.TLSVersion.TLSv1_2))


def test_mg_12_with_ciphers_only_those_are_taken_in_tls_1_2():
    context = server(ciphers="ECDHE-ECDSA-AES256-GCM-SHA384")
    old = ssl.TLSVersion.TLSv1_2
    assert shake_hands(context, client_context(version=old)) == ("TLSv1.2", "ECDHE-ECDSA-AES256-GCM-SHA384")
    with pytest.raises(ssl.SSLError):
        shake_hands(context, client_context(version=old, ciphers="ECDHE-ECDSA-AES128-GCM-SHA256"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"minimum_version": "TLSv1.1"}, "minimum_version: must be TLSv1.2 or TLSv1.3, not 'TLSv1.1'"),
        ({"ciphers": "NO-SUCH-CIPHER"}, "ciphers: this OpenSSL knows none of 'NO-SUCH-CIPHER'"),
    ],
)
def test_mg_12_an_unknown_version_or_cipher_is_named(given: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message):
        TLSOptions(**given)  # type: ignore[arg-type]
