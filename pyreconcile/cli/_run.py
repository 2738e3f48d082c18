"""``pyreconcile run``: bundled controllers as one manager process."""

from __future__ import annotations

import importlib.util
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
import structlog

from pyreconcile.api import ObjectMeta
from pyreconcile.cli import _logging

if TYPE_CHECKING:
    from pyreconcile.client import Client
    from pyreconcile.manager import LoopName, Manager, ManagerOptions
    from pyreconcile_controllers import Bundle

DEFAULT_NAMESPACE: Final = "pyreconcile-system"
"""Where the Lease is when the process runs outside a pod and nothing else is said."""

log = structlog.get_logger()


def _names(_: click.Context, __: click.Parameter, value: str) -> list[str]:
    from pyreconcile_controllers import BUNDLED, UnknownControllerError, check_names

    if value == "all":
        return sorted(BUNDLED)
    try:
        names = check_names(name.strip() for name in value.split(",") if name.strip())
    except UnknownControllerError as error:
        raise click.BadParameter(str(error)) from None
    if not names:
        raise click.BadParameter(f"name at least one of {', '.join(sorted(BUNDLED))}")
    return names


def _loop(_: click.Context, __: click.Parameter, value: str) -> str:
    if value == "uvloop" and importlib.util.find_spec("uvloop") is None:
        raise click.BadParameter("uvloop is not installed; 'pip install pyreconcile[uvloop]' does it")
    return value


_LOOPS = ("auto", "asyncio", "uvloop")
_LEVELS = ("debug", "info", "warning", "error")
_ADDRESS: dict[str, Any] = {"show_default": True, "metavar": "HOST:PORT", "help": "0 turns this server off."}
_SECONDS: dict[str, Any] = {"type": float, "show_default": True, "metavar": "SECONDS"}


@click.command()
@click.option("--controllers", "names", default="all", callback=_names, metavar="A,B", help="Which to run.")
@click.option("--install", is_flag=True, help="First apply the CRDs, and register this process's webhooks.")
@click.option("--kubeconfig", type=click.Path(exists=True, dir_okay=False), help="Else KUBECONFIG, in-cluster, home.")
@click.option("--namespace", "namespaces", multiple=True, metavar="NS", help="Watch only this namespace; may repeat.")
@click.option("--leader-elect/--no-leader-elect", default=True, show_default=True, help="Act only with the Lease.")
@click.option("--leader-election-id", default="pyreconcile", show_default=True, help="Name of the Lease.")
@click.option("--leader-election-namespace", help=f"Namespace of the Lease; else the pod's, or {DEFAULT_NAMESPACE}.")
@click.option("--leader-elect-lease-duration", default=15.0, **_SECONDS)
@click.option("--leader-elect-renew-deadline", default=10.0, **_SECONDS)
@click.option("--leader-elect-retry-period", default=2.0, **_SECONDS)
@click.option("--metrics-bind-address", default=":8080", **_ADDRESS)
@click.option(
    "--metrics-secure", is_flag=True, help="Serve metrics over TLS, with a made certificate if none is given."
)
@click.option("--metrics-cert-dir", metavar="DIR", help="Folder with tls.crt and tls.key for the metrics.")
@click.option("--metrics-authorization", is_flag=True, help="Ask the API server who may read the metrics.")
@click.option("--health-probe-bind-address", default=":8081", **_ADDRESS)
@click.option("--debug-bind-address", default="0", **_ADDRESS)
@click.option("--webhook-bind-address", default=":9443", **_ADDRESS)
@click.option("--webhook-cert-dir", metavar="DIR", help="Folder with tls.crt and tls.key for the webhooks.")
@click.option("--max-concurrent-reconciles", type=click.IntRange(1), default=4, show_default=True, metavar="N")
@click.option(
    "--loop", type=click.Choice(_LOOPS), default="auto", callback=_loop, show_default=True, help="Event loop."
)
@click.option("--log-level", type=click.Choice(_LEVELS), default="info", show_default=True)
@click.option("--log-format", type=click.Choice(["auto", "console", "json"]), default="auto", show_default=True)
def run(
    *,
    names: list[str],
    loop: LoopName,
    log_level: str,
    log_format: _logging.Format,
    **settings: Any,
) -> int:
    """Run bundled controllers until SIGTERM or SIGINT; a second one ends the process at once."""
    _logging.configure(level=log_level, log_format=log_format)
    from pyreconcile.client import ApiError, ConfigError
    from pyreconcile.crd import CRDNotServedError
    from pyreconcile.election import LeadershipLostError
    from pyreconcile.manager import run as run_on
    from pyreconcile_controllers import load

    try:
        options = _options(**settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    try:
        run_on(_main, load(names), options, settings["install"], loop=loop)
    except LeadershipLostError as error:
        raise click.ClickException(f"leadership was lost: {error}") from None
    except (ApiError, ConfigError, CRDNotServedError, OSError) as error:
        raise click.ClickException(str(error)) from None
    return 0


def _options(
    *,
    kubeconfig: str | None,
    namespaces: tuple[str, ...],
    leader_elect: bool,
    leader_election_id: str,
    leader_election_namespace: str | None,
    leader_elect_lease_duration: float,
    leader_elect_renew_deadline: float,
    leader_elect_retry_period: float,
    metrics_bind_address: str,
    metrics_secure: bool,
    metrics_cert_dir: str | None,
    metrics_authorization: bool,
    health_probe_bind_address: str,
    debug_bind_address: str,
    webhook_bind_address: str,
    webhook_cert_dir: str | None,
    max_concurrent_reconciles: int,
    install: bool,
) -> ManagerOptions:
    from pyreconcile.cache import CacheOptions
    from pyreconcile.certs import TLSOptions
    from pyreconcile.client import ConnectOptions
    from pyreconcile.election import ElectionOptions, own_namespace
    from pyreconcile.manager import ManagerOptions
    from pyreconcile.webhook import WebhookOptions

    election = None
    if leader_elect:
        election = ElectionOptions(
            name=leader_election_id,
            namespace=leader_election_namespace or own_namespace() or DEFAULT_NAMESPACE,
            lease_duration=leader_elect_lease_duration,
            renew_deadline=leader_elect_renew_deadline,
            retry_period=leader_elect_retry_period,
        )
    return ManagerOptions(
        connect=ConnectOptions(kubeconfig=kubeconfig),
        cache=CacheOptions(namespaces=namespaces),
        leader_election=election,
        metrics_bind_address=metrics_bind_address,
        metrics_tls=TLSOptions(cert_dir=metrics_cert_dir) if metrics_secure or metrics_cert_dir else None,
        metrics_authorization=metrics_authorization,
        health_probe_bind_address=health_probe_bind_address,
        debug_bind_address=debug_bind_address,
        webhook=None
        if webhook_bind_address in ("", "0")
        else WebhookOptions(bind_address=webhook_bind_address, cert_dir=webhook_cert_dir),
        max_concurrent_reconciles=max_concurrent_reconciles,
        handle_signals=True,
    )


async def _main(bundles: dict[str, Bundle], options: ManagerOptions, install: bool) -> None:
    from pyreconcile.crd import install_crds
    from pyreconcile.manager import Manager
    from pyreconcile.webhook import BundleInjector

    async with Manager(options) as manager:
        if install:
            client = manager.unfenced_client.live  # before the election, so that the kinds are there for all replicas
            await install_crds(client, [model for bundle in bundles.values() for model in bundle.MODELS])
            if options.leader_election is not None:
                await _ensure_namespace(client, options.leader_election.namespace)
        for bundle in bundles.values():
            bundle.setup(manager)
        if install and manager.webhooks is not None and manager.webhooks.paths:
            manager.before_leading(lambda: _install_webhooks(manager, bundles))
            manager.add(BundleInjector(manager.webhooks, lambda: _install_webhooks(manager, bundles)))
        log.info("starting", controllers=list(bundles))
        await manager.run()
    log.info("stopped")


async def _install_webhooks(manager: Manager, bundles: dict[str, Bundle]) -> None:
    from pyreconcile.webhook import install
    from pyreconcile_controllers import webhook_configurations

    assert manager.webhooks is not None
    for name, bundle in bundles.items():
        if configurations := webhook_configurations(bundle, manager.webhooks):
            await install(manager.client, configurations)
            log.info("webhooks_installed", controller=name, port=manager.webhooks.port)


async def _ensure_namespace(client: Client, name: str) -> None:
    from pyreconcile.api.core_v1 import Namespace
    from pyreconcile.client import AlreadyExistsError

    if await client.find(Namespace, name) is None:
        with suppress(AlreadyExistsError):
            await client.create(Namespace(metadata=ObjectMeta(name=name)))
