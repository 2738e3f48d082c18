"""Keeps the certificate of the webhooks: in its Secret, in the server, and its CA in the webhook configurations.

What upstream's manager does with a mounted Secret is done here with the Secret itself, read through the API: nothing
waits for a kubelet to refresh the mount, and replicas take up a new certificate as soon as one of them has written it.
Every replica does all of it; the API server's conflicts decide who writes.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import structlog

from pyreconcile.api import KubeObject, unstructured
from pyreconcile.api.core_v1 import Secret
from pyreconcile.cache import KindOptions
from pyreconcile.certs import KeyPair
from pyreconcile.client import Client, NotFoundError, retry_on_conflict
from pyreconcile.controller import Builder, ControllerOptions, Reconciler, Request, Result
from pyreconcile_controllers.leaderworkerset.webhook import MUTATING_CONFIGURATION, VALIDATING_CONFIGURATION
from pyreconcile_controllers.lws_manager.certificates import CA_CERTIFICATE, CERTIFICATE, KEY, renewed, trusted
from pyreconcile_controllers.lws_manager.options import CertificatePlace

if TYPE_CHECKING:
    from pyreconcile.manager import Manager

CHECK_EVERY: Final = 12 * 3600.0
"""Seconds between two looks at the certificate's end (LWS §11)."""

_API: Final = "admissionregistration.k8s.io/v1"
_MUTATING: Final = unstructured(_API, "MutatingWebhookConfiguration", namespaced=False)
_VALIDATING: Final = unstructured(_API, "ValidatingWebhookConfiguration", namespaced=False)
CONFIGURATIONS: Final = ((_MUTATING, MUTATING_CONFIGURATION), (_VALIDATING, VALIDATING_CONFIGURATION))
"""What tells the API server of the webhooks; upstream's manifests have both under these names."""

log = structlog.get_logger()


class CertificateMissingError(OSError):
    """The Secret of the certificate is not there, and only manifests may make it."""


class SecretCertificate:
    """A `pyreconcile.certs.CertificateSource`: the pair that was last seen in the Secret."""

    files: Sequence[Path] = ()

    def __init__(self) -> None:
        self._pair: KeyPair | None = None
        self._bundle = b""

    @property
    def ca_bundle(self) -> bytes:
        """The CA's certificate."""
        return self._bundle

    def take(self, data: dict[str, bytes]) -> None:
        """Serve the pair in the Secret's content from the next read on."""
        self._pair, self._bundle = KeyPair(data[CERTIFICATE], data[KEY]), data[CA_CERTIFICATE]

    def read(self) -> KeyPair:
        """Return the pair.

        Raises:
            CertificateMissingError: none was seen yet.
        """
        if self._pair is None:
            raise CertificateMissingError("the webhooks' certificate was not read from its Secret yet")
        return self._pair


class Rotation:
    """Makes and renews the certificate, and tells the API server whom to trust.

    Args:
        client: reads and writes; not fenced by an election, since every replica serves webhooks.
        place: where the certificate is kept, and for which Service.
        source: is given each certificate.
        configurations: kind and name of what names the CA.
        now: the time of day.
    """

    def __init__(
        self,
        client: Client,
        place: CertificatePlace,
        source: SecretCertificate,
        *,
        configurations: Sequence[tuple[type[KubeObject], str]] = CONFIGURATIONS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._client = client.live
        self._place = place
        self._source = source
        self.configurations = configurations
        self._now = now

    async def ensure(self) -> None:
        """Bring everything in place; what is so already is not written.

        Raises:
            CertificateMissingError: there is no Secret.
            pyreconcile.client.ApiError: the API server refuses something.
        """
        data = await retry_on_conflict(self._content)
        # First the API server's trust, then the certificate: until it serves, the former one is still trusted.
        for kind, name in self.configurations:
            await retry_on_conflict(lambda kind=kind, name=name: self._inject(kind, name, data))  # type: ignore[misc]
        self._source.take(data)

    async def _content(self) -> dict[str, bytes]:
        key = f"{self._place.namespace}/{self._place.secret}"
        try:
            secret = await self._client.get(Secret, key)
        except NotFoundError as error:
            raise CertificateMissingError(
                f"Secret {key} is not there: apply the manifests, which have it without content, or set "
                "internalCertManagement.enable: false and mount a certificate at webhook.certDir"
            ) from error
        data = {name: _decoded(value) for name, value in (secret.data or {}).items()}
        content = renewed(data, self._place.host, self._now())
        if content is None:
            return data
        data |= content
        secret.data = {name: b64encode(value).decode() for name, value in data.items()}
        await self._client.update(secret)
        log.info("certificate_made", secret=key, host=self._place.host)
        return data

    async def _inject(self, kind: type[KubeObject], name: str, data: dict[str, bytes]) -> None:
        found = await self._client.find(kind, name)
        if found is None:
            log.warning("webhook_configuration_missing", kind=kind.resource.kind, name=name)
            return
        raw = found.to_dict()
        changed = False
        for webhook in raw.get("webhooks") or ():
            where: dict[str, Any] = webhook.setdefault("clientConfig", {})
            bundle = b64encode(trusted(data, _decoded(where.get("caBundle")), self._now())).decode()
            changed |= where.get("caBundle") != bundle
            where["caBundle"] = bundle
        if changed:
            # An update, because upstream's role allows no patch.
            await self._client.update(kind.from_dict(raw))
            log.info("ca_bundle_injected", kind=kind.resource.kind, name=name)


class RotationReconciler(Reconciler[Secret]):
    """Brings everything in place when the Secret or a configuration changed, and twice a day."""

    def __init__(self, rotation: Rotation, taken: Callable[[], Any]) -> None:
        """Use ``rotation``; ``taken`` is awaited after each certificate that it took."""
        self._rotation = rotation
        self._taken = taken

    async def reconcile(self, request: Request) -> Result | None:
        """Bring everything in place."""
        await self._rotation.ensure()
        await self._taken()
        return Result(requeue_after=CHECK_EVERY)


def secret_options(place: CertificatePlace) -> KindOptions:
    """Return what to cache of Secrets: the one of the certificate, of no namespace but its own."""
    return KindOptions(namespaces=(place.namespace,), fields=f"metadata.name={place.secret}")


def add_rotation(manager: Manager, rotation: Rotation, place: CertificatePlace) -> None:
    """Register the controller ``cert-rotator``, which runs on every replica. The manager serves webhooks."""
    assert manager.webhooks is not None
    request = Request(place.namespace, place.secret)
    builder = Builder(manager).named("cert-rotator").with_options(ControllerOptions(needs_leader_election=False))
    builder.watches(Secret, lambda _: [request], metadata_only=True)
    for kind, name in rotation.configurations:
        builder.watches(kind, _only(name, request), metadata_only=True)
    builder.complete(RotationReconciler(rotation, manager.webhooks.certificates.reload))


def _only(name: str, request: Request) -> Callable[[KubeObject], list[Request]]:
    return lambda obj: [request] if obj.metadata.name == name else []


def _decoded(text: str | None) -> bytes:
    try:
        return b64decode(text or "", validate=True)
    except ValueError:
        return b""
