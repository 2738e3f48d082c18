"""The second part of the suite that runs on the fake and on a real API server: apply, and custom resources."""

from contextlib import aclosing

import anyio
import pytest
from pydantic import Field

from pyreconcile import CustomResource, Spec, Status
from pyreconcile.api import Items, Model, ScaleSubresource, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap, Service
from pyreconcile.client import (
    BadRequestError,
    ConflictError,
    InvalidError,
    MergePatch,
    NotFoundError,
    StrategicMergePatch,
    UnsupportedMediaTypeError,
)
from pyreconcile.crd import install_crds, list_type

pytestmark = pytest.mark.rules("U-69", "TE-10")


class Part(Model):
    name: str
    size: int | None = None
    colour: str | None = None


class WidgetSpec(Spec):
    replicas: int | None = None
    parts: Items[Part] = Field(default_factory=list, json_schema_extra=list_type("map", keys=["name"]))
    tags: Items[str] = Field(default_factory=list, json_schema_extra=list_type("set"))
    steps: Items[str] = Field(default_factory=list)
    options: dict[str, str] | None = None


class WidgetStatus(Status):
    replicas: int | None = None
    selector: str | None = None


class Widget(
    CustomResource[WidgetSpec, WidgetStatus],
    group="fake.tests.dev",
    version="v1",
    scale=ScaleSubresource(label_selector_path=".status.selector"),
):
    """Something with every kind of list."""


class Plain(CustomResource[WidgetSpec, WidgetStatus], group="fake.tests.dev", version="v1", status_subresource=False):
    """A kind whose status is part of the object."""


def owned(obj, manager, subresource=""):
    """What a manager owns through apply."""
    for entry in obj.metadata.managed_fields or ():
        if (entry["manager"], entry["operation"], entry.get("subresource", "")) == (manager, "Apply", subresource):
            return entry["fieldsV1"]
    return None


def config_map(api, *, labels=None, **data):
    metadata = {"name": "x", "namespace": api.namespace}
    return ConfigMap(metadata={**metadata, "labels": labels} if labels else metadata, data=data)


def as_manager(api, name):
    return api.client.with_options(field_manager=name)


# -- apply -------------------------------------------------------------------------------------------------------------


async def test_te_10_apply_creates_changes_and_removes(api):
    client = as_manager(api, "a")
    created = await client.apply(config_map(api, labels={"app": "x"}, a="1", b="2"))
    assert created.metadata.uid
    assert owned(created, "a") == {
        "f:data": {"f:a": {}, "f:b": {}},
        "f:metadata": {"f:labels": {"f:app": {}}},
    }
    changed = await client.apply(config_map(api, a="3", c="4"))
    assert (changed.data, changed.metadata.labels) == ({"a": "3", "c": "4"}, {})
    again = await client.apply(config_map(api, a="3", c="4"))
    assert again.metadata.resource_version == changed.metadata.resource_version


async def test_te_10_fields_of_others_stay_and_conflict_unless_forced(api):
    mine, other = as_manager(api, "mine"), as_manager(api, "other")
    await mine.apply(config_map(api, a="1", b="1"))
    shared = await other.apply(config_map(api, b="1", c="1"), force=False)
    assert shared.data == {"a": "1", "b": "1", "c": "1"}
    with pytest.raises(ConflictError) as caught:
        await other.apply(config_map(api, a="2", b="2"), force=False)
    assert str(caught.value) == 'Apply failed with 2 conflicts: conflicts with "mine":\n- .data.a\n- .data.b'
    assert [(cause.reason, cause.field) for cause in caught.value.causes] == [
        ("FieldManagerConflict", ".data.a"),
        ("FieldManagerConflict", ".data.b"),
    ]
    taken = await other.apply(config_map(api, a="2", b="2"))
    assert taken.data == {"a": "2", "b": "2"}
    assert owned(taken, "mine") is None
    assert owned(taken, "other") == {"f:data": {"f:a": {}, "f:b": {}}}


async def test_te_10_what_two_own_stays_until_both_let_go(api):
    mine, other = as_manager(api, "mine"), as_manager(api, "other")
    await mine.apply(config_map(api, a="1", b="1"))
    await other.apply(config_map(api, a="1"))
    assert (await mine.apply(config_map(api, b="1"))).data == {"a": "1", "b": "1"}
    assert (await other.apply(config_map(api, labels={"a": "b"}))).data == {"b": "1"}


async def test_te_10_an_update_takes_fields_over(api):
    mine = as_manager(api, "mine")
    await mine.apply(config_map(api, a="1", b="1"))
    patched = await as_manager(api, "other").patch(config_map(api), MergePatch({"data": {"a": "2"}}))
    assert owned(patched, "mine") == {"f:data": {"f:b": {}}}
    with pytest.raises(
        ConflictError, match=r'^Apply failed with 1 conflict: conflict with "other" using v1: \.data\.a$'
    ):
        await mine.apply(config_map(api, a="1", b="1"), force=False)
    assert (await mine.apply(config_map(api, a="1", b="1"))).data == {"a": "1", "b": "1"}


async def test_te_10_lists_of_built_in_kinds_merge_by_their_keys(api):
    mine, other = as_manager(api, "mine"), as_manager(api, "other")
    labels = {"app": "web"}

    def deployment(*containers, finalizers=()):
        template = {"metadata": {"labels": labels}, "spec": {"containers": list(containers)}}
        spec = {"replicas": 0, "paused": True, "selector": {"matchLabels": labels}, "template": template}
        metadata = {"name": "web", "namespace": api.namespace}
        return Deployment(metadata={**metadata, "finalizers": list(finalizers)} if finalizers else metadata, spec=spec)

    env = [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}]
    first = {"name": "a", "image": "i", "args": ["x"], "env": env}
    await mine.apply(deployment(first, finalizers=["a.example.dev/x"]))
    second = {"name": "b", "image": "j", "ports": [{"containerPort": 80}]}
    more = {"name": "a", "image": "i", "env": [{"name": "C", "value": "1"}]}
    both = await other.apply(deployment(second, more, finalizers=["a.example.dev/y"]), force=False)
    spec = both.spec.template.spec
    assert sorted(container.name for container in spec.containers) == ["a", "b"]
    (a,) = [container for container in spec.containers if container.name == "a"]
    assert sorted(entry.name for entry in a.env) == ["A", "B", "C"]
    assert both.metadata.finalizers == ["a.example.dev/x", "a.example.dev/y"]
    assert owned(both, "other")["f:spec"]["f:template"]["f:spec"]["f:containers"]['k:{"name":"b"}'] == {
        ".": {},
        "f:image": {},
        "f:name": {},
        "f:ports": {'k:{"containerPort":80,"protocol":"TCP"}': {".": {}, "f:containerPort": {}}},
    }
    left = await other.apply(deployment(more))
    (a,) = left.spec.template.spec.containers
    assert sorted(entry.name for entry in a.env) == ["A", "B", "C"]
    assert left.metadata.finalizers == ["a.example.dev/x"]
    first["env"] = env[:1]
    left = await mine.apply(deployment(first))
    (a,) = left.spec.template.spec.containers
    assert (sorted(entry.name for entry in a.env), a.args) == (["A", "C"], ["x"])
    assert left.metadata.finalizers == []


async def test_te_10_apply_says_what_is_wrong(api):
    async def apply(query, **fields):
        body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, **fields}
        path = ConfigMap.resource.path(api.namespace, "x")
        content = ConfigMap.from_dict(body).to_json()
        await api.client.transport.request(
            "PATCH", path, query=query, body=content, content_type="application/apply-patch+yaml"
        )

    with pytest.raises(InvalidError, match="is required for apply patch"):
        await apply({})
    with pytest.raises(BadRequestError, match=r"metadata\.managedFields must be nil"):
        await apply({"fieldManager": "m"}, metadata={"name": "x", "managedFields": [{"manager": "x"}]})
    await api.client.apply(config_map(api))
    with pytest.raises(InvalidError, match=r"metadata\.uid"):
        await apply({"fieldManager": "m"}, metadata={"name": "x", "uid": "x"})
    with pytest.raises(ConflictError):
        await apply({"fieldManager": "m"}, metadata={"name": "x", "resourceVersion": "12345678901"})


async def test_te_10_apply_keeps_to_finalizers(api):
    await api.client.apply(
        ConfigMap(metadata={"name": "x", "namespace": api.namespace, "finalizers": ["a.example.dev/x"]})
    )
    await api.client.delete(ConfigMap, f"{api.namespace}/x")
    gone = await api.client.apply(config_map(api))
    assert gone.metadata.deletion_timestamp
    assert await api.client.find(ConfigMap, f"{api.namespace}/x") is None


async def test_te_10_services_merge_ports_by_number_and_protocol(api):
    def service(*ports):
        return Service(metadata={"name": "s", "namespace": api.namespace}, spec={"ports": list(ports)})

    await as_manager(api, "a").apply(service({"name": "http", "port": 80}))
    both = await as_manager(api, "b").apply(service({"name": "dns", "port": 80, "protocol": "UDP"}))
    assert sorted((port.name, port.protocol or "TCP") for port in both.spec.ports) == [("dns", "UDP"), ("http", "TCP")]


# -- custom resources --------------------------------------------------------------------------------------------------


@pytest.fixture
async def widget(api):
    """A function that makes a Widget, once its CRD is there."""
    await install_crds(api.client, [Widget, Plain])

    def make(kind=Widget, name="w", **spec):
        return kind(metadata={"name": name, "namespace": api.namespace}, spec=spec)

    return make


async def test_te_10_crds_can_be_installed_and_their_kinds_found(api, widget):
    created = await api.client.create(widget(replicas=1))
    assert created.metadata.generation == 1
    untyped = await api.client.kind_for("fake.tests.dev/v1", "Widget")
    assert untyped is Widget
    loose = unstructured("fake.tests.dev/v1", "Widget")
    assert (await api.client.get(loose, created.key))["spec"] == {"replicas": 1}
    with pytest.raises(InvalidError, match="must be specified for an update"):
        await api.client.update(widget(replicas=2))


async def test_te_9_status_of_custom_resources(api, widget):
    wanted = widget(replicas=1)
    wanted.status = WidgetStatus(replicas=7)
    created = await api.client.create(wanted)
    assert created.status is None
    observed = await api.client.update_status(created, replicas=1)
    assert (observed.status.replicas, observed.metadata.generation) == (1, 1)
    observed.spec.replicas = 2
    observed.status.replicas = 9
    updated = await api.client.update(observed)
    assert (updated.spec.replicas, updated.status.replicas, updated.metadata.generation) == (2, 1, 2)
    applied = await as_manager(api, "s").apply(_with_status(updated, 3), subresource="status")
    assert (applied.spec.replicas, applied.status.replicas) == (2, 3)
    assert owned(applied, "s", "status") == {"f:status": {"f:replicas": {}}}


def _with_status(obj, replicas):
    return Widget(metadata=obj.metadata, spec=WidgetSpec(replicas=9), status=WidgetStatus(replicas=replicas))


async def test_te_9_an_undeclared_status_is_part_of_the_object(api, widget):
    wanted = widget(Plain, replicas=1)
    wanted.status = WidgetStatus(replicas=7)
    created = await api.client.create(wanted)
    assert created.status.replicas == 7
    created.status.replicas = 8
    updated = await api.client.update(created)
    assert (updated.status.replicas, updated.metadata.generation) == (8, 2)
    with pytest.raises(NotFoundError):
        await api.client.update_status(updated, replicas=9)


async def test_te_10_lists_of_custom_resources_merge_as_their_schema_says(api, widget):
    mine, other = as_manager(api, "mine"), as_manager(api, "other")
    await mine.apply(widget(parts=[{"name": "a", "size": 1}], tags=["x"], steps=["one"], options={"a": "1"}))
    both = await other.apply(
        widget(parts=[{"name": "a", "colour": "red"}, {"name": "b"}], tags=["y"], options={"b": "1"}), force=False
    )
    assert [(part.name, part.size, part.colour) for part in both.spec.parts] == [("a", 1, "red"), ("b", None, None)]
    assert sorted(both.spec.tags) == ["x", "y"]
    assert both.spec.options == {"a": "1", "b": "1"}
    with pytest.raises(ConflictError, match=r"\.spec\.steps"):
        await other.apply(widget(steps=["two"]), force=False)
    left = await mine.apply(widget(parts=[{"name": "c"}]))
    assert sorted((part.name, part.size) for part in left.spec.parts if part.name != "a") == [("b", None), ("c", None)]
    assert [(part.size, part.colour) for part in left.spec.parts if part.name == "a"] == [(None, "red")]
    assert (left.spec.tags, left.spec.steps, left.spec.options) == (["y"], [], {"b": "1"})


@pytest.mark.parametrize(
    ("live", "applied", "merged"),
    [
        ("abc", "ca", "bca"),
        ("ab", "xb", "axb"),
        ("abc", "bx", "abcx"),
        ("abcd", "dxa", "bcdxa"),
        ("abcd", "bcax", "bcdax"),
        ("abc", "xyz", "abcxyz"),
    ],
)
async def test_te_10_the_applied_order_of_a_list_wins(api, widget, live, applied, merged):
    def ordered(names):
        return widget(parts=[{"name": name} for name in names], tags=list(names))

    await as_manager(api, "a").apply(ordered(live))
    both = await as_manager(api, "b").apply(ordered(applied))
    assert "".join(part.name for part in both.spec.parts) == merged
    assert "".join(both.spec.tags) == merged


async def test_te_10_custom_resources_take_no_strategic_merge(api, widget):
    created = await api.client.create(widget(parts=[{"name": "a", "size": 1}]))
    with pytest.raises(UnsupportedMediaTypeError):
        await api.client.patch(created, StrategicMergePatch({"spec": {"parts": [{"name": "b"}]}}))
    patched = await api.client.patch(created, MergePatch({"spec": {"parts": [{"name": "b"}]}}))
    assert [part.name for part in patched.spec.parts] == ["b"]


async def test_te_10_scale_of_custom_resources(api, widget):
    created = await api.client.create(widget(replicas=1))
    await api.client.update_status(created, replicas=5, selector="app=w")
    scale = await api.client.get_scale(Widget, created.key)
    assert (scale.spec.replicas, scale.status.replicas, scale.status.selector) == (1, 5, "app=w")
    assert (await api.client.set_scale(Widget, created.key, 3)).spec.replicas == 3
    stored = await api.client.get(Widget, created.key)
    assert (stored.spec.replicas, stored.metadata.generation) == (3, 2)
    plain = await api.client.create(widget(Plain))
    with pytest.raises(NotFoundError):
        await api.client.get_scale(Plain, plain.key)


async def test_te_10_unknown_fields_of_custom_resources(api, widget):
    odd = Widget.from_dict(
        {
            "metadata": {"name": "w", "namespace": api.namespace},
            "spec": {"replicas": 1, "sise": 2, "parts": [{"name": "a", "x": 1}]},
        }
    )
    with pytest.raises(BadRequestError, match=r'unknown field "spec\.parts\[0\]\.x", unknown field "spec\.sise"'):
        await api.client.create(odd, field_validation="Strict")
    created = await api.client.create(odd, field_validation="Ignore")
    assert created.to_dict()["spec"] == {"replicas": 1, "parts": [{"name": "a"}]}


async def test_te_10_custom_resources_can_be_watched(api, widget):
    created = await api.client.create(widget(replicas=1))
    version = created.metadata.resource_version
    async with aclosing(api.client.watch(Widget, namespace=api.namespace, resource_version=version)) as events:
        await api.client.set_scale(Widget, created.key, 2)
        await api.client.delete(created)
        with anyio.fail_after(10):
            assert [(await anext(events)).type for _ in range(2)] == ["MODIFIED", "DELETED"]
