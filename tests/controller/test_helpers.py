"""Finalizers and conditions without a server, create_or_update and create_or_patch with one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import Condition, unstructured
from pyreconcile.api.core_v1 import (
    ConfigMap,
    ResourceQuota,
    ResourceQuotaSpec,
    Service,
    ServicePort,
    ServiceSpec,
    ServiceStatus,
)
from pyreconcile.client import ConflictError, MergePatch
from pyreconcile.controller import (
    Finalizers,
    OperationResult,
    add_finalizer,
    create_or_patch,
    create_or_update,
    ensure_finalizer,
    find_condition,
    has_finalizer,
    is_condition_false,
    is_condition_true,
    release_finalizer,
    remove_condition,
    remove_finalizer,
    set_condition,
)
from pyreconcile.testing import eventually, running

CONDITION = {
    "type": "Probed",
    "status": "True",
    "reason": "Probe",
    "message": "",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(hours=1)


def config(**metadata) -> ConfigMap:
    return ConfigMap(metadata={"namespace": "ns", "name": "a", **metadata})


def test_he_6_finalizers_report_changes_and_remove_takes_all_equal_ones():
    obj = config()
    assert add_finalizer(obj, "x/y")
    assert not add_finalizer(obj, "x/y")
    assert obj.to_dict()["metadata"]["finalizers"] == ["x/y"]
    obj = config(finalizers=["x/y", "keep/me", "x/y"])
    assert has_finalizer(obj, "x/y")
    assert remove_finalizer(obj, "x/y")
    assert not remove_finalizer(obj, "x/y")
    assert obj.metadata.finalizers == ["keep/me"]
    assert obj.to_dict()["metadata"]["finalizers"] == ["keep/me"]


def condition(status="True", reason="R", message="m", **more) -> Condition:
    return Condition(type="Ready", status=status, reason=reason, message=message, **more)


def test_he_7_time_moves_only_when_the_status_changes():
    conditions: list[Condition] = []
    assert set_condition(conditions, condition(), now=lambda: NOW)
    assert conditions[0].last_transition_time == NOW
    assert not set_condition(conditions, condition(), now=lambda: LATER)
    changed = condition(reason="S", message="n", observed_generation=4)
    assert set_condition(conditions, changed, now=lambda: LATER)
    present = conditions[0]
    assert (present.reason, present.message, present.observed_generation) == ("S", "n", 4)
    assert present.last_transition_time == NOW
    assert set_condition(conditions, condition("False"), now=lambda: LATER)
    assert conditions[0].last_transition_time == LATER
    assert set_condition(conditions, condition("True", last_transition_time=NOW), now=lambda: LATER)
    assert conditions[0].last_transition_time == NOW


def test_he_7_find_remove_and_truth():
    conditions: list[Condition] = []
    given_one = condition()
    set_condition(conditions, given_one)
    assert given_one.last_transition_time is None, "the argument is copied"
    set_condition(conditions, Condition(type="Other", status="False", reason="R"))
    assert find_condition(conditions, "Ready") is conditions[0]
    assert find_condition(conditions, "None") is None
    assert find_condition(None, "Ready") is None
    assert is_condition_true(conditions, "Ready")
    assert not is_condition_true(conditions, "Other")
    assert is_condition_false(conditions, "Other")
    assert not is_condition_false(conditions, "None")
    assert remove_condition(conditions, "Ready")
    assert not remove_condition(conditions, "Ready")
    assert [present.type for present in conditions] == ["Other"]


def test_he_7_now_has_whole_seconds_as_it_is_written():
    conditions: list[Condition] = []
    set_condition(conditions, condition())
    assert conditions[0].last_transition_time is not None
    assert Condition.from_dict(conditions[0].to_dict()) == conditions[0]


@given(st.lists(st.tuples(st.sampled_from(["A", "B"]), st.sampled_from(["True", "False", "Unknown"])), max_size=12))
def test_he_7_any_sequence_keeps_one_condition_a_type_and_the_time_of_its_last_change(steps):
    conditions: list[Condition] = []
    expected: dict[str, tuple[str, datetime]] = {}
    for number, (kind, status) in enumerate(steps):
        at = NOW + timedelta(seconds=number)
        if expected.get(kind, ("", NOW))[0] != status:
            expected[kind] = (status, at)
        set_condition(conditions, Condition(type=kind, status=status, reason="R"), now=lambda at=at: at)
    assert {c.type: (c.status, c.last_transition_time) for c in conditions} == expected


# -- with the server ------------------------------------------------------------------------------------------------


def service(namespace: str) -> Service:
    return Service(metadata={"namespace": namespace, "name": "svc"})


def wanted(obj: Service) -> None:
    obj.metadata.labels["app"] = "x"
    if obj.spec is None:
        obj.spec = ServiceSpec(ports=[ServicePort(port=80)])


class Interfering:
    """A client with another writer beside it: each patch finds the object changed since it was read."""

    def __init__(self, client, key) -> None:
        self._client, self._key = client, key
        self.patched: list[str] = []
        self.versions: list[str] = []

    async def find_raw(self, kind, key):
        return await self._client.find_raw(kind, key)

    async def patch(self, target, patch, *, subresource=""):
        other = {"labels": {"other": "writer"}, "annotations": {"n": subresource}}
        await self._client.patch(Service, self._key, MergePatch({"metadata": other}))
        answer = await self._client.patch(target, patch, subresource=subresource)
        self.patched.append(subresource)
        self.versions.append(answer.metadata.resource_version)
        return answer


@pytest.mark.rules("U-65")
@pytest.mark.plane
async def test_he_1_created_unchanged_updated(client, namespace):
    def mutate(obj: ConfigMap) -> None:
        obj.data = {**(obj.data or {}), "a": value}

    value = "1"
    target = ConfigMap(metadata={"namespace": namespace, "name": "a"})
    created, result = await create_or_update(client, target, mutate)
    assert result is OperationResult.CREATED
    same, result = await create_or_update(client, target, mutate)
    assert result == "unchanged"
    assert same.metadata.resource_version == created.metadata.resource_version
    value = "2"
    changed, result = await create_or_update(client, ConfigMap(metadata=target.metadata), mutate)
    assert result is OperationResult.UPDATED
    assert changed.data == {"a": "2"}


@pytest.mark.rules("HE-3", "U-65")
@pytest.mark.plane
async def test_he_1_another_writing_of_the_same_is_no_change(client, namespace):
    def mutate(obj: ResourceQuota) -> None:
        obj.spec = ResourceQuotaSpec.from_dict({"hard": {"cpu": amount}, "scopes": []})
        obj.metadata.annotations = {}

    amount = "1"
    target = ResourceQuota(metadata={"namespace": namespace, "name": "q"})
    await create_or_update(client, target, mutate)

    async def settled():  # the server's own controller writes the status once
        quota = await client.get(ResourceQuota, target.key)
        return quota.metadata.resource_version if quota.status is not None and quota.status.hard else None

    # The quota controller stands still for up to 30 s when kinds come and go, as they do in the tests of CRDs.
    version = await eventually(settled, timeout=90)
    amount = "1000m"
    for function in (create_or_update, create_or_patch):
        _, result = await function(client, target, mutate)
        assert result is OperationResult.UNCHANGED
    assert await settled() == version, "nothing was written"
    amount = "1001m"
    _, result = await create_or_update(client, target, mutate)
    assert result is OperationResult.UPDATED


@pytest.mark.rules("U-65", "CA-6")
@pytest.mark.plane
@pytest.mark.parametrize("kind", [ConfigMap, unstructured("v1", "ConfigMap")], ids=["typed", "unstructured"])
@pytest.mark.parametrize("function", [create_or_update, create_or_patch])
async def test_he_1_a_copy_of_the_cached_object_is_changed_in_place(manager, namespace, kind, function):
    def mutate(obj) -> None:
        data = obj.data if kind is ConfigMap else obj["data"]
        data["a"] = value
        obj.metadata.labels["seen"] = value

    value = "1"
    target = kind.from_dict({"metadata": {"namespace": namespace, "name": "a"}, "data": {"a": "0"}})
    async with running(manager):
        client = manager.client
        _, result = await function(client, target, mutate)
        assert result is OperationResult.CREATED
        cached = await client.find_raw(kind, target.key)
        value = "2"
        changed, result = await function(client, target, mutate)
        assert result is OperationResult.UPDATED, "a change in place is a change"
        assert (changed.to_dict()["data"], changed.metadata.labels) == ({"a": "2"}, {"seen": "2"})
        assert (cached["data"], cached["metadata"]["labels"]) == ({"a": "1"}, {"seen": "1"})
        assert (await function(client, target, mutate))[1] is OperationResult.UNCHANGED


@pytest.mark.rules("U-65")
@pytest.mark.plane
async def test_he_1_identity_must_not_change(client, namespace):
    async def rename(obj: ConfigMap) -> None:
        obj.metadata.name = "b"

    async def move(obj: ConfigMap) -> None:
        obj.metadata.namespace = "elsewhere"

    for change in (rename, move):
        for function in (create_or_update, create_or_patch):
            target = ConfigMap(metadata={"namespace": namespace, "name": "a"})
            with pytest.raises(ValueError, match="must keep name and namespace"):
                await function(client, target, change)
    there = await client.create(ConfigMap(metadata={"namespace": namespace, "name": "there"}))
    with pytest.raises(ValueError, match="must keep name and namespace"):
        await create_or_update(client, ConfigMap(metadata={"namespace": namespace, "name": "there"}), rename)
    assert await client.get(ConfigMap, there.key) == there
    assert await client.find(ConfigMap, f"{namespace}/a") is None
    assert await client.find(ConfigMap, f"{namespace}/b") is None


@pytest.mark.rules("U-65")
@pytest.mark.plane
async def test_he_2_patches_the_object_and_its_status_apart(client, namespace):
    steps: list[str] = []

    def mutate(obj: Service) -> None:
        wanted(obj)
        if "label" in steps:
            obj.metadata.labels["step"] = str(len(steps))
        if "status" in steps:
            obj.status = ServiceStatus.from_dict({"conditions": [dict(CONDITION, message=str(len(steps)))]})

    async def write() -> OperationResult:
        _, result = await create_or_patch(client, service(namespace), mutate)
        return result

    assert await write() is OperationResult.CREATED
    assert await write() is OperationResult.UNCHANGED
    steps.append("label")
    assert await write() is OperationResult.UPDATED
    steps.append("status")
    assert await write() is OperationResult.UPDATED_STATUS
    obj = await client.get(Service, f"{namespace}/svc")
    assert obj.metadata.labels == {"app": "x", "step": "2"}
    assert obj.to_dict()["status"]["conditions"][0]["message"] == "2"
    assert await write() is OperationResult.UNCHANGED
    steps[:] = ["status"]
    assert await write() is OperationResult.UPDATED_STATUS_ONLY


@pytest.mark.plane
@pytest.mark.rules("U-65")
async def test_he_2a_the_wanted_status_survives_the_first_answer_and_goes_out_without_a_conflict(client, namespace):
    def mutate(obj: Service) -> None:
        wanted(obj)
        obj.metadata.labels["both"] = "yes"
        obj.status = ServiceStatus.from_dict({"conditions": [CONDITION]})

    created, result = await create_or_patch(client, service(namespace), mutate)
    assert result is OperationResult.CREATED
    assert not (created.to_dict().get("status") or {}).get("conditions"), "no status with the create (HE-2)"
    await client.patch(created, MergePatch({"metadata": {"labels": {"both": None}}}))
    # Another writer changes the object between our read and our patches: a merge patch does not mind.
    racing = Interfering(client, created.key)
    changed, result = await create_or_patch(racing, service(namespace), mutate)
    assert result is OperationResult.UPDATED_STATUS
    assert racing.patched == ["", "status"]
    assert len(set(racing.versions)) == 2, "two writes, two versions"
    raw = changed.to_dict()
    assert raw["status"]["conditions"][0]["type"] == "Probed"
    assert raw["metadata"]["labels"] == {"app": "x", "both": "yes", "other": "writer"}
    assert (await create_or_patch(client, service(namespace), mutate))[1] is OperationResult.UNCHANGED


@pytest.mark.plane
async def test_he_6_a_finalizer_of_another_writer_is_not_lost(client, namespace):
    stale = await client.create(ConfigMap(metadata={"namespace": namespace, "name": "a"}))
    await client.patch(stale, MergePatch({"metadata": {"finalizers": ["other/one"]}}))
    with pytest.raises(ConflictError):
        await ensure_finalizer(client, stale, "mine/one")
    fresh = await client.get(ConfigMap, stale.key)
    both = await ensure_finalizer(client, fresh, "mine/one")
    assert both.metadata.finalizers == ["other/one", "mine/one"]
    assert fresh.metadata.finalizers == ["other/one"]
    await client.delete(both)
    deleted = await client.get(ConfigMap, stale.key)
    assert await ensure_finalizer(client, deleted, "late/one") is deleted
    rest = await release_finalizer(client, deleted, "mine/one")
    assert rest is not None
    assert await release_finalizer(client, rest, "mine/one") is rest
    await release_finalizer(client, rest, "other/one")
    assert await client.find(ConfigMap, stale.key) is None
    assert await release_finalizer(client, rest, "other/one") is None


@pytest.mark.plane
async def test_he_6_registry_adds_runs_and_removes_and_keeps_what_failed(client, namespace):
    cleaned: list[str] = []
    broken = True

    async def dns(obj: ConfigMap) -> None:
        cleaned.append("dns")

    async def bucket(obj: ConfigMap) -> None:
        if broken:
            raise OSError("no answer")
        cleaned.append("bucket")

    finalizers = Finalizers({"x.example.dev/bucket": bucket, "x.example.dev/dns": dns})
    obj = await client.create(ConfigMap(metadata={"namespace": namespace, "name": "a", "finalizers": ["other/one"]}))
    obj, updated, status_updated = await finalizers.run(client, obj)
    assert (updated, status_updated) == (True, False)
    assert obj.metadata.finalizers == ["other/one", "x.example.dev/bucket", "x.example.dev/dns"]
    assert await finalizers.run(client, obj) == (obj, False, False)
    await client.delete(obj)
    obj = await client.get(ConfigMap, obj.key)
    with pytest.raises(ExceptionGroup, match="clean-up of ConfigMap") as caught:
        await finalizers.run(client, obj)
    assert caught.group_contains(OSError, match="no answer")
    assert cleaned == ["dns"]
    obj = await client.get(ConfigMap, obj.key)
    assert obj.metadata.finalizers == ["other/one", "x.example.dev/bucket"]
    broken = False
    obj, _, _ = await finalizers.run(client, obj)
    assert cleaned == ["dns", "bucket"]
    obj = await client.patch(obj, MergePatch({"metadata": {"finalizers": None}}))
    await finalizers.run(client, obj)


@pytest.mark.plane
async def test_he_6_what_a_clean_up_says_in_the_status_is_written_before_the_finalizer_goes(client, namespace):
    steps = ["wait", "fail", "end"]

    async def lease(obj: Service) -> None:
        step = steps.pop(0)
        condition = dict(CONDITION, message=step)
        obj.status = ServiceStatus.from_dict({"conditions": [condition]})
        if step != "end":
            raise TimeoutError(step)

    finalizers = Finalizers({"x.example.dev/lease": lease})
    obj = await client.create(
        Service(
            metadata={"namespace": namespace, "name": "svc", "finalizers": ["other/one"]},
            spec=ServiceSpec(ports=[ServicePort(port=80)]),
        )
    )
    obj, _, _ = await finalizers.run(client, obj)
    await client.delete(obj)
    for said in ("wait", "fail"):
        obj = await client.get(Service, obj.key)
        with pytest.raises(ExceptionGroup):
            await finalizers.run(client, obj)
        obj = await client.get(Service, obj.key)
        assert obj.to_dict()["status"]["conditions"][0]["message"] == said
        assert has_finalizer(obj, "x.example.dev/lease")
    last, updated, status_updated = await finalizers.run(client, obj)
    assert (updated, status_updated) == (True, True)
    assert last.to_dict()["status"]["conditions"][0]["message"] == "end"
    assert last.metadata.finalizers == ["other/one"]
    await release_finalizer(client, last, "other/one")
    assert await client.find(Service, last.key) is None


def test_he_6_registry_refuses_a_name_twice_and_a_name_the_server_refuses():
    async def nothing(obj: ConfigMap) -> None: ...

    finalizers = Finalizers({"x.example.dev/a": nothing})
    with pytest.raises(ValueError, match="is registered already"):
        finalizers.register("x.example.dev/a", nothing)
    with pytest.raises(ValueError, match="wants a domain and a name"):
        finalizers.register("plain", nothing)
