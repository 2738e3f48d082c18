"""Server-side apply on the real API server, and when it is left out."""

import pytest

from pyreconcile.api import CustomResource, Spec, Status
from pyreconcile.api.apps_v1 import Deployment, StatefulSet
from pyreconcile.api.core_v1 import ConfigMap, Secret, Service
from pyreconcile.api.owners import AlreadyOwnedError
from pyreconcile.client import ConflictError, MergePatch, NotCachedError, StrategicMergePatch, UnsupportedMediaTypeError
from pyreconcile.crd import install_crds

pytestmark = pytest.mark.plane


class PaintSpec(Spec):
    colour: str = ""
    coats: int | None = None


class PaintStatus(Status):
    dry: bool = False


class Paint(CustomResource[PaintSpec, PaintStatus], group="client.tests.dev", version="v1"):
    """Something with a status."""


def config_map(namespace, name="x", **data):
    return ConfigMap.from_dict({"metadata": {"name": name, "namespace": namespace}, "data": data})


def deployment(namespace, **container):
    labels = {"app": "web"}
    main = {
        "name": "main",
        "image": "web:1",
        "args": ["--port", "80"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
        "ports": [{"containerPort": 80}],
        "resources": {"requests": {"cpu": "1000m", "memory": "1024Mi"}, "limits": {"memory": "2Gi"}},
        "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
        **container,
    }
    return Deployment.from_dict(
        {
            "metadata": {"name": "web", "namespace": namespace, "labels": labels, "annotations": {}},
            "spec": {
                "replicas": 0,
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {"labels": labels},
                    "spec": {
                        "containers": [main],
                        "volumes": [{"name": "scratch", "emptyDir": {"sizeLimit": "1024Mi"}}],
                        "tolerations": [{"key": "gpu", "operator": "Exists"}],
                        "nodeSelector": {"zone": "a"},
                        "securityContext": {},
                    },
                },
            },
        }
    )


@pytest.fixture
async def paint(client, namespace):
    """An installed CRD and the means to make an object of it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    crd = {
        "metadata": {"name": "paints.client.tests.dev"},
        "spec": {
            "group": "client.tests.dev",
            "scope": "Namespaced",
            "names": {"plural": "paints", "singular": "paint", "kind": "Paint", "listKind": "PaintList"},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                    "subresources": {"status": {}},
                }
            ],
        },
    }
    await install_crds(client, [crd])

    def make(name="p", **spec):
        return Paint.from_dict({"metadata": {"name": name, "namespace": namespace}, "spec": spec})

    return make


@pytest.mark.rules("U-68")
async def test_cl_6_apply_creates_changes_and_removes(logged, namespace, requests):
    created = await logged.apply(config_map(namespace, a="1", b="1"))
    assert created.data == {"a": "1", "b": "1"}
    (entry,) = created.metadata.managed_fields
    assert (entry["manager"], entry["operation"]) == ("client-tests", "Apply")
    changed = await logged.apply(config_map(namespace, a="2"))
    assert changed.data == {"a": "2"}
    assert requests.take() == [("GET", "404"), ("PATCH", "201"), ("GET", "200"), ("PATCH", "200")]


async def test_he_3_apply_of_the_same_sends_nothing(logged, namespace, requests):
    created = await logged.apply(config_map(namespace, a="1"))
    requests.take()
    again = await logged.apply(config_map(namespace, a="1"))
    assert requests.take() == [("GET", "200")]
    assert again == created


async def test_he_3_what_the_server_rewrites_and_defaults_sends_nothing(logged, namespace, requests):
    service = {
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {"selector": {"app": "web"}, "ports": [{"name": "http", "port": 80}, {"name": "dns", "port": 53}]},
    }
    stateful = {
        "metadata": {"name": "web", "namespace": namespace},
        "spec": {
            "replicas": 0,
            "serviceName": "web",
            "selector": {"matchLabels": {"app": "web"}},
            "template": deployment(namespace).to_dict()["spec"]["template"],
        },
    }
    objects = [deployment(namespace), Service.from_dict(service), StatefulSet.from_dict(stateful)]
    for obj in objects:
        await logged.apply(obj)
    requests.take()
    for obj in objects:
        await logged.apply(obj)
    assert requests.take() == [("GET", "200")] * 3


@pytest.mark.parametrize(
    "change",
    [
        {"image": "web:2"},
        {"args": ["--port"]},
        {"env": [{"name": "A", "value": "1"}]},
        {"env": [{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]},
        {"env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1000m"}]},
        {"ports": [{"containerPort": 80, "protocol": "UDP"}]},
        {"ports": []},
        {"resources": {"requests": {"cpu": "1001m", "memory": "1Gi"}, "limits": {"memory": "2Gi"}}},
        {"resources": {"requests": {"cpu": "1"}, "limits": {"memory": "2Gi"}}},
        {"tty": True},
    ],
)
async def test_he_3_every_change_is_sent_once(logged, namespace, requests, change):
    await logged.apply(deployment(namespace))
    requests.take()
    changed = await logged.apply(deployment(namespace, **change))
    assert requests.take() == [("GET", "200"), ("PATCH", "200")]
    (container,) = changed.to_dict()["spec"]["template"]["spec"]["containers"]
    for name in change:
        assert bool(container.get(name)) == bool(change[name])
    await logged.apply(deployment(namespace, **change))
    assert requests.take() == [("GET", "200")]


async def test_he_3_fields_of_other_managers_send_nothing(logged, namespace, requests):
    created = await logged.apply(deployment(namespace))
    patch = MergePatch({"metadata": {"annotations": {"seen": "yes"}}, "spec": {"minReadySeconds": 3}})
    await logged.with_options(field_manager="another").patch(created, patch)
    requests.take()
    again = await logged.apply(deployment(namespace))
    assert requests.take() == [("GET", "200")]
    assert again.spec.min_ready_seconds == 3


async def test_he_3_a_field_that_another_manager_changed_is_taken_back(logged, namespace, requests):
    created = await logged.apply(config_map(namespace, a="1"))
    other = logged.with_options(field_manager="another")
    await other.patch(created, MergePatch({"data": {"a": "2"}}))
    assert (await logged.apply(config_map(namespace, a="1"))).data == {"a": "1"}
    await other.patch(created, MergePatch({"data": {"a": None}}))
    assert (await logged.apply(config_map(namespace, a="1"))).data == {"a": "1"}


@pytest.mark.rules("U-68")
async def test_cl_6_without_force_a_conflict_names_field_and_manager(logged, namespace):
    await logged.with_options(field_manager="first").apply(config_map(namespace, a="1"))
    with pytest.raises(ConflictError, match='conflict with "first"') as caught:
        await logged.apply(config_map(namespace, a="2"), force=False)
    assert [(cause.reason, cause.field) for cause in caught.value.causes] == [("FieldManagerConflict", ".data.a")]
    assert (await logged.apply(config_map(namespace, a="2"))).data == {"a": "2"}
    shared = await logged.apply(config_map(namespace, a="2"), field_manager="third", force=False)
    assert {entry["manager"] for entry in shared.metadata.managed_fields} == {"client-tests", "third"}


async def test_he_4_apply_sets_the_controller_reference(logged, namespace, requests):
    owner = await logged.create(config_map(namespace, "owner"))
    child = await logged.apply(config_map(namespace, "child", a="1"), owner=owner)
    (reference,) = child.metadata.owner_references
    assert (reference.kind, reference.uid, reference.controller) == ("ConfigMap", owner.metadata.uid, True)
    requests.take()
    obj = config_map(namespace, "child", a="1")
    await logged.apply(obj, owner=owner)
    assert requests.take() == [("GET", "200")]
    assert obj.metadata.owner_references == []
    other = await logged.create(config_map(namespace, "other"))
    with pytest.raises(AlreadyOwnedError):
        await logged.apply(child, owner=other)


async def test_cl_6_an_object_that_was_read_can_be_applied(logged, namespace):
    created = await logged.create(config_map(namespace, a="1"))
    created.data["b"] = "2"
    applied = await logged.apply(created)
    assert applied.data == {"a": "1", "b": "2"}
    assert created.metadata.managed_fields


async def test_he_3_stripped_managed_fields_are_sent(logged, namespace, requests):
    class Stripped:
        async def find(self, kind, key):
            found = await logged.find(kind, key)
            found.metadata.managed_fields = None
            return found

    await logged.apply(config_map(namespace, a="1"))
    requests.take()
    await logged.with_options(reader=Stripped()).apply(config_map(namespace, a="1"))
    assert requests.take() == [("GET", "200"), ("PATCH", "200")]


async def test_he_3_the_live_object_is_read_where_the_client_reads(logged, namespace, requests):
    live = await logged.apply(config_map(namespace, a="1"))

    class Cache:
        async def find(self, kind, key):
            return live.deep_copy()

    requests.take()
    again = await logged.with_options(reader=Cache()).apply(config_map(namespace, a="1"))
    assert (again, requests.take()) == (live, [])


async def test_he_3_a_reader_that_gives_raw_objects_is_asked_for_them(logged, namespace, requests):
    raw = (await logged.apply(config_map(namespace, a="1"))).to_dict()

    class Cache:
        async def find_raw(self, kind, key):
            return raw

    requests.take()
    cached = logged.with_options(reader=Cache())
    assert (await cached.apply(config_map(namespace, a="1"))).data == {"a": "1"}
    assert requests.take() == []
    assert (await cached.apply(config_map(namespace, a="2"))).data == {"a": "2"}


async def test_what_the_cache_does_not_hold_is_compared_with_the_server(logged, namespace, requests):
    class Elsewhere:
        async def find_raw(self, kind, key):
            raise NotCachedError("another namespace")

    await logged.apply(config_map(namespace, a="1"))
    requests.take()
    await logged.with_options(reader=Elsewhere()).apply(config_map(namespace, a="1"))
    assert requests.take() == [("GET", "200")]


async def test_he_3_texts_of_a_secret_are_applied_as_its_data(logged, namespace, requests):
    def secret(**texts):
        return Secret.from_dict({"metadata": {"name": "s", "namespace": namespace}, "stringData": texts})

    await logged.apply(secret(a="1", b="2"))
    requests.take()
    await logged.apply(secret(a="1", b="2"))
    assert requests.take() == [("GET", "200")]
    assert (await logged.apply(secret(a="1"))).data == {"a": "MQ=="}


async def test_custom_resources_apply_their_spec_and_their_status(logged, namespace, requests, paint):
    obj = paint(colour="red", coats=None)
    obj.status = PaintStatus(dry=True)
    created = await logged.apply(obj)
    assert (created.spec.colour, created.status) == ("red", None)
    created.status = PaintStatus(dry=True, observed_generation=1)
    wet = await logged.apply(created, subresource="status")
    assert (wet.status.dry, wet.status.observed_generation) == (True, 1)
    requests.take()
    await logged.apply(created, subresource="status")
    await logged.apply(paint(colour="red", coats=None))
    assert requests.take() == [("GET", "200")] * 2
    created.status = PaintStatus(dry=False)
    assert (await logged.apply(created, subresource="status")).status.observed_generation is None


async def test_update_status_of_a_custom_resource(logged, namespace, requests, paint):
    created = await logged.create(paint(colour="red"))
    requests.take()
    dry = await logged.update_status(created, dry=True)
    assert (dry.status.dry, created.status) == (True, None)
    assert dry.spec.colour == "red"
    live = dry.deep_copy()

    class Cache:
        async def find(self, kind, key):
            return live

    cached = logged.with_options(reader=Cache())
    requests.take()
    dry.status.dry = True
    await cached.update_status(dry)
    await cached.update_status(dry, dry=True)
    assert requests.take() == []
    dry.status.dry = False
    assert not (await cached.update_status(dry)).status.dry
    assert requests.take() == [("PUT", "200")]


async def test_update_status_checks_values(logged, namespace, paint):
    with pytest.raises(ValueError, match="dry"):
        await logged.update_status(paint(), dry="perhaps")
    obj = paint()
    obj.status = PaintStatus()
    with pytest.raises(ValueError, match="dry"):
        await logged.update_status(obj, dry="perhaps")


async def test_cl_5_strategic_merge_of_a_custom_resource_is_refused(logged, namespace, paint):
    created = await logged.create(paint(colour="red"))
    with pytest.raises(UnsupportedMediaTypeError):
        await logged.patch(created, StrategicMergePatch({"spec": {"colour": "blue"}}))
