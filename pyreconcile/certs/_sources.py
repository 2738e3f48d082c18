"""Where a server's certificate comes from: made here, or files that someone else writes and renews."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import structlog

from pyreconcile.certs._pair import KeyPair, TLSVersion, server_context

if TYPE_CHECKING:
    from pyreconcile.certs._authority import CertificateAuthority

CA_LIFETIME = timedelta(days=3650)
LEAF_LIFETIME = timedelta(days=365)
_RENEW_AFTER = LEAF_LIFETIME - timedelta(days=120)

log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class TLSOptions:
    """What certificate a server shows.

    Args:
        cert_dir: folder with certificate and key (and ``ca.crt``, if clients are to be told the CA). Without it the
            server's default folder under the system's temporary one is used if it has the files; else a CA and a
            certificate are made at start.
        cert_name: file of the certificate in that folder.
        key_name: file of the private key in that folder.
        hosts: names and addresses that a made certificate is good for.
        client_ca: file with the CA of client certificates; when given, clients must show one.
        minimum_version: the oldest version of TLS that is spoken.
        ciphers: what may be used with TLS 1.2, as OpenSSL names it (``ECDHE+AESGCM``); TLS 1.3 has its own.

    Raises:
        ValueError: a file's name is a path, or a version or cipher is not known; the message names the field.
    """

    cert_dir: Path | str | None = None
    cert_name: str = "tls.crt"
    key_name: str = "tls.key"
    hosts: Sequence[str] = ("localhost", "127.0.0.1", "::1")
    client_ca: Path | str | None = None
    minimum_version: TLSVersion = "TLSv1.2"
    ciphers: str | None = None

    def __post_init__(self) -> None:
        try:
            server_context(minimum_version=self.minimum_version, ciphers=self.ciphers)
        except KeyError:
            raise ValueError(f"minimum_version: must be TLSv1.2 or TLSv1.3, not {self.minimum_version!r}") from None
        except OSError as error:
            raise ValueError(f"ciphers: this OpenSSL knows none of {self.ciphers!r}") from error
        for field in ("cert_name", "key_name"):
            name = getattr(self, field)
            if not name or Path(name).name != name:
                raise ValueError(f"{field}: {name!r} must be a file's name; its folder is cert_dir")


class CertificateSource(Protocol):
    """Where the server's certificate comes from."""

    @property
    def ca_bundle(self) -> bytes:
        """The CA's certificates (PEM) that clients are to trust; empty when it is not known."""
        ...

    @property
    def files(self) -> Sequence[Path]:
        """The files whose changes are to be noticed."""
        ...

    def read(self) -> KeyPair:
        """Return the pair to serve now.

        Raises:
            OSError: it cannot be read.
        """
        ...


class GeneratedCertificates:
    """A CA made at start, and server certificates from it, renewed 120 days before they run out.

    In the CA's last year a new CA takes over. The bundle has both from one renewal earlier on, so that clients know it
    by then.

    Args:
        hosts: names and addresses that the certificate is good for.
        now: the time of day.
    """

    files: Sequence[Path] = ()

    def __init__(self, hosts: Sequence[str], *, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._hosts = tuple(hosts)
        self._now = now
        self._authority = self._new_authority()
        self._next: CertificateAuthority | None = None
        self._renew_at = now()
        self._pair: KeyPair | None = None
        self._bundle = self._authority.certificate

    def _new_authority(self) -> CertificateAuthority:
        # The library takes 40 ms to load.
        from pyreconcile.certs._authority import CertificateAuthority

        return CertificateAuthority(now=self._now)

    @property
    def ca_bundle(self) -> bytes:
        """The CA's certificate, near its end also its successor's."""
        return self._bundle

    def read(self) -> KeyPair:
        """Return the pair, a fresh one when it nears its end."""
        now = self._now()
        if self._pair is not None and now < self._renew_at:
            return self._pair
        left = self._authority.expires - now
        if left < LEAF_LIFETIME + _RENEW_AFTER and self._next is None:
            self._next = self._new_authority()
            self._bundle = self._next.certificate + self._authority.certificate
        if left < LEAF_LIFETIME and self._next is not None:
            self._authority, self._next = self._next, None
        self._renew_at = now + _RENEW_AFTER
        self._pair = self._authority.issue(self._hosts)
        return self._pair


class CertificateFiles:
    """Certificate and key in a folder, and ``ca.crt`` when it is there.

    Args:
        folder: where they are; the files may be symbolic links that Kubernetes swaps.
        certificate: file name of the certificate.
        key: file name of the private key.
    """

    def __init__(self, folder: Path, *, certificate: str = "tls.crt", key: str = "tls.key") -> None:
        self._certificate, self._key, self._authority = folder / certificate, folder / key, folder / "ca.crt"
        self._bundle = b""

    @property
    def ca_bundle(self) -> bytes:
        """What ``ca.crt`` held when the pair was read last."""
        return self._bundle

    @property
    def files(self) -> Sequence[Path]:
        """Certificate, key and CA."""
        return self._certificate, self._key, self._authority

    def read(self) -> KeyPair:
        """Read the files."""
        pair = KeyPair(self._certificate.read_bytes(), self._key.read_bytes())
        self._bundle = self._authority.read_bytes() if self._authority.is_file() else b""
        return pair


def choose_source(options: TLSOptions, *, default_folder: str, hosts: Sequence[str] = ()) -> CertificateSource:
    """Return the files of ``cert_dir``, else those of the default folder if they are there, else a made certificate.

    The default folder is below the system's temporary one, where anybody may write. So it counts only if its files, and
    the folders on the way to them, belong to this user or to root and nobody else may write there.

    Args:
        options: what the user wants.
        default_folder: path below the temporary folder, such as ``k8s-webhook-server/serving-certs``.
        hosts: names that a made certificate is good for, beside those of the options.
    """
    if options.cert_dir is not None:
        return CertificateFiles(Path(options.cert_dir), certificate=options.cert_name, key=options.key_name)
    temporary = _temporary_folder()
    folder = temporary / default_folder
    files = CertificateFiles(folder, certificate=options.cert_name, key=options.key_name)
    if all(os.path.exists(path) for path in files.files[:2]):
        chain = [folder, *(above for above in folder.parents if above.is_relative_to(temporary) and above != temporary)]
        suspicious = [path for path in (*chain, *files.files) if not _is_ours(path)]
        if not suspicious:
            return files
        log.warning("certificates_not_used", foreign=[str(path) for path in suspicious])
    return GeneratedCertificates([*options.hosts, *hosts])


def _temporary_folder() -> Path:
    try:
        return Path(tempfile.gettempdir())
    except OSError:  # nobody may write to any, but certificates may have been mounted there
        return Path(os.environ.get("TMPDIR") or "/tmp")  # noqa: S108


def _is_ours(path: Path) -> bool:
    """Whether only this user or root can have put it there, and what a link leads to as well; so if it is missing."""
    try:
        found = (path.lstat(), path.stat())
    except FileNotFoundError:
        return not path.is_symlink()
    except OSError:
        return False
    return all(one.st_uid in (0, os.getuid()) and not _others_write(one) for one in found)


def _others_write(found: os.stat_result) -> bool:
    mode = found.st_mode
    if stat.S_ISLNK(mode) or (stat.S_ISDIR(mode) and mode & stat.S_ISVTX):
        # The folder of a mounted Secret has the sticky bit: others can neither replace nor remove what is not theirs.
        return False
    return bool(mode & stat.S_IWOTH or (mode & stat.S_IWGRP and found.st_gid != os.getgid()))
