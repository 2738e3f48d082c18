from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from pyreconcile.api import KubeObject, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap, Node, Pod
from pyreconcile.controller import (
    CreateEvent,
    DeleteEvent,
    EnqueueMapped,
    EnqueueObject,
    EnqueueOwner,
    GenericEvent,
    HandlerFuncs,
    Request,
    UpdateEvent,
)
from pyreconcile.workqueue import LOW_PRIORITY

A, B, C = Request("ns", "a"), Request("ns", "b"), Request("ns", "c")


def owner(name="a", kind="Deployment", api_version="apps/v1", *, controller=True, uid="u"):
    reference = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    if controller:
        reference["controller"] = True
    return reference


def test_request_names_an_object():
    assert A.key == str(A) == "ns/a"
    assert Request("", "node").key == "node"
    assert Request.from_key("ns/a") == A
    assert Request.from_key("node") == Request("", "node")
    with pytest.raises(ValueError, match="is no key"):
        Request.from_key("a/b/c")


def test_sr_5_each_event_enqueues_its_object(queue, raw):
    handler = EnqueueObject()
    handler.create(CreateEvent(raw(), ConfigMap), queue)
    handler.update(UpdateEvent(raw(), raw(version="2"), ConfigMap), queue)
    handler.delete(DeleteEvent(raw(), ConfigMap), queue)
    handler.generic(GenericEvent(raw(), ConfigMap), queue)
    handler.generic(GenericEvent.of(Node.from_dict(raw("n", ""))), queue)
    assert queue.taken() == [(A, 0)] * 4 + [(Request("", "n"), 0)]


def test_sr_5_an_update_without_a_new_object_enqueues_the_old_and_missing_objects_are_ignored(queue, raw):
    handler = EnqueueObject()
    handler.update(UpdateEvent(raw("a"), None, ConfigMap), queue)
    assert queue.taken() == [(A, 0)]
    with capture_logs() as logs:
        handler.create(CreateEvent(None, ConfigMap), queue)
        handler.update(UpdateEvent(None, None, ConfigMap), queue)
        handler.delete(DeleteEvent(None, ConfigMap), queue)
        handler.generic(GenericEvent({}, ConfigMap), queue)
    assert queue.taken() == []
    assert [(line["event"], line["event_type"]) for line in logs] == [
        ("event_without_metadata", word) for word in ("create", "update", "delete", "generic")
    ]


@pytest.mark.rules("PQ-14", "U-34")
@pytest.mark.parametrize(
    "handler",
    [
        EnqueueObject(),
        EnqueueMapped(lambda pod: [Request(pod.metadata.namespace, pod.metadata.name)]),
        EnqueueMapped(lambda shared: [Request.for_object(shared)], raw=True),
        EnqueueOwner(Deployment),
        EnqueueOwner(Deployment, every_owner=True),
        HandlerFuncs(
            create=lambda event, queue: queue.add(A),
            update=lambda event, queue: queue.add(A),
            delete=lambda event, queue: queue.add(A),
            generic=lambda event, queue: queue.add(A),
        ),
    ],
    ids=["object", "mapped", "raw", "owner", "every owner", "functions"],
)
def test_pq_13_initial_creates_and_resyncs_are_lowered_nothing_else(handler, queue, raw):
    obj = raw(owners=[owner()])
    handler.create(CreateEvent(obj, Pod, is_initial=True), queue)
    handler.update(UpdateEvent(obj, obj, Pod), queue)
    assert queue.taken() == [(A, LOW_PRIORITY)] * 2
    handler.create(CreateEvent(obj, Pod), queue)
    handler.update(UpdateEvent(obj, raw(version="2", owners=[owner()]), Pod), queue)
    handler.delete(DeleteEvent(obj, Pod, state_unknown=True), queue)
    handler.generic(GenericEvent(obj, Pod), queue)
    assert queue.taken() == [(A, 0)] * 4


@pytest.mark.rules("PQ-13")
def test_pq_14_a_priority_named_by_the_function_wins(queue, raw):
    handler = HandlerFuncs(
        create=lambda event, queue: (
            queue.add(A, priority=5),
            queue.add_after(A, 2),
            queue.add_rate_limited(A),
            queue.add_after(A, 2, priority=0),
        )
    )
    handler.create(CreateEvent(raw(), Pod, is_initial=True), queue)
    assert queue.adds == [(A, 5)]
    assert queue.delayed == [(A, 2, LOW_PRIORITY), (A, -1.0, LOW_PRIORITY), (A, 2, 0)]


def test_sr_8_functions_are_optional(queue, raw):
    handler = HandlerFuncs()
    handler.create(CreateEvent(raw(), Pod), queue)
    handler.update(UpdateEvent(raw(), raw(), Pod), queue)
    handler.delete(DeleteEvent(raw(), Pod), queue)
    handler.generic(GenericEvent(raw(), Pod), queue)
    assert queue.adds == []


@pytest.mark.parametrize("given", ["create", "update", "delete", "generic"])
def test_sr_8_each_function_does_without_the_others(queue, raw, given):
    handler = HandlerFuncs(**{given: lambda event, queue: queue.add(Request.for_object(raw(given)))})
    handler.create(CreateEvent(raw(), Pod), queue)
    handler.update(UpdateEvent(raw(), raw(version="2"), Pod), queue)
    handler.delete(DeleteEvent(raw(), Pod), queue)
    handler.generic(GenericEvent(raw(), Pod), queue)
    assert queue.taken() == [(Request("ns", given), 0)]


@pytest.mark.rules("U-32")
def test_sr_6_owner_of_another_version_counts_another_group_or_kind_does_not(queue, raw):
    handler = EnqueueOwner(Deployment)
    for reference in (
        owner("a", api_version="apps/v1beta1"),
        owner("b", api_version="extensions/v1"),
        owner("c", kind="StatefulSet"),
        owner("d", api_version="v1"),
    ):
        handler.create(CreateEvent(raw(owners=[reference]), Pod), queue)
    assert queue.taken() == [(A, 0)]


def test_sr_6_only_the_controller_unless_every_owner_is_asked_for(queue, raw):
    obj = raw(owners=[owner("a"), owner("b", controller=False)])
    EnqueueOwner(Deployment).create(CreateEvent(obj, Pod), queue)
    assert queue.taken() == [(A, 0)]
    EnqueueOwner(Deployment, every_owner=True).create(CreateEvent(obj, Pod), queue)
    assert queue.taken() == [(A, 0), (B, 0)]
    EnqueueOwner(Deployment).create(CreateEvent(raw(), Pod), queue)
    assert queue.taken() == []


@pytest.mark.rules("U-32")
def test_sr_6_cluster_scoped_owner_gives_an_empty_namespace(queue, raw):
    handler = EnqueueOwner(Node)
    handler.delete(DeleteEvent(raw(owners=[owner("n", "Node", "v1")]), Pod), queue)
    assert queue.taken() == [(Request("", "n"), 0)]


@pytest.mark.rules("U-32")
def test_sr_6_update_wakes_old_and_new_owner_each_once(queue, raw):
    moved = UpdateEvent(raw(owners=[owner("a")]), raw(version="2", owners=[owner("b")]), Pod)
    EnqueueOwner(Deployment).update(moved, queue)
    assert queue.taken() == [(A, 0), (B, 0)]
    handler = EnqueueOwner(Deployment, every_owner=True)
    old = raw(owners=[owner("a"), owner("a")])
    handler.update(UpdateEvent(old, raw(version="2", owners=[owner("b"), owner("a")]), Pod), queue)
    assert queue.taken() == [(A, 0), (B, 0)]


@pytest.mark.rules("U-32")
def test_sr_6_unreadable_api_version_is_logged_and_enqueues_nothing(queue, raw):
    obj = raw(owners=[owner("b", controller=False), owner("a", api_version="a/b/c")])
    with capture_logs() as logs:
        EnqueueOwner(Deployment, every_owner=True).create(CreateEvent(obj, Pod), queue)
        # Only references that could be meant are read: one of another kind, however odd, keeps nobody from its owner.
        odd = raw(owners=[owner("b", kind="Odd", api_version="a/b/c"), owner("c", controller=False)])
        EnqueueOwner(Deployment, every_owner=True).create(CreateEvent(odd, Pod), queue)
    assert queue.taken() == [(C, 0)]
    assert [(line["log_level"], line["api_version"]) for line in logs] == [("error", "a/b/c")]


@pytest.mark.parametrize("owner_kind", ["Deployment", None, KubeObject, object()], ids=repr)
def test_sr_6_an_unknown_owner_type_fails_when_it_is_built(owner_kind):
    with pytest.raises(TypeError, match="give the owner's kind, such as Deployment"):
        EnqueueOwner(owner_kind)


def test_sr_6_uid_of_the_owner_can_be_compared(queue, raw):
    known = {"ns/a": "new", "ns/b": "u"}
    handler = EnqueueOwner(Deployment, owner_uid=known.get)
    for name in "abc":
        handler.create(CreateEvent(raw(owners=[owner(name)]), Pod), queue)
    assert queue.taken() == [(B, 0), (C, 0)]
    for name in "abc":
        EnqueueOwner(Deployment).create(CreateEvent(raw(owners=[owner(name)]), Pod), queue)
    assert queue.taken() == [(A, 0), (B, 0), (C, 0)], "by default it is not"


@pytest.mark.rules("U-33")
def test_sr_7_map_takes_old_and_new_each_request_once(queue, raw):
    seen = []

    def to_requests(pod: Pod) -> list[Request]:
        seen.append(pod.metadata.labels)
        return [A, Request("ns", pod.metadata.labels["for"]), A]

    handler = EnqueueMapped(to_requests)
    handler.update(UpdateEvent(raw(labels={"for": "b"}), raw(version="2", labels={"for": "c"}), Pod), queue)
    assert queue.taken() == [(A, 0), (B, 0), (C, 0)]
    assert seen == [{"for": "b"}, {"for": "c"}]
    assert isinstance(CreateEvent(raw(), Pod).object, Pod)


def test_sr_7_raw_map_gets_the_shared_json(queue, raw):
    obj = raw()
    handler = EnqueueMapped(lambda shared: [A] if shared is obj else [], raw=True)
    handler.create(CreateEvent(obj, Pod), queue)
    handler.update(UpdateEvent(raw(version="0"), obj, Pod), queue)
    assert queue.taken() == [(A, 0), (A, 0)]


def test_sr_7_wrong_results_say_what_to_return(queue, raw):
    def to_keys(pod):
        return ["ns/a"]

    with pytest.raises(TypeError, match=r"to_keys returned 'ns/a'; return Request\(namespace, name\)"):
        EnqueueMapped(to_keys).create(CreateEvent(raw(), Pod), queue)
    EnqueueMapped(lambda pod: None).create(CreateEvent(raw(), Pod), queue)
    assert queue.taken() == []


def test_events_decode_once_and_never_touch_the_shared_object(raw):
    kind = unstructured("example.dev/v1", "Widget")
    obj = raw(labels={"a": "1"})
    event = CreateEvent(obj, kind)
    event.object.metadata.labels["a"] = "2"
    assert event.object.metadata.labels == {"a": "2"}
    assert obj["metadata"]["labels"] == {"a": "1"}
    update = UpdateEvent(obj, raw(version="2"), kind)
    assert update.old is update.old
    assert (update.old.metadata.resource_version, update.new.metadata.resource_version) == ("1", "2")
