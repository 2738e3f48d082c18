"""Where the connection's settings come from: kubeconfig, the pod's service account, or the caller (rule CL-10)."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import anyio
import anyio.to_thread

from pyreconcile.client._credentials import Credentials
from pyreconcile.client._impersonation import Impersonation
from pyreconcile.client._settings import KubeConfig, PlainSettings, account_settings

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


class ConfigError(Exception):
    """The connection's settings are missing or wrong; the message says where they were looked for."""


class RequestMetrics(Protocol):
    """Counts requests (``rest_client_requests_total``)."""

    def request(self, *, code: str, method: str, host: str) -> None:
        """Count one answer; ``code`` is ``<error>`` when there was none."""


@dataclass(frozen=True, kw_only=True)
class ConnectOptions:
    """How to reach the API server.

    Searched in this order (rule CL-10): ``configuration``, ``kubeconfig``, the files named by the environment
    variable KUBECONFIG, the service account of the pod that this process runs in, ``~/.kube/config``.

    Attributes:
        kubeconfig: path of a kubeconfig file.
        context: context to use in place of the kubeconfig's current one.
        configuration: a finished ``kubernetes_asyncio.client.Configuration``; it is not changed.
        impersonate: whom requests are made as, in place of what the kubeconfig says (its ``as`` fields).
        user_agent: sent with every request.
        field_manager: who owns the fields that this client writes.
        metrics: counts requests.
        timeout: seconds that one request may take.
        max_concurrent_requests: requests in flight at once; watches do not count.
        qps: requests a second on average, watches that are opened and tries again among them; those beyond it wait, for
            as long as it takes and beside their ``timeout``. None, the default, leaves it to the API server's priority
            and fairness (rule CL-10).
        burst: requests that go at once before ``qps`` holds.
        sleep: waits between tries, for tests.
    """

    kubeconfig: str | Path | None = None
    context: str | None = None
    configuration: Configuration | None = None
    impersonate: Impersonation | None = None
    user_agent: str = "pyreconcile"
    field_manager: str = "pyreconcile"
    metrics: RequestMetrics | None = None
    timeout: float = 30.0
    max_concurrent_requests: int = 128
    qps: float | None = None
    burst: int = 10
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep

    def __post_init__(self) -> None:
        """Raise ValueError for a limit that no request could keep to."""
        if self.qps is not None and self.qps <= 0:
            raise ValueError(f"qps: must be above 0, or None for no limit, not {self.qps}")
        if self.burst < 1:
            raise ValueError(f"burst: must be at least 1, not {self.burst}")


@dataclass(frozen=True)
class LoadedConfig:
    """The settings, what renews their credentials, and where they came from."""

    configuration: Configuration | PlainSettings
    credentials: Credentials | None
    source: str
    impersonation: Impersonation | None = None


async def load_config(options: ConnectOptions, environ: Mapping[str, str] = os.environ) -> LoadedConfig:
    """Find and read the settings.

    Raises:
        ConfigError: nothing was found, or what was found cannot be read.
    """
    if options.configuration is not None:
        if options.kubeconfig is not None or options.context is not None:
            raise ConfigError("give either configuration, or kubeconfig and context, not both")
        return LoadedConfig(options.configuration, None, "configuration")
    files, source = _find_files(options, environ)
    if not files:
        return await anyio.to_thread.run_sync(_from_account, environ)
    return await _from_files(files, options.context, source)


def _find_files(options: ConnectOptions, environ: Mapping[str, str]) -> tuple[list[Path], str]:
    """Return the kubeconfig files to use and how to name them; none for the pod's service account."""
    if options.kubeconfig is not None:
        path = Path(options.kubeconfig).expanduser()
        if not path.is_file():
            raise ConfigError(f"kubeconfig {path}: there is no such file")
        return [path], f"kubeconfig {path}"
    named = environ.get("KUBECONFIG", "")
    if named:
        paths = [Path(part).expanduser() for part in named.split(os.pathsep) if part]
        found = [path for path in paths if path.is_file()]
        if not found:
            raise ConfigError(f"KUBECONFIG names {named!r}, but there is no such file")
        return found, f"KUBECONFIG {named}"
    in_cluster = bool(environ.get("KUBERNETES_SERVICE_HOST"))
    if in_cluster and options.context is None and (_ACCOUNT / "token").is_file():
        return [], "service account"
    home = Path("~/.kube/config").expanduser()
    if home.is_file():
        return [home], f"kubeconfig {home}"
    raise ConfigError(
        "no way to the API server was found: ConnectOptions(kubeconfig=…) was not given, KUBECONFIG is not set, "
        + (
            f"the pod's service account has no token in {_ACCOUNT}"
            if in_cluster
            else "this process does not run in a pod (KUBERNETES_SERVICE_HOST is not set)"
        )
        + f", and there is no {home}"
    )


def _from_account(environ: Mapping[str, str]) -> LoadedConfig:
    try:
        settings, token = account_settings(_ACCOUNT, environ)
    except (OSError, ValueError) as error:
        raise ConfigError(f"the pod's service account cannot be used: {error}") from error
    return LoadedConfig(settings, Credentials.hooked(token, settings, by_expiry=False), "service account")


async def _from_files(paths: Sequence[Path], context: str | None, source: str) -> LoadedConfig:
    try:
        files = await anyio.to_thread.run_sync(KubeConfig, paths, context)
        user = files.user
        impersonation = Impersonation.of_user(user)
        if "exec" in user or "auth-provider" in user:
            configuration, loader = await _with_helper(paths, files.context)
            credentials = Credentials.hooked(loader, configuration, by_expiry="exec" in user)
            return LoadedConfig(configuration, credentials, source, impersonation)
        settings, token = await anyio.to_thread.run_sync(files.settings)
    except Exception as error:
        # A malformed file is met with all sorts of errors, also by kubernetes_asyncio: TypeError, KeyError, OSError …
        raise ConfigError(f"{source} cannot be used: {str(error) or repr(error)}") from error
    renewed = None if token is None else Credentials.hooked(token, settings, by_expiry=False)
    return LoadedConfig(settings, renewed, source, impersonation)


async def _with_helper(paths: Sequence[Path], context: str) -> tuple[Configuration, Any]:
    """Let kubernetes_asyncio run the user's exec plugin or auth provider; return what it fills, and its loader."""
    # The import takes 0.3 s, so nothing waits for it that does not need it.
    kube_config = await anyio.to_thread.run_sync(_kube_config_module)
    from kubernetes_asyncio.client import Configuration

    configuration = Configuration()
    merger = kube_config.KubeConfigMerger(os.pathsep.join(map(str, paths)))
    loader = kube_config.KubeConfigLoader(
        config_dict=merger.config,
        config_base_path=None,
        active_context=context,
        config_persister=merger.save_changes,
    )
    await loader.load_and_set(configuration)
    return configuration, loader


def _kube_config_module() -> Any:
    from kubernetes_asyncio.config import kube_config

    return kube_config
