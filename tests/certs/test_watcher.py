"""Certificates that change while a server runs (rule MG-12)."""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import anyio
import anyio.to_thread
import pytest
from cryptography import x509

from pyreconcile.certs import CertificateAuthority, CertificateFiles, CertificateWatcher, KeyPair
from pyreconcile.certs._folders import watch_folders
from pyreconcile.certs._watcher import POLL
from pyreconcile.metrics import Metrics

SLOW = 3600.0
AUTHORITY = CertificateAuthority()


def serial(pem: bytes) -> int:
    return x509.load_pem_x509_certificate(pem).serial_number


def write(folder: Path, pair: KeyPair | None = None) -> int:
    pair = pair or AUTHORITY.issue(["localhost"])
    (folder / "tls.crt").write_bytes(pair.certificate)
    (folder / "tls.key").write_bytes(pair.key)
    return serial(pair.certificate)


def served(watcher: CertificateWatcher) -> int:
    """Make a TLS handshake in memory; return the serial number of the certificate that the server shows."""
    client_context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client_context.check_hostname, client_context.verify_mode = False, ssl.CERT_NONE
    incoming, outgoing, back, forth = ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO(), ssl.MemoryBIO()
    server = watcher.context.wrap_bio(incoming, outgoing, server_side=True)
    client = client_context.wrap_bio(back, forth)
    for _ in range(4):
        for side in (client, server):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
            incoming.write(forth.read())
            back.write(outgoing.read())
    der = client.getpeercert(binary_form=True)
    assert der is not None
    return x509.load_der_x509_certificate(der).serial_number


class Watched:
    def __init__(self, folder: Path, *, poll: float = SLOW) -> None:
        self.metrics = Metrics()
        self.watcher = CertificateWatcher(CertificateFiles(folder), metrics=self.metrics, poll=poll)
        self.changes = 0
        self.watcher.on_change(self._note)

    def _note(self) -> None:
        self.changes += 1

    def reads(self, kind: str = "") -> float:
        value = self.metrics.registry.get_sample_value(f"certwatcher_read_certificate{kind}_total")
        assert value is not None
        return value

    async def shows(self, number: int) -> None:
        while served(self.watcher) != number:
            await anyio.sleep(0.01)

    async def read_again(self, *, since: float | None = None) -> None:
        reads = self.reads() if since is None else since
        while self.reads() == reads:
            await anyio.sleep(0.01)


@asynccontextmanager
async def watching(folder: Path, **options: float) -> AsyncIterator[Watched]:
    one = Watched(folder, **options)
    stop = anyio.Event()
    reads = one.reads()
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            await tasks.start(one.watcher.run, stop)
            await one.read_again(since=reads)
            yield one
            stop.set()


@pytest.mark.rules("MG-12", "U-71", "MT-24")
async def test_mg_12_a_file_event_brings_the_new_pair_at_once_and_calls_back(tmp_path: Path):
    first = write(tmp_path)
    async with watching(tmp_path) as one:
        await one.shows(first)
        assert (one.changes, one.reads("_errors")) == (0, 0)
        second = write(tmp_path)
        await one.shows(second)
        assert one.changes == 1


@pytest.mark.rules("MG-12", "U-71")
async def test_mg_12_kubernetes_swaps_a_link_to_a_folder_again_and_again(tmp_path: Path):
    """As a kubelet does: ``tls.crt`` → ``..data/tls.crt``, and ``..data`` → a folder that is new each time."""

    def publish(number: int) -> int:
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        found = write(folder)
        (tmp_path / "..new").symlink_to(folder.name)
        (tmp_path / "..new").rename(tmp_path / "..data")
        for old in (tmp_path / f"..{number - 1}").glob("*"):
            old.unlink()
        return found

    first = publish(1)
    for name in ("tls.crt", "tls.key"):
        (tmp_path / name).symlink_to(Path("..data", name))
    async with watching(tmp_path) as one:
        await one.shows(first)
        for number in (2, 3, 4):
            await one.shows(publish(number))
        assert one.changes == 3


@pytest.mark.rules("MG-12", "U-71", "MT-24")
async def test_mg_12_a_broken_pair_is_counted_and_the_old_one_stays(tmp_path: Path):
    first = write(tmp_path)
    async with watching(tmp_path, poll=0.05) as one:
        (tmp_path / "tls.key").write_bytes(AUTHORITY.issue(["localhost"]).key)
        while one.reads("_errors") < 2:  # each look at it counts
            await anyio.sleep(0.01)
        assert served(one.watcher) == first
        (tmp_path / "tls.crt").write_bytes(b"no certificate")
        await one.read_again()
        (tmp_path / "tls.crt").unlink()
        await one.read_again()
        assert served(one.watcher) == first
        assert one.changes == 0
        await one.shows(write(tmp_path))
        assert one.changes == 1


@pytest.mark.rules("MG-12", "U-71")
async def test_mg_12_files_that_are_removed_and_written_again_are_watched_again(tmp_path: Path):
    write(tmp_path)
    async with watching(tmp_path) as one:
        for _ in range(2):
            for name in ("tls.crt", "tls.key"):
                (tmp_path / name).unlink()
            await one.read_again()
            await one.shows(write(tmp_path))


@pytest.mark.rules("MG-12", "U-71")
async def test_mg_12_the_poll_finds_what_no_event_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The folder is replaced whole, so events of the old one end; and a system without inotify has no events at all."""
    assert POLL == 10
    folder = tmp_path / "certs"
    folder.mkdir()
    write(folder)
    async with watching(folder, poll=0.05) as one:
        folder.rename(tmp_path / "old")
        folder.mkdir()
        await one.shows(write(folder))
        await one.shows(write(folder))

    class WithoutInotify:
        pass

    monkeypatch.setattr("ctypes.CDLL", lambda *_, **__: WithoutInotify())
    async with watching(folder, poll=0.05) as one:
        await one.shows(write(folder))


@pytest.mark.rules("MG-12")
async def test_mg_12_content_counts_not_the_time_of_the_file(tmp_path: Path):
    pair = AUTHORITY.issue(["localhost"])
    write(tmp_path, pair)
    async with watching(tmp_path) as one:
        write(tmp_path, pair)
        os.utime(tmp_path / "tls.crt", (time.time() + 60, time.time() + 60))
        await one.read_again()
        assert one.changes == 0


async def test_a_callback_that_fails_is_logged_and_does_not_stop_the_others(tmp_path: Path):
    write(tmp_path)
    one = Watched(tmp_path)
    one.watcher._callbacks.insert(0, lambda: 1 / 0)
    write(tmp_path)
    assert await one.watcher.reload()
    assert one.changes == 1
    assert not await one.watcher.reload()


async def test_a_new_ca_is_told_although_the_pair_stays(tmp_path: Path):
    write(tmp_path)
    one = Watched(tmp_path)
    assert one.watcher.ca_bundle == b""
    (tmp_path / "ca.crt").write_bytes(AUTHORITY.certificate)
    assert await one.watcher.reload()
    assert one.watcher.ca_bundle == AUTHORITY.certificate
    assert one.changes == 1


def test_a_first_pair_that_is_broken_is_an_error(tmp_path: Path):
    with pytest.raises(OSError, match=r"tls\.crt"):
        Watched(tmp_path)
    (tmp_path / "tls.crt").write_bytes(b"nothing")
    (tmp_path / "tls.key").write_bytes(b"nothing")
    with pytest.raises(ssl.SSLError):
        Watched(tmp_path)


async def test_waiting_for_changes_leaves_no_descriptor_open(tmp_path: Path):
    def watches() -> int:
        """Count the descriptors of inotify: others come and go by themselves, as connections of earlier tests do."""
        found = 0
        for descriptor in Path("/proc/self/fd").iterdir():
            with suppress(FileNotFoundError):
                found += "inotify" in str(descriptor.readlink())
        return found

    before = watches()
    with watch_folders() as changes, anyio.move_on_after(0.05):
        changes.watch([tmp_path, tmp_path / "missing"])
        assert watches() == before + 1
        await changes.changed()
    assert watches() == before
