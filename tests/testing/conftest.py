"""Helpers of the tests of the test tools."""

from __future__ import annotations

import os
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pytest
from anyio.from_thread import BlockingPortal

from pyreconcile.client import Client
from pyreconcile.testing import ControlPlane, fake_client
from pyreconcile.testing import eventually as wait_until


@pytest.fixture(scope="session")
def own_plane(control_plane: ControlPlane, _control_plane_portal: BlockingPortal) -> Iterator[ControlPlane]:
    """The session's plane, or one of our own when the session uses an existing cluster."""
    if not control_plane.existing:
        yield control_plane
        return
    plane = ControlPlane(nodes=1, controller_manager=True, scheduler=True, use_existing=False)
    with _control_plane_portal.wrap_async_context_manager(plane):
        yield plane


@pytest.fixture
def eventually() -> Callable[..., Awaitable[object]]:
    """Look until the answer is true, and return it; fails after the time limit."""

    return partial(wait_until, timeout=30, interval=0.05, not_yet=())


@pytest.fixture
def gone() -> Callable[[int], bool]:
    """Whether a process ends within a few seconds."""

    def wait(pid: int, timeout: float = 30) -> bool:
        end = time.monotonic() + timeout
        while True:
            try:
                os.kill(pid, 0)
                state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            except (ProcessLookupError, FileNotFoundError):
                return True
            if state == "Z":
                return True
            if time.monotonic() > end:
                return False
            time.sleep(0.02)

    return wait


class Api(NamedTuple):
    """An API server: a client of it, a namespace for the test, and whether it is the fake."""

    client: Client
    namespace: str
    is_fake: bool


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.plane)])
def api(request: pytest.FixtureRequest) -> Api:
    """The fake, and a real API server: a test that takes this runs on both."""
    if request.param == "fake":
        return Api(fake_client(field_manager="suite"), "default", is_fake=True)
    client = request.getfixturevalue("client").with_options(field_manager="suite")
    return Api(client, request.getfixturevalue("namespace"), is_fake=False)
