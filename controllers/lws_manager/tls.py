"""TLS settings of the configuration file, which have Go's names (LWS §11). No I/O."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Final

from pyreconcile.certs import TLSVersion

VERSIONS: Final[dict[str, TLSVersion]] = {"VersionTLS12": "TLSv1.2", "VersionTLS13": "TLSv1.3"}

# Go's crypto/tls: names of the suites of TLS 1.2, and what OpenSSL calls them.
_SUITES: Final = {
    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256": "ECDHE-ECDSA-AES128-GCM-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384": "ECDHE-ECDSA-AES256-GCM-SHA384",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305": "ECDHE-ECDSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256": "ECDHE-RSA-AES128-GCM-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384": "ECDHE-RSA-AES256-GCM-SHA384",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305": "ECDHE-RSA-CHACHA20-POLY1305",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA": "ECDHE-ECDSA-AES128-SHA",
    "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256": "ECDHE-ECDSA-AES128-SHA256",
    "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA": "ECDHE-ECDSA-AES256-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA": "ECDHE-RSA-AES128-SHA",
    "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256": "ECDHE-RSA-AES128-SHA256",
    "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA": "ECDHE-RSA-AES256-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA": "AES128-SHA",
    "TLS_RSA_WITH_AES_128_CBC_SHA256": "AES128-SHA256",
    "TLS_RSA_WITH_AES_128_GCM_SHA256": "AES128-GCM-SHA256",
    "TLS_RSA_WITH_AES_256_CBC_SHA": "AES256-SHA",
    "TLS_RSA_WITH_AES_256_GCM_SHA384": "AES256-GCM-SHA384",
}
# Those of TLS 1.3 cannot be chosen, neither there nor here; a list may name them all the same.
_ALWAYS: Final = {"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"}


def openssl_ciphers(suites: Sequence[str]) -> str | None:
    """Return OpenSSL's list for suites under Go's names; None when none of them is of TLS 1.2.

    Raises:
        ValueError: a suite is not known, or this OpenSSL does not have it.
    """
    found = []
    for suite in suites:
        if suite in _ALWAYS:
            continue
        cipher = _SUITES.get(suite)
        if cipher is None:
            known = ", ".join(sorted(name for name in _SUITES if "GCM" in name and "ECDHE" in name))
            raise ValueError(f"{suite!r} is not known, or not secure; secure ones are {known}")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).set_ciphers(cipher)
        except ssl.SSLError:
            raise ValueError(f"{suite!r} is not in this OpenSSL") from None
        found.append(cipher)
    return ":".join(dict.fromkeys(found)) or None
