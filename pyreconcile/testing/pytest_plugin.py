"""The pytest plugin: a control plane for the session, and for each test a namespace, a client and a manager.

It is loaded in every pytest run of an environment that has pyreconcile, so it imports nothing heavy itself.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

try:
    import pytest_asyncio

    async_fixture: Callable[[Any], Any] = pytest_asyncio.fixture
except ImportError:  # pytest itself then says that it cannot run async fixtures
    async_fixture = pytest.fixture

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

    from pyreconcile.client import Client
    from pyreconcile.manager import Manager, ManagerOptions
    from pyreconcile.testing import ControlPlane
    from pyreconcile.testing._progress import Progress

__all__ = ["client", "control_plane", "control_plane_options", "manager", "manager_options", "namespace"]

_NODES = 4
_GRACEFUL_SECONDS = 20.0
_OPEN_SECONDS = 30.0


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the control plane."""
    group = parser.getgroup("pyreconcile", "control plane of pyreconcile")
    group.addoption("--control-plane-nodes", type=int, metavar="N", help=f"simulated nodes (default {_NODES})")
    group.addoption("--control-plane-feature-gates", metavar="A=true,B=false", help="Kubernetes feature gates")
    group.addoption(
        "--control-plane-programs", metavar="PATH", help="folder with the programs (default: found or built)"
    )
    group.addoption("--control-plane-kubeconfig", metavar="FILE", help="use this cluster instead of starting one")
    group.addoption(
        "--control-plane-crds",
        action="append",
        metavar="PATH",
        help="file or folder of CRDs to install; may be given several times",
    )
    parser.addini("control_plane_nodes", f"simulated nodes of the control plane (default {_NODES})")
    parser.addini("control_plane_feature_gates", "Kubernetes feature gates, as A=true,B=false")
    parser.addini("control_plane_crds", "files or folders of CRDs to install, relative to this file", type="paths")


def _setting(config: pytest.Config, name: str) -> Any:
    value = config.getoption(name)
    return value if value is not None else config.getini(name) or None


@pytest.fixture(scope="session")
def control_plane_options(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Keyword arguments of the session's ``ControlPlane``. Override this fixture in a conftest.py to change them."""
    from pathlib import Path

    from pyreconcile.testing._settings import parse_feature_gates

    config = request.config
    try:
        nodes = int(_setting(config, "control_plane_nodes") or _NODES)
        gates = parse_feature_gates(_setting(config, "control_plane_feature_gates") or "")
    except ValueError as error:
        raise pytest.UsageError(f"control plane options: {error}") from error
    programs = config.getoption("control_plane_programs")
    kubeconfig = config.getoption("control_plane_kubeconfig")
    return {
        "nodes": nodes,
        "controller_manager": True,
        "scheduler": True,
        "feature_gates": gates,
        "crds": tuple(_setting(config, "control_plane_crds") or ()),
        "programs": Path(programs) if programs else None,
        "kubeconfig": Path(kubeconfig) if kubeconfig else None,
    }


@pytest.fixture(scope="session")
def _control_plane_portal() -> Iterator[BlockingPortal]:
    """An event loop on a thread of its own, so that the plane outlives the loop of any one test."""
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        yield portal


@pytest.fixture(scope="session")
def control_plane(
    request: pytest.FixtureRequest, control_plane_options: dict[str, Any], _control_plane_portal: BlockingPortal
) -> Iterator[ControlPlane]:
    """The session's control plane: everything on, four simulated nodes, ready for use.

    The first session on a machine builds the programs, which takes minutes and is shown while it goes on.
    """
    from pyreconcile.testing import ControlPlane

    plane = ControlPlane(**{"report": _TerminalProgress(request.config), **control_plane_options})
    with _control_plane_portal.wrap_async_context_manager(plane):
        yield plane


class _TerminalProgress:
    """Shows progress past pytest's capture of output."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._display: Progress | None = None

    def update(self, message: str) -> None:
        from pyreconcile.testing._progress import PlainProgress

        capture = self._config.pluginmanager.getplugin("capturemanager")
        with ExitStack() as stack:
            if capture is not None:
                stack.enter_context(capture.global_and_fixture_disabled())
            if self._display is None:
                import os
                import sys

                # A copy, because capturing replaces what stands behind descriptor 2.
                self._display = PlainProgress(os.fdopen(os.dup(sys.stderr.fileno()), "w"))
            self._display.update(message)


def _namespace_name(test: str) -> str:
    """A valid name that tells which test it belongs to and is not used twice."""
    words = re.sub(r"[^a-z0-9]+", "-", test.lower().removeprefix("test_")).strip("-")
    return f"{words[:50].strip('-') or 'test'}-{secrets.token_hex(3)}"


@pytest.fixture
def namespace(
    request: pytest.FixtureRequest, control_plane: ControlPlane, _control_plane_portal: BlockingPortal
) -> Iterator[str]:
    """The name of a fresh namespace for this test. It is deleted afterwards, which is not waited for."""
    from pyreconcile.testing._namespaces import create_namespace, delete_namespace

    name = _namespace_name(request.node.name)
    _control_plane_portal.call(create_namespace, control_plane.kubeconfig, name)
    yield name
    _control_plane_portal.call(delete_namespace, control_plane.kubeconfig, name)


@async_fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[Client]:
    """A client with the rights of the administrator, reading from the server."""
    from pyreconcile.client import connect
    from pyreconcile.testing._running import in_own_task

    async with in_own_task(connect(kubeconfig=control_plane.kubeconfig)) as connected:
        yield connected


@pytest.fixture
def manager_options(control_plane: ControlPlane, namespace: str) -> ManagerOptions:
    """The options of the ``manager`` fixture: this test's namespace only, no servers, no election.

    Override it in a test module or conftest.py, with ``dataclasses.replace``, to change them.
    """
    from pyreconcile.cache import CacheOptions
    from pyreconcile.client import ConnectOptions
    from pyreconcile.manager import ManagerOptions

    return ManagerOptions(
        connect=ConnectOptions(kubeconfig=control_plane.kubeconfig),
        cache=CacheOptions(namespaces=(namespace,)),
        metrics_bind_address="0",
        health_probe_bind_address="0",
        graceful_shutdown_timeout=_GRACEFUL_SECONDS,
    )


@async_fixture
async def manager(manager_options: ManagerOptions) -> AsyncIterator[Manager]:
    """A manager to build controllers on. Start it with ``async with running(manager):``."""
    from pyreconcile.manager import Manager
    from pyreconcile.testing._running import in_own_task

    async with in_own_task(Manager(manager_options)) as opened:
        yield opened
