"""CRDs and webhook configurations from files, with the webhooks of a test's own server in them (TE-5)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import anyio
import anyio.to_thread

from pyreconcile.api.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from pyreconcile.api.apiextensions_v1 import CustomResourceConversion, CustomResourceDefinition
from pyreconcile.client import AlreadyExistsError, Client, ConflictError, connect
from pyreconcile.crd import CRDNotServedError, wait_until_served
from pyreconcile.webhook import WebhookServer, client_config, conversion_config, install

from ._errors import ManifestError
from ._manifests import Manifest, read_manifests

__all__ = ["applied_webhooks", "apply_crds"]

_CRD_VERSION = "apiextensions.k8s.io/v1"
_WEBHOOK_VERSION = "admissionregistration.k8s.io/v1"
_Configuration: TypeAlias = MutatingWebhookConfiguration | ValidatingWebhookConfiguration
_WEBHOOK_KINDS: dict[str, type[_Configuration]] = {
    "MutatingWebhookConfiguration": MutatingWebhookConfiguration,
    "ValidatingWebhookConfiguration": ValidatingWebhookConfiguration,
}
_DELETE_SECONDS = 10.0
_CONFLICT_PAUSE = 0.1


async def _read(paths: Iterable[Path | str], api_version: str, *kinds: str) -> list[Manifest]:
    def read() -> list[Manifest]:
        return read_manifests(paths, api_version=api_version, kinds=kinds)

    return await anyio.to_thread.run_sync(read)


async def apply_crds(
    kubeconfig: Path,
    paths: Sequence[Path | str],
    *,
    server: WebhookServer | None,
    base_url: str | None,
    timeout: float,
) -> list[CustomResourceDefinition]:
    """Apply the CRDs and wait until they are served; see `ControlPlane.install_crds`."""
    manifests = await _read(paths, _CRD_VERSION, "CustomResourceDefinition")
    crds = [_parsed(manifest, server, base_url) for manifest in manifests]
    async with connect(kubeconfig=kubeconfig) as client:
        for manifest, crd in zip(manifests, crds, strict=True):
            with manifest.named_in_errors():
                await client.apply(crd)
        try:
            return await wait_until_served(client, [crd.metadata.name for crd in crds], timeout=timeout)
        except CRDNotServedError as error:
            sources = "; ".join(manifest.source for manifest in manifests if manifest.name in str(error))
            raise ManifestError(f"{sources}: {error}") from error


def _parsed(manifest: Manifest, server: WebhookServer | None, base_url: str | None) -> CustomResourceDefinition:
    with manifest.named_in_errors():
        crd = CustomResourceDefinition.from_dict(manifest.raw)
        if server is not None and server.converts(crd.spec.group, crd.spec.names.kind):
            config = conversion_config(server, base_url=_local(server, base_url))
            crd.spec.conversion = CustomResourceConversion.model_validate(config)
    return crd


@asynccontextmanager
async def applied_webhooks(
    kubeconfig: Path, paths: Sequence[Path | str], *, server: WebhookServer, base_url: str | None
) -> AsyncIterator[None]:
    """Have webhook configurations with our server in each while the block runs; see `ControlPlane.webhooks`."""
    manifests = await _read(paths, _WEBHOOK_VERSION, *_WEBHOOK_KINDS)
    for manifest in manifests:
        _point_at(manifest, server, _local(server, base_url))
    applied: list[tuple[Manifest, _Configuration | None]] = []
    try:
        async with connect(kubeconfig=kubeconfig) as client:
            for manifest in manifests:
                former = await client.find(_WEBHOOK_KINDS[manifest.raw["kind"]], manifest.name)
                # Before, as a request that is cut short may have been carried out.
                applied.append((manifest, former))
                with manifest.named_in_errors():
                    await install(client, [manifest.raw])
        yield
    finally:
        with anyio.move_on_after(_DELETE_SECONDS, shield=True):
            async with connect(kubeconfig=kubeconfig) as client:
                for manifest, former in applied:
                    if former is None:
                        await client.delete(_WEBHOOK_KINDS[manifest.raw["kind"]], manifest.name, missing_ok=True)
                    else:
                        await _put_back(client, former)


async def _put_back(client: Client, former: _Configuration) -> None:
    """Have a configuration as it was, which may be one that a real webhook needs."""
    while True:
        current = await client.find(type(former), former.metadata.name)
        raw = former.to_dict()
        for field in ("managedFields", "resourceVersion", "uid", "generation", "creationTimestamp"):
            raw["metadata"].pop(field, None)
        if current is not None:
            raw["metadata"]["resourceVersion"] = current.metadata.resource_version
        again = type(former).from_dict(raw)
        try:
            await (client.create(again) if current is None else client.update(again))
        except (AlreadyExistsError, ConflictError):
            await anyio.sleep(_CONFLICT_PAUSE)
        else:
            return


def _point_at(manifest: Manifest, server: WebhookServer, base_url: str) -> None:
    with manifest.named_in_errors():
        _WEBHOOK_KINDS[manifest.raw["kind"]].from_dict(manifest.raw)  # names the field that is wrong
        for number, webhook in enumerate(manifest.raw.get("webhooks") or []):
            path = _path(webhook["clientConfig"], f"webhooks[{number}].clientConfig")
            webhook["clientConfig"] = client_config(server, path, base_url=base_url)


def _local(server: WebhookServer, base_url: str | None) -> str:
    """Past the Service that the server's options may name for real clusters."""
    return base_url or f"https://127.0.0.1:{server.port}"


def _path(config: dict[str, Any], field: str) -> str:
    path = (config.get("service") or {}).get("path") or urlsplit(config.get("url") or "").path
    if not path:
        raise ValueError(f"{field} names no path, neither in service.path nor in url")
    return str(path)
