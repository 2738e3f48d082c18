"""Watches of nothing but metadata, and what predicates and selectors save (SR-11, SR-12)."""

from __future__ import annotations

from dataclasses import replace

import anyio
import pytest

from pyreconcile.api import CustomResource, PartialObjectMetadata, Spec, Status, metadata_only
from pyreconcile.api.core_v1 import ConfigMap, Secret
from pyreconcile.cache import KindOptions
from pyreconcile.controller import (
    Builder,
    ObjectReconciler,
    PredicateFuncs,
    Reconciler,
    Request,
    ResourceVersionChanged,
    Result,
    SyncReconciler,
)
from pyreconcile.manager import Manager
from pyreconcile.testing import eventually, running


class SizedSpec(Spec):
    size: int  # required: an object without a spec is no whole one


class Sized(CustomResource[SizedSpec, Status], group="labs.example.dev", version="v1"):
    """A test kind."""


async def nothing(request: Request) -> None: ...


def partial(raw, name, **more):
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", **raw(name, **more)}


@pytest.mark.looptime
async def test_sr_12_for_owns_and_watches_take_metadata_only(host, raw, run):
    seen: list[str] = []
    mapped: list[PartialObjectMetadata] = []

    def to_sized(secret: PartialObjectMetadata) -> list[Request]:
        mapped.append(secret)
        return [Request("ns", "mapped")]

    async def reconcile(request: Request) -> None:
        seen.append(request.name)

    controller = (
        Builder(host)
        .for_(Sized, metadata_only=True)
        .owns(ConfigMap, metadata_only=True, match_uid=True)
        .watches(Secret, to_sized, metadata_only=True, predicates=[ResourceVersionChanged()])
        .complete(reconcile)
    )
    assert controller.name == "sized"
    kinds = {metadata_only(kind) for kind in (Sized, ConfigMap, Secret)}
    owner = {"apiVersion": "labs.example.dev/v1", "kind": "Sized", "name": "owner", "uid": "u", "controller": True}
    host.cache.stored = {(metadata_only(Sized), "ns/owner"): partial(raw, "owner", uid="u")}
    async with run(controller):
        assert set(host.cache.informers) == kinds, "no informer of whole objects"
        host.cache.informers[metadata_only(Sized)].add(partial(raw, "itself"))
        host.cache.informers[metadata_only(ConfigMap)].add(partial(raw, "child", owners=[owner]))
        host.cache.informers[metadata_only(Secret)].add(partial(raw, "secret", labels={"a": "b"}))
        await anyio.sleep(1)
    assert sorted(seen) == ["itself", "mapped", "owner"]
    (secret,) = mapped
    assert isinstance(secret, PartialObjectMetadata)
    assert (secret.kind, secret.api_version, secret.metadata.labels) == ("Secret", "v1", {"a": "b"})


def test_sr_12_a_reconciler_of_whole_objects_is_refused_for_metadata(host):
    class Whole(ObjectReconciler[ConfigMap]):
        async def reconcile_object(self, obj: ConfigMap) -> Result | None:
            return None

    class Metadata(ObjectReconciler[PartialObjectMetadata]):
        async def reconcile_object(self, obj: PartialObjectMetadata) -> Result | None:
            return None

    with pytest.raises(TypeError, match=r"Whole wants whole objects.*ObjectReconciler\[PartialObjectMetadata\]"):
        Builder(host).for_(ConfigMap, metadata_only=True).complete(Whole())
    reconciler = Metadata()
    Builder(host).for_(ConfigMap, metadata_only=True).complete(reconciler)
    assert reconciler.kind is metadata_only(ConfigMap)
    whole = Whole()
    Builder(host).for_(ConfigMap).named("whole").complete(whole)
    assert whole.kind is ConfigMap


@pytest.mark.parametrize("base", [Reconciler, SyncReconciler])
def test_sr_13_requests_name_objects_and_nothing_else(host, raw, queue, base):
    """There is one type of request, so `for_` and `owns` suit every controller; a map function must return it too."""
    from pyreconcile.controller import CreateEvent, EnqueueMapped

    assert not hasattr(base, "request_type")
    with pytest.raises(TypeError, match=r"return Request\(namespace, name\)"):
        EnqueueMapped(lambda obj: [("ns", "a", "and more")]).create(CreateEvent(raw(), ConfigMap), queue)
    assert queue.adds == []


@pytest.mark.plane
@pytest.mark.rules("SR-12")
async def test_u_74_metadata_only_controllers_share_one_informer(manager, client, namespace):
    seen: dict[str, list[PartialObjectMetadata]] = {"first": [], "second": []}

    class Look(ObjectReconciler[PartialObjectMetadata]):
        def __init__(self, name: str) -> None:
            self.name = name

        async def reconcile_object(self, obj: PartialObjectMetadata) -> Result | None:
            if obj.metadata.labels.get("look"):
                seen[self.name].append(obj)
            return None

    for name in seen:
        Builder(manager).for_(ConfigMap, metadata_only=True).named(name).complete(Look(name))
    async with running(manager):
        key = f"{namespace}/a"
        config = ConfigMap(metadata={"namespace": namespace, "name": "a", "labels": {"look": "1"}}, data={"k": "v"})
        await client.create(config)
        await eventually(lambda: seen["first"] and seen["second"], what="both have seen it")
        (informer,) = manager.cache.informers
        assert informer.kind is metadata_only(ConfigMap)
        assert len(informer.registrations) == 2
        cached = manager.cache.get_raw(metadata_only(ConfigMap), key)
        assert cached is not None
        assert "data" not in cached
        read = await manager.client.get(metadata_only(ConfigMap), key)
        assert read.metadata.labels == {"look": "1"}
        assert len(manager.cache.informers) == 1
    assert {type(obj) for objs in seen.values() for obj in objs} == {metadata_only(ConfigMap)}


@pytest.mark.plane
async def test_sr_11_predicates_save_reconciles_and_no_memory_selectors_save_memory(manager_options, client, namespace):
    selected = KindOptions(labels="keep=yes")
    options = replace(manager_options, cache=replace(manager_options.cache, by_kind={Secret: selected}))
    reconciled: list[str] = []
    never = PredicateFuncs(
        create=lambda event: False, update=lambda event: False, delete=lambda event: False, generic=lambda event: False
    )

    async def reconcile(request: Request) -> None:
        reconciled.append(request.name)

    async with Manager(options) as manager:
        Builder(manager).for_(ConfigMap, predicates=[never]).complete(reconcile)
        Builder(manager).for_(Secret).complete(reconcile)
        async with running(manager):
            await client.create(ConfigMap(metadata={"namespace": namespace, "name": "dropped"}))
            await client.create(Secret(metadata={"namespace": namespace, "name": "not-selected"}))
            keep = {"namespace": namespace, "name": "selected", "labels": {"keep": "yes"}}
            await client.create(Secret(metadata=keep))

            async def there():
                return "selected" in reconciled and await manager.client.find(ConfigMap, f"{namespace}/dropped")

            await eventually(there)
            assert reconciled == ["selected"]
            assert manager.cache.get_raw(ConfigMap, f"{namespace}/dropped") is not None, "held all the same"
            assert manager.cache.get_raw(Secret, f"{namespace}/not-selected") is None
