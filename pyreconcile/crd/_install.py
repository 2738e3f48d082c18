"""Applying CRDs to a server, and waiting until it serves them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import anyio
import orjson

from pyreconcile.api import CustomResource, RawObject
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.crd._crd import crd_for

if TYPE_CHECKING:
    from pyreconcile.client import Client

_POLL_SECONDS = 0.05
_WATCH_SECONDS = 5.0


class CRDNotServedError(TimeoutError):
    """A CRD was applied, but the server did not serve it in time; the message names it and what is missing."""


async def install_crds(
    client: Client,
    models: Iterable[type[CustomResource[Any, Any]] | RawObject],
    *,
    timeout: float = 30.0,
) -> list[CustomResourceDefinition]:
    """Apply CRDs with server-side apply and wait until the server serves every version of them, watches too.

    A CRD that is already as it should be stays at its resource version. On cancellation, what was applied stays.

    Args:
        client: reads and writes go to the server, past a cache.
        models: custom resource classes, those of one kind together become one CRD; or CRDs as `crd_for` gives them.
        timeout: seconds that all of them together may take.

    Returns:
        The CRDs as the server has them.

    Raises:
        SchemaError: a model cannot become a CRD.
        InvalidError: the server refuses a CRD.
        CRDNotServedError: a CRD is not established, or discovery does not list it, in time.
    """
    objects = [CustomResourceDefinition.from_dict(raw) for raw in _objects(models)]
    missing = {crd.metadata.name: "it was not applied" for crd in objects}
    with _naming(missing, timeout):
        for crd in objects:
            await client.live.apply(crd)
            missing[crd.metadata.name] = "no condition Established"
        return [await _served(client, crd.metadata.name, missing) for crd in objects]


async def wait_until_served(
    client: Client, names: Iterable[str], *, timeout: float = 30.0
) -> list[CustomResourceDefinition]:
    """Wait until the server serves every version of CRDs that somebody applied, watches too.

    Args:
        client: reads go to the server, past a cache.
        names: names of CRDs, as in ``widgets.example.dev``.
        timeout: seconds that all of them together may take.

    Returns:
        The CRDs as the server has them.

    Raises:
        CRDNotServedError: a CRD is not there, not established, or discovery does not list it, in time.
    """
    missing = dict.fromkeys(names, "it was not looked at")
    with _naming(missing, timeout):
        return [await _served(client, name, missing) for name in tuple(missing)]


@contextmanager
def _naming(missing: dict[str, str], timeout: float) -> Iterator[None]:
    """Bound the time, and say at its end what is missing."""
    try:
        with anyio.fail_after(timeout):
            yield
    except TimeoutError as error:
        left = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
        raise CRDNotServedError(f"after {timeout:g} s the server does not serve {left}") from error


def _objects(models: Iterable[type[CustomResource[Any, Any]] | RawObject]) -> list[RawObject]:
    objects: list[RawObject] = []
    kinds: dict[tuple[str, str], list[type[CustomResource[Any, Any]]]] = {}
    for model in models:
        if isinstance(model, dict):
            objects.append(model)
        else:
            kinds.setdefault((model.resource.group, model.resource.kind), []).append(model)
    return objects + [crd_for(*versions) for versions in kinds.values()]


async def _served(client: Client, name: str, missing: dict[str, str]) -> CustomResourceDefinition:
    """Poll until the CRD is established and discovery lists all its served versions; note what is missing so far."""
    while True:
        crd = await client.live.find(CustomResourceDefinition, name)
        reason = "it is not there" if crd is None else await _lacking(client, crd)
        if crd is not None and not reason:
            missing.pop(name, None)  # the same CRD may be given twice
            return crd
        missing[name] = reason
        await anyio.sleep(_POLL_SECONDS)


async def _lacking(client: Client, crd: CustomResourceDefinition) -> str:
    return _not_established(crd) or await _undiscovered(client, crd) or await _unwatchable(client, crd)


def _not_established(crd: CustomResourceDefinition) -> str:
    conditions = (crd.status.conditions if crd.status else None) or []
    for condition in conditions:
        refused = condition.type == "NamesAccepted" and condition.status == "False"
        if refused or (condition.type in ("NonStructuralSchema", "Terminating") and condition.status == "True"):
            return f"{condition.type}={condition.status}: {condition.message or condition.reason}"
    established = next((item for item in conditions if item.type == "Established"), None)
    if established is None:
        return "no condition Established"
    if established.status != "True":
        return f"Established={established.status}: {established.message or established.reason}"
    return ""


async def _undiscovered(client: Client, crd: CustomResourceDefinition) -> str:
    from pyreconcile.client import NotFoundError

    for version in crd.spec.versions:
        if not version.served:
            continue
        path = f"/apis/{crd.spec.group}/{version.name}"
        try:
            listed = orjson.loads(await client.transport.request("GET", path))
        except NotFoundError:
            return f"{path} is not served yet"
        if all(entry["name"] != crd.spec.names.plural for entry in listed["resources"]):
            return f"{path} does not list {crd.spec.names.plural} yet"
    return ""


async def _unwatchable(client: Client, crd: CustomResourceDefinition) -> str:
    """Open a watch of each version: for a moment after discovery lists a kind its storage is still being set up."""
    from pyreconcile.client import ForbiddenError, NotFoundError, TooManyRequestsError

    for version in crd.spec.versions:
        if not version.served:
            continue
        path = f"/apis/{crd.spec.group}/{version.name}/{crd.spec.names.plural}"
        query = {"watch": "true", "timeoutSeconds": "1"}
        try:
            async with client.transport.stream(path, query=query, idle_timeout=_WATCH_SECONDS):
                pass
        except (NotFoundError, TooManyRequestsError) as error:
            return f"{path} cannot be watched yet: {error}"
        except ForbiddenError:
            pass  # whoever applies CRDs need not have the right to read their objects
    return ""
