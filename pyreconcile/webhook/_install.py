"""Registration: the webhook configurations that make the API server call us."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import anyio
import structlog
from anyio.abc import TaskStatus

from pyreconcile.api import KubeObject, RawObject, unstructured
from pyreconcile.client import InvalidError, JsonPatch
from pyreconcile.webhook._options import (
    CONVERSION_PATH,
    Operation,
    ServiceReference,
    mutating_path,
    rule_for,
    validating_path,
)
from pyreconcile.webhook._server import WebhookServer

if TYPE_CHECKING:
    from pyreconcile.client import Client

_RETRY = 10.0  # seconds between two tries to inject a CA bundle

_log = structlog.get_logger()

_API_VERSION = "admissionregistration.k8s.io/v1"
_MUTATING = unstructured(_API_VERSION, "MutatingWebhookConfiguration", namespaced=False)
_VALIDATING = unstructured(_API_VERSION, "ValidatingWebhookConfiguration", namespaced=False)
_KINDS = {
    "MutatingWebhookConfiguration": _MUTATING,
    "ValidatingWebhookConfiguration": _VALIDATING,
    "ValidatingAdmissionPolicy": unstructured(
        _API_VERSION, "ValidatingAdmissionPolicy", plural="validatingadmissionpolicies", namespaced=False
    ),
    "ValidatingAdmissionPolicyBinding": unstructured(
        _API_VERSION, "ValidatingAdmissionPolicyBinding", namespaced=False
    ),
}
_CRD = unstructured("apiextensions.k8s.io/v1", "CustomResourceDefinition", namespaced=False)

CONVERSION_MANAGER = "pyreconcile-conversion"
"""Field manager of ``spec.conversion``, so that whoever applies the rest of a CRD does not take it away."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionWebhook:
    """When the API server is to ask one webhook.

    Args:
        name: fully qualified name; users read it in refusals.
        stage: ``mutating`` or ``validating``.
        kind: the kind whose resource the rule names.
        operations: what is asked about.
        path: path at the server; by default the kind's own (rule WH-2).
        object_selector, namespace_selector: label selectors in wire form; default everything.
        failure_policy: ``Fail`` refuses the request when the webhook cannot be reached, ``Ignore`` admits it.
        sub_resource: name of a sub-resource to be asked about instead of the object itself.
        timeout: seconds that the API server waits, 1 to 30.
        match_conditions: CEL conditions in wire form, for all of which the webhook is asked.
    """

    name: str
    stage: Literal["mutating", "validating"]
    kind: type[KubeObject]
    operations: Sequence[Operation] = ("CREATE", "UPDATE")
    path: str | None = None
    object_selector: Mapping[str, Any] | None = None
    namespace_selector: Mapping[str, Any] | None = None
    failure_policy: Literal["Fail", "Ignore"] = "Fail"
    sub_resource: str = ""
    timeout: int = 10
    match_conditions: Sequence[Mapping[str, str]] = ()

    def __post_init__(self) -> None:
        if self.name.count(".") < 2:
            raise ValueError(f"webhook name {self.name!r} needs three segments at least, as in 'vwidget.labs.example'")
        if not 1 <= self.timeout <= 30:
            raise ValueError(f"timeout of webhook {self.name!r} must be 1 to 30 s, not {self.timeout}")

    @property
    def served_path(self) -> str:
        """The path at the server."""
        return self.path or (mutating_path(self.kind) if self.stage == "mutating" else validating_path(self.kind))


def webhook_configurations(
    server: WebhookServer,
    webhooks: Iterable[AdmissionWebhook],
    *,
    mutating_name: str,
    validating_name: str,
    base_url: str | None = None,
) -> list[RawObject]:
    """Build the MutatingWebhookConfiguration and the ValidatingWebhookConfiguration for webhooks of a server.

    A configuration without webhooks is left out. The API server is told to dial, in this order: ``base_url``
    (``https://host:port``), the Service of the server's options, or ``https://127.0.0.1:port`` of the running server,
    which suits a manager on the API server's own machine.

    Raises:
        ValueError: a webhook's path is not registered at the server, or ``base_url`` is not https.
        RuntimeError: neither ``base_url`` nor a Service is given and the server does not listen yet.
    """
    base_url = _base_url(server, base_url)
    by_stage: dict[str, list[RawObject]] = {"mutating": [], "validating": []}
    for webhook in webhooks:
        path = webhook.served_path
        if path not in server.paths:
            raise ValueError(f"webhook {webhook.name!r} names path {path}, which is not registered at the server")
        where = _client_config(path, base_url, server.options.service, server.ca_bundle)
        by_stage[webhook.stage].append(_entry(webhook, where))
    names = {"mutating": (_MUTATING, mutating_name), "validating": (_VALIDATING, validating_name)}
    return [
        {
            "apiVersion": _API_VERSION,
            "kind": names[stage][0].resource.kind,
            "metadata": {"name": names[stage][1]},
            "webhooks": entries,
        }
        for stage, entries in by_stage.items()
        if entries
    ]


def client_config(server: WebhookServer, path: str, *, base_url: str | None = None) -> RawObject:
    """Return the ``clientConfig`` with which the API server reaches a path of ``server``: where, and with which CA.

    It is told to dial as `webhook_configurations` says. Wanted for configurations that come from elsewhere, as from
    files.

    Raises:
        ValueError: nothing is registered at the path, or ``base_url`` is not https.
        RuntimeError: neither ``base_url`` nor a Service is given and the server does not listen yet.
    """
    if path not in server.paths:
        known = ", ".join(server.paths) or "none"
        raise ValueError(f"path {path!r} is not registered at the webhook server; registered are: {known}")
    return _client_config(path, _base_url(server, base_url), server.options.service, server.ca_bundle)


async def install(client: Client, configurations: Iterable[RawObject]) -> None:
    """Apply webhook configurations and policies (server-side apply, forced); what is in place already is not written.

    A webhook of the same name that somebody else registered with a Service is redirected to a URL, and the other way
    round. Webhooks of other names in the same configuration stay.

    Raises:
        pyreconcile.client.ApiError: the API server refuses one.
    """
    for raw in configurations:
        await _apply(client, _KINDS[raw["kind"]].from_dict(raw))


def conversion_config(server: WebhookServer, *, base_url: str | None = None) -> RawObject:
    """Return ``spec.conversion`` of a CRD whose versions ``server`` converts, for ``crd_for(…, conversion=…)``.

    The API server is told to dial as `webhook_configurations` says.

    Raises:
        ValueError: no conversions are registered at the server, or ``base_url`` is not https.
        RuntimeError: neither ``base_url`` nor a Service is given and the server does not listen yet.
    """
    if CONVERSION_PATH not in server.paths:
        raise ValueError("no conversions are registered at the server: call add_conversion before")
    where = client_config(server, CONVERSION_PATH, base_url=base_url)
    return {
        "strategy": "Webhook",
        "webhook": {"clientConfig": where, "conversionReviewVersions": ["v1"]},
    }


async def install_conversion(
    client: Client, server: WebhookServer, *kinds: type[KubeObject], base_url: str | None = None
) -> None:
    """Have the CRDs of ``kinds``, which are there, convert by ``server``; one that does so already is not written.

    Only ``spec.conversion`` is applied (server-side apply, forced, with a field manager of its own), so CRDs may come
    from elsewhere: from `pyreconcile.crd.install_crds`, kubectl or Helm.

    Raises:
        ValueError, RuntimeError: as `conversion_config` does.
        pyreconcile.client.NotFoundError: a CRD is not there.
        pyreconcile.client.ApiError: the API server refuses.
    """
    config = conversion_config(server, base_url=base_url)
    for name in dict.fromkeys(f"{kind.resource.plural}.{kind.resource.group}" for kind in kinds):
        await client.live.get(_CRD, name)  # apply would try to make one, and say less clearly what is missing
        crd = _CRD.from_dict({"metadata": {"name": name}, "spec": {"conversion": config}})
        await _apply(client.live, crd, field_manager=CONVERSION_MANAGER)


class BundleInjector:
    """Installs anew whatever carries the server's CA each time that changes (rule WH-10). The manager runs it.

    A CA changes when ``ca.crt`` does, and, if this process made it, once in nine years. A failed installation is tried
    again every 10 s.

    Args:
        server: its CA is watched.
        install: writes what carries it, such as by `install` and `install_conversion`.
    """

    name = "CA bundle injector"
    needs_leader_election = True

    def __init__(self, server: WebhookServer, install: Callable[[], Awaitable[object]]) -> None:
        self._server = server
        self._install = install
        self._changed = anyio.Event()

    async def run(self, stop: anyio.Event, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Install at each change, until ``stop`` is set. What was there at the start is taken as installed."""
        self._server.certificates.on_change(lambda: self._changed.set())
        task_status.started()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._follow)
            await stop.wait()
            tasks.cancel_scope.cancel()

    async def _follow(self) -> None:
        while True:
            await self._changed.wait()
            self._changed = anyio.Event()
            try:
                await self._install()
                _log.info("ca_bundle_injected")
            except Exception as error:
                _log.warning("ca_bundle_not_injected", error=repr(error), retry_in=_RETRY)
                await anyio.sleep(_RETRY)
                self._changed.set()


async def _apply(client: Client, wanted: KubeObject, *, field_manager: str | None = None) -> None:
    """Apply what carries client configurations, also where another manager says to dial otherwise.

    Apply adds ``url`` to another's ``service``, and the server takes exactly one: so the other goes first.
    """
    try:
        await client.apply(wanted, field_manager=field_manager)
    except InvalidError:
        found = await client.live.find(type(wanted), wanted.key)
        operations = [] if found is None else _redirections(found.to_dict(), wanted.to_dict())
        if found is None or not operations:
            raise
        _log.info("webhooks_redirected", kind=wanted.resource.kind, name=found.metadata.name)
        await client.patch(found, JsonPatch(operations))
        await client.apply(wanted, field_manager=field_manager)


def _redirections(found: RawObject, wanted: RawObject) -> list[RawObject]:
    """Return the JSON patch that replaces each client configuration which dials a Service instead of a URL, or back."""
    operations: list[RawObject] = []
    targets = {name: config for name, (_, config) in _client_configs(wanted).items()}
    for name, (path, config) in _client_configs(found).items():
        target = targets.get(name)
        if target is not None and ("url" in target) is not ("url" in config):
            operations.append({"op": "test", "path": path, "value": config})
            operations.append({"op": "replace", "path": path, "value": target})
    return operations


def _client_configs(raw: RawObject) -> dict[str, tuple[str, RawObject]]:
    """Return path and value of each client configuration in an object, by the name of its webhook."""
    spec = raw.get("spec") or {}
    conversion = (spec.get("conversion") or {}).get("webhook") or {}
    found = {"": ("/spec/conversion/webhook/clientConfig", conversion.get("clientConfig"))}
    for index, entry in enumerate(raw.get("webhooks") or ()):
        found[entry["name"]] = (f"/webhooks/{index}/clientConfig", entry.get("clientConfig"))
    return {name: (path, config) for name, (path, config) in found.items() if config is not None}


def _base_url(server: WebhookServer, base_url: str | None) -> str | None:
    if base_url is not None and not base_url.startswith("https://"):
        raise ValueError(f"base_url {base_url!r} must start with https://: the API server speaks TLS only")
    if base_url is None and server.options.service is None:
        return f"https://127.0.0.1:{server.port}"
    return base_url


def _entry(webhook: AdmissionWebhook, client_config: RawObject) -> RawObject:
    entry: RawObject = {
        "name": webhook.name,
        "clientConfig": client_config,
        "rules": [rule_for(webhook.kind, webhook.operations, sub_resource=webhook.sub_resource)],
        "admissionReviewVersions": ["v1"],
        "failurePolicy": webhook.failure_policy,
        "sideEffects": "None",
        "timeoutSeconds": webhook.timeout,
    }
    if webhook.object_selector is not None:
        entry["objectSelector"] = dict(webhook.object_selector)
    if webhook.namespace_selector is not None:
        entry["namespaceSelector"] = dict(webhook.namespace_selector)
    if webhook.match_conditions:
        entry["matchConditions"] = [dict(condition) for condition in webhook.match_conditions]
    return entry


def _client_config(path: str, base_url: str | None, service: ServiceReference | None, ca_bundle: bytes) -> RawObject:
    config: RawObject = {}
    if base_url is not None:
        config["url"] = base_url.rstrip("/") + path
    elif service is not None:
        config["service"] = {
            "namespace": service.namespace,
            "name": service.name,
            "port": service.port,
            "path": path,
        }
    if ca_bundle:
        config["caBundle"] = b64encode(ca_bundle).decode("ascii")
    return config
