"""Where certificates come from: made ones are renewed in time, and files of the right owner are found."""

from __future__ import annotations

import errno
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from pyreconcile.certs import (
    CertificateAuthority,
    CertificateFiles,
    CertificateWatcher,
    GeneratedCertificates,
    TLSOptions,
    choose_source,
)
from pyreconcile.certs._pair import load_pair, server_context
from pyreconcile.metrics import Metrics

START = datetime(2026, 1, 1, tzinfo=UTC)


class Calendar:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> datetime:
        return self.now


def certificates(bundle: bytes) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle)


def test_a_made_certificate_is_renewed_120_days_before_its_year_is_over():
    calendar = Calendar()
    source = GeneratedCertificates(["localhost"], now=calendar)
    first = source.read()
    assert certificates(first.certificate)[0].not_valid_after_utc == START + timedelta(days=365)
    calendar.now = START + timedelta(days=244)
    assert source.read() is first
    calendar.now = START + timedelta(days=245)
    second = source.read()
    assert second != first
    assert source.read() is second
    [authority] = certificates(source.ca_bundle)
    certificates(second.certificate)[0].verify_directly_issued_by(authority)


def test_no_certificate_ever_runs_out_nor_lacks_a_trusted_ca():
    """Twelve years, looked at every ten days: also over the CA's own end."""
    calendar = Calendar()
    source = GeneratedCertificates(["localhost"], now=calendar)
    bundles = set()
    while calendar.now < START + timedelta(days=12 * 365):
        trusted = source.ca_bundle if calendar.now > START else b""
        pair = source.read()
        [leaf] = certificates(pair.certificate)
        assert leaf.not_valid_after_utc > calendar.now + timedelta(days=100)
        valid = [one for one in certificates(source.ca_bundle) if one.not_valid_after_utc >= leaf.not_valid_after_utc]
        assert any(issued(leaf, one) for one in valid)
        if trusted:  # a client that was told at the renewal before
            assert any(issued(leaf, one) for one in certificates(trusted))
        if trusted != source.ca_bundle:
            bundles.add(source.ca_bundle)
        calendar.now += timedelta(days=10)
    assert [len(certificates(bundle)) for bundle in sorted(bundles, key=len)] == [1, 2]


def issued(leaf: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(authority)
    except Exception:  # the library's many kinds of no
        return False
    return True


async def test_the_watcher_takes_up_a_renewed_certificate_and_tells_of_a_new_ca():
    calendar = Calendar()
    source = GeneratedCertificates(["localhost"], now=calendar)
    watcher = CertificateWatcher(source, metrics=Metrics())
    told: list[int] = []
    watcher.on_change(lambda: told.append(len(certificates(watcher.ca_bundle))))
    assert not await watcher.reload()
    calendar.now = START + timedelta(days=250)
    assert await watcher.reload()
    calendar.now = START + timedelta(days=3400)
    assert await watcher.reload()
    assert told == [1, 2]


def write(folder: Path) -> None:
    folder.mkdir(parents=True)
    pair = CertificateAuthority().issue(["localhost"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)


def test_the_default_folder_counts_only_if_this_user_or_root_owns_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    choose = lambda **options: choose_source(TLSOptions(**options), default_folder="server/certs")  # noqa: E731
    assert isinstance(choose(), GeneratedCertificates)
    write(tmp_path / "server" / "certs")
    assert isinstance(choose(), CertificateFiles)
    assert isinstance(choose(key_name="other.key"), GeneratedCertificates)
    assert isinstance(choose(cert_dir=tmp_path / "elsewhere"), CertificateFiles)
    real = Path.stat
    foreign: list[Path] = []

    def other_owner(path: Path, **options: bool) -> os.stat_result:
        found = real(path, **options)
        return os.stat_result((*found[:4], 12345, *found[5:10])) if path in foreign else found

    monkeypatch.setattr(Path, "stat", other_owner)
    assert isinstance(choose(), CertificateFiles)
    folder = tmp_path / "server" / "certs"
    (folder / "ca.crt").touch()
    for path in (folder.parent, folder, folder / "tls.crt", folder / "tls.key", folder / "ca.crt"):
        foreign[:] = [path]
        assert isinstance(choose(), GeneratedCertificates)
    assert str(folder / "ca.crt") in capsys.readouterr().out


def test_the_default_folder_counts_only_if_nobody_else_may_write_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    folder = tmp_path / "server" / "certs"
    write(folder)
    for path in (folder.parent, folder, folder / "tls.key"):
        mode = path.stat().st_mode
        path.chmod(mode | 0o002)
        assert isinstance(choose_source(TLSOptions(), default_folder="server/certs"), GeneratedCertificates)
        path.chmod(mode)
        assert isinstance(choose_source(TLSOptions(), default_folder="server/certs"), CertificateFiles)
    folder.chmod(0o1777)  # as that of a mounted Secret
    assert isinstance(choose_source(TLSOptions(), default_folder="server/certs"), CertificateFiles)
    (folder / "ca.crt").symlink_to("gone")
    assert isinstance(choose_source(TLSOptions(), default_folder="server/certs"), GeneratedCertificates)


def test_tls_needs_no_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*args: object, **options: object) -> None:
        raise OSError(errno.EROFS, "read-only file system")

    for name in ("mkstemp", "mkdtemp", "gettempdir"):
        monkeypatch.setattr(f"tempfile.{name}", refuse)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    write(tmp_path / "server" / "certs")
    for options in (TLSOptions(), TLSOptions(key_name="other.key")):
        source = choose_source(options, default_folder="server/certs")
        load_pair(server_context(), source.read())


@pytest.mark.parametrize("field", ["cert_name", "key_name"])
@pytest.mark.parametrize("name", ["", "a/b", "/tls.crt"])
def test_a_file_name_must_be_a_name(field: str, name: str):
    with pytest.raises(ValueError, match=f"^{field}: "):
        TLSOptions(**{field: name})
