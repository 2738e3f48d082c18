"""The builder: what it wires, and what it says to wrong calls."""

from __future__ import annotations

import functools
import gc
from dataclasses import replace
from types import SimpleNamespace

import anyio
import pytest

from pyreconcile.api import CustomResource, KubeObject, Spec, Status, unstructured
from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap, Pod, Secret
from pyreconcile.controller import (
    PROCESS_NAMES,
    Builder,
    ChannelSource,
    Controller,
    ControllerNames,
    ControllerOptions,
    EnqueueObject,
    FunctionSource,
    GenerationChanged,
    GenericEvent,
    ObjectPredicate,
    ObjectReconciler,
    PredicateFuncs,
    Reconciler,
    Request,
    Result,
)
from pyreconcile.manager import Manager


class WidgetSpec(Spec):
    size: int = 1


class Widget(CustomResource[WidgetSpec, Status], group="labs.example.dev", version="v1"):
    """A test kind."""


class WidgetReconciler(Reconciler[Widget]):
    def __init__(self) -> None:
        self.keys: list[str] = []
        self.set_up: list[object] = []

    def setup(self, manager) -> None:
        self.set_up.append(manager)

    async def reconcile(self, request: Request) -> Result | None:
        self.keys.append(request.key)
        return None


async def nothing(request: Request) -> None: ...


def test_sr_13_name_is_the_lower_case_kind(host):
    reconciler = WidgetReconciler()
    controller = Builder(host).for_(Widget).complete(reconciler)
    assert controller.name == "widget"
    assert host.controllers == [controller]
    assert controller.needs_leader_election
    assert reconciler.set_up == [host]
    assert reconciler.client is host.client
    assert reconciler.cache is host.cache
    assert reconciler.recorder.component == "widget"
    assert Builder(host).for_(Widget).named("other").complete(nothing).name == "other"


def test_a_controller_of_every_replica_gets_the_unfenced_client_and_no_fence(host):
    host.elector = SimpleNamespace(check=lambda: None)
    reconciler = WidgetReconciler()
    controller = (
        Builder(host).for_(Widget).with_options(ControllerOptions(needs_leader_election=False)).complete(reconciler)
    )
    assert reconciler.client is host.unfenced_client
    assert not controller.needs_leader_election
    assert controller._fence is None
    assert Builder(host).for_(Widget).named("b").complete(nothing)._fence is host.elector.check


@pytest.mark.rules("SR-12", "U-37")
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.complete(nothing), r"nothing is watched; say for_\(Kind\)"),
        (lambda b: b.owns(ConfigMap).complete(nothing), r"owns\(ConfigMap\) needs for_\(Kind\)"),
        (lambda b: b.for_(Widget).for_(ConfigMap), r"is for Widget already; use owns or watches"),
        (lambda b: b.watches(Pod, EnqueueObject()).complete(nothing), r"needs a name; say named\('…'\)"),
    ],
)
def test_sr_13_what_is_missing_is_said(host, build, message):
    with pytest.raises(ValueError, match=message):
        build(Builder(host))


@pytest.mark.rules("U-37")
def test_sr_13_two_reconcilers_are_an_error(host):
    builder = Builder(host).for_(Widget)
    builder.complete(nothing)
    with pytest.raises(ValueError, match="has a reconciler already"):
        builder.complete(nothing)


class AnotherReconciler(ObjectReconciler[ConfigMap]):
    async def reconcile_object(self, obj: ConfigMap) -> Result | None:
        return None


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda b: b.complete(WidgetReconciler), r"pass an instance, complete\(WidgetReconciler\(\)\)"),
        (lambda b: b.complete(3), r"pass a Reconciler, or async def reconcile"),
        (
            lambda b: b.complete(AnotherReconciler()),
            r"is a Reconciler\[ConfigMap\], but the builder has for_\(Widget\)",
        ),
        (lambda b: b.watches(Pod, EnqueueObject), "an instance of a Handler"),
        (lambda b: b.watches(Pod, None), "give a function that takes the object"),
        (lambda b: b.owns("ConfigMap"), r"owns\('ConfigMap'\): give a kind"),
        (lambda b: b.owns(KubeObject), r"owns\(KubeObject\): give a kind"),
        (lambda b: b.owns(Pod, predicates=GenerationChanged()), r"write predicates=\[GenerationChanged\(…\)\]"),
        (lambda b: b.owns(Pod, predicates=[GenerationChanged]), "is no predicate; give instances"),
        (lambda b: b.with_predicates(lambda event: True), "is no predicate"),
        (lambda b: b.with_options({"max_concurrent_reconciles": 2}), r"give a ControllerOptions\(…\)"),
    ],
)
def test_wrong_arguments_say_what_to_write(host, build, message):
    with pytest.raises(TypeError, match=message):
        build(Builder(host).for_(Widget))
    assert host.controllers == []


def test_options_are_checked():
    with pytest.raises(ValueError, match="max_concurrent_reconciles=0: give 1 or more"):
        ControllerOptions(max_concurrent_reconciles=0)
    with pytest.raises(ValueError, match="reconciliation_timeout=-1"):
        ControllerOptions(reconciliation_timeout=-1)


@pytest.mark.rules("U-30")
def test_rc_7_names_are_unique_in_the_process_unless_controller_or_manager_waives_it(host):
    other = type(host)()
    other.controller_names = host.controller_names  # as managers of one process have by default

    def build(host, skip=None):
        Builder(host).for_(Widget).with_options(ControllerOptions(skip_name_validation=skip)).complete(nothing)

    build(host)
    for same_process in (host, other):
        with pytest.raises(ValueError, match="this process has a controller named 'widget' already"):
            build(same_process)
    build(other, skip=True)
    other.options.skip_name_validation = True
    build(other)
    with pytest.raises(ValueError, match="'widget' already"):
        build(other, skip=False)  # the controller's word goes before the manager's
    build(type(host)())  # a registry of its own
    assert len(host.controllers) == 1
    assert len(other.controllers) == 2


def test_rc_7_names_are_free_again_when_the_manager_is_left_gone_or_the_registry_cleared(host):
    names = host.controller_names
    Builder(host).for_(Widget).complete(nothing)
    assert "widget" in names
    names.release(host)
    Builder(host).for_(Widget).complete(nothing)
    names.clear()
    other = type(host)()
    other.controller_names = names
    Builder(other).for_(Widget).complete(nothing)
    del other
    gc.collect()
    assert "widget" not in names


def test_rc_7_a_controller_that_could_not_be_added_takes_no_name(host):
    def refuse(runnable):
        raise RuntimeError("the manager is stopping")

    host.add = refuse
    with pytest.raises(RuntimeError, match="stopping"):
        Builder(host).for_(Widget).complete(nothing)
    assert "widget" not in host.controller_names


@pytest.mark.plane
async def test_rc_7_managers_share_the_registry_of_the_process_until_they_are_left(manager_options):
    async with Manager(manager_options) as first, Manager(manager_options) as second:
        assert first.controller_names is second.controller_names is PROCESS_NAMES
        Builder(first).for_(Widget).named("of-one-process").complete(nothing)
        with pytest.raises(ValueError, match="'of-one-process' already"):
            Builder(second).for_(Widget).named("of-one-process").complete(nothing)
        async with Manager(replace(manager_options, skip_name_validation=True)) as third:
            Builder(third).for_(Widget).named("of-one-process").complete(nothing)
        async with Manager(manager_options, controller_names=ControllerNames()) as fourth:
            Builder(fourth).for_(Widget).named("of-one-process").complete(nothing)
    assert "of-one-process" not in PROCESS_NAMES


def test_rc_7_name_and_reconciler_are_required(host):
    with pytest.raises(ValueError, match="name: a controller needs one"):
        Controller("", nothing)
    with pytest.raises(TypeError, match="reconcile: give a function that takes a Request, not None"):
        Controller("x", None)
    with pytest.raises(TypeError, match=r"complete\(None\): pass a Reconciler"):
        Builder(host).for_(Widget).complete(None)


def test_rc_8_defaults(host):
    controller = Builder(host).for_(Widget).complete(nothing)
    options = controller.options
    assert controller.concurrency == 1
    assert options.cache_sync_timeout == 120
    assert options.recover_panic
    assert options.needs_leader_election
    assert options.use_priority_queue
    assert not options.enable_warmup
    assert options.reconciliation_timeout == 0


def test_rc_9_concurrency_from_option_then_kind_then_manager_then_1(host):
    def workers(name, options=None, kind=Widget):
        builder = Builder(host).for_(kind).named(name)
        return builder.with_options(options or ControllerOptions()).complete(nothing).concurrency

    assert workers("a") == 1
    host.options.max_concurrent_reconciles = 3
    assert workers("b") == 3
    host.options.max_concurrent_reconciles_by_kind = {"Widget.labs.example.dev": 5, "ConfigMap": 6}
    assert workers("c") == 5
    assert workers("d", kind=ConfigMap) == 6
    assert workers("e", ControllerOptions(max_concurrent_reconciles=7)) == 7
    assert host.counters["e"].workers == 7
    assert Builder(host).watches(ConfigMap, EnqueueObject()).named("f").complete(nothing).concurrency == 3


def test_async_callables_are_accepted(host):
    class Call:
        async def __call__(self, request: Request) -> None: ...

    async def with_more(client, request: Request) -> None: ...

    Builder(host).for_(Widget).named("a").complete(Call())
    Builder(host).for_(Widget).named("b").complete(functools.partial(with_more, None))


def owned_by(name, kind="Widget", api_version="labs.example.dev/v1", uid="u", *, controller=True):
    return [{"apiVersion": api_version, "kind": kind, "name": name, "uid": uid, "controller": controller}]


@pytest.mark.looptime
async def test_sr_12_for_owns_and_watches_wake_the_right_objects(host, raw, run):
    async def to_widgets(secret: Secret) -> list[Request]:
        return [Request("ns", f"by-{secret.metadata.name}")]

    reconciler = WidgetReconciler()
    controller = (
        Builder(host)
        .for_(Widget)
        .owns(ConfigMap)
        .owns(Deployment, every_owner=True)
        .watches(Pod, lambda pod: [Request("ns", f"by-{pod.metadata.name}")])
        .watches(Secret, to_widgets)
        .complete(reconciler)
    )
    informers = host.cache.informers
    async with run(controller):
        informers[Widget].add(raw("w"))
        informers[ConfigMap].add(raw("c", owners=owned_by("owner")))
        informers[ConfigMap].add(raw("c", owners=owned_by("no", controller=False)))
        informers[Deployment].add(raw("d", owners=owned_by("plain-owner", controller=False)))
        informers[Pod].add(raw("pod"))
        informers[Secret].add(raw("secret"))
        await anyio.sleep(1)
    assert sorted(reconciler.keys) == ["ns/by-pod", "ns/by-secret", "ns/owner", "ns/plain-owner", "ns/w"]


@pytest.mark.rules("U-75")
@pytest.mark.looptime
async def test_sr_12_predicates_apply_to_their_own_watch_and_global_ones_to_all_but_raw_sources(host, raw, run):
    send, receive = anyio.create_memory_object_stream[GenericEvent](10)
    order = []

    def note(word, verdict=True):
        return ObjectPredicate(lambda obj: order.append(word) or verdict)

    async def feed(queue):
        queue.add(Request("", "fed"))

    reconciler = WidgetReconciler()
    controller = (
        Builder(host)
        .for_(Widget, predicates=[note("for")])
        .owns(ConfigMap, predicates=[note("owns", verdict=False)])
        .with_predicates(note("global"), PredicateFuncs(generic=lambda event: False))
        .watches_source(ChannelSource(receive, EnqueueObject()))
        .watches_source(FunctionSource(feed))
        .complete(reconciler)
    )
    async with run(controller):
        host.cache.informers[Widget].add(raw("w"))
        host.cache.informers[ConfigMap].add(raw("c", owners=owned_by("owner")))
        await send.send(GenericEvent(raw("channel"), Widget))
        await anyio.sleep(1)
    send.close()
    assert order == ["global", "for", "global", "owns"]
    assert sorted(reconciler.keys) == ["fed", "ns/channel", "ns/w"]


@pytest.mark.looptime
async def test_sr_6_match_uid_leaves_out_owners_that_were_replaced(host, raw, run):
    reconciler = WidgetReconciler()
    controller = Builder(host).for_(Widget).owns(ConfigMap, match_uid=True).complete(reconciler)
    host.cache.stored = {(Widget, "ns/new"): raw("new", uid="2"), (Widget, "ns/same"): raw("same", uid="u")}
    async with run(controller):
        for name in ("new", "same", "unknown"):
            host.cache.informers[ConfigMap].add(raw("c", owners=owned_by(name)))
        await anyio.sleep(1)
    assert reconciler.keys == ["ns/same", "ns/unknown"]


@pytest.mark.looptime
async def test_rc_16_object_reconciler_gets_the_object_and_skips_a_missing_one(host, raw, run):
    seen = []

    class ByObject(ObjectReconciler[ConfigMap]):
        async def reconcile_object(self, obj: ConfigMap) -> Result | None:
            seen.append(obj)
            return None

    there = ConfigMap.from_dict(raw("there"))

    async def find(kind, key):
        assert kind is ConfigMap
        return there if key == "ns/there" else None

    host.client.find = find
    host.cache.informer(ConfigMap).initial = [raw("there"), raw("gone")]
    controller = Builder(host).for_(ConfigMap).complete(ByObject())
    async with run(controller):
        await anyio.sleep(1)
    assert seen == [there]
    assert host.counters["configmap"].counts == {"success": 2}


def test_object_reconciler_needs_a_kind(host):
    class ByObject(ObjectReconciler):
        async def reconcile_object(self, obj) -> Result | None:
            return None

    with pytest.raises(TypeError, match=r"needs for_\(Kind\)"):
        Builder(host).watches(Pod, EnqueueObject()).named("x").complete(ByObject())


def test_unstructured_kinds_work_as_well(host):
    kind = unstructured("example.dev/v1", "Gadget")
    assert Builder(host).for_(kind).owns(unstructured("apps/v1", "Deployment")).complete(nothing).name == "gadget"
