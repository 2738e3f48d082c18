"""Certificates of servers: a CA of one's own, files that others renew, and the watcher that takes up what is new.

The webhook server and the metrics server use it. For a TLS server of your own, make a `CertificateWatcher`, add it to
the manager, and give its ``context`` to the server::

    watcher = CertificateWatcher(CertificateFiles(Path("/certs")), metrics=manager.metrics)
    manager.add(watcher)
"""

from typing import TYPE_CHECKING

from pyreconcile._lazy import lazy_names
from pyreconcile.certs._pair import KeyPair, TLSVersion
from pyreconcile.certs._sources import (
    CertificateFiles,
    CertificateSource,
    GeneratedCertificates,
    TLSOptions,
    choose_source,
)
from pyreconcile.certs._watcher import CertificateMetrics, CertificateWatcher

if TYPE_CHECKING:
    from pyreconcile.certs._authority import CertificateAuthority
    from pyreconcile.certs._certificate import certificate_builder, key_usage

__all__ = [
    "CertificateAuthority",
    "CertificateFiles",
    "CertificateMetrics",
    "CertificateSource",
    "CertificateWatcher",
    "GeneratedCertificates",
    "KeyPair",
    "TLSOptions",
    "TLSVersion",
    "certificate_builder",
    "choose_source",
    "key_usage",
]

if not TYPE_CHECKING:
    # The library behind them takes 40 ms to load.
    __getattr__ = lazy_names(
        __name__,
        {"_authority": ("CertificateAuthority",), "_certificate": ("certificate_builder", "key_usage")},
    )
