"""Sources and their start: sync before work, time limits, channels."""

from __future__ import annotations

import asyncio

import anyio
import pytest
from structlog.testing import capture_logs

from pyreconcile.api.core_v1 import ConfigMap, Pod, Secret
from pyreconcile.controller import (
    Builder,
    ChannelSource,
    Controller,
    ControllerOptions,
    EnqueueObject,
    FunctionSource,
    GenericEvent,
    HandlerFuncs,
    InformerSource,
    KindSource,
    MappedSource,
    ObjectPredicate,
    PredicateFuncs,
    Request,
)

pytestmark = pytest.mark.looptime


class Calls:
    def __init__(self) -> None:
        self.keys: list[str] = []

    async def reconcile(self, request: Request) -> None:
        self.keys.append(request.key)


@pytest.mark.rules("U-25")
async def test_rc_12_no_reconcile_before_every_handler_saw_the_initial_list(host, raw):
    slow, fast = host.cache.informer(ConfigMap), host.cache.informer(Secret)
    slow.sync_at_once = False
    slow.initial, fast.initial = [raw("slow")], [raw("fast")]
    calls = Calls()
    controller = Controller(
        "c",
        calls.reconcile,
        sources=[KindSource(host.cache, kind, EnqueueObject()) for kind in (ConfigMap, Secret)],
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(50)
        assert len(controller.queue) == 1
        assert calls.keys == []
        slow.sync()
        await anyio.sleep(1)
        assert calls.keys == ["ns/fast", "ns/slow"]
        stop.set()
    assert slow.registrations == fast.registrations == []


@pytest.mark.rules("U-26")
async def test_rc_11_sync_timeout_names_the_source(host):
    host.cache.informer(ConfigMap).sync_at_once = False
    controller = Controller(
        "c",
        Calls().reconcile,
        sources=[KindSource(host.cache, kind, EnqueueObject()) for kind in (ConfigMap, Secret)],
        options=ControllerOptions(cache_sync_timeout=5),
    )
    with pytest.raises(TimeoutError, match="controller c: no sync within 5 s of kind v1 ConfigMap;"):
        await controller.run(anyio.Event())
    assert host.cache.informer(ConfigMap).registrations == []


@pytest.mark.rules("U-27")
async def test_rc_11_a_source_whose_start_blocks_runs_into_the_same_limit():
    class Stuck:
        name = "stuck"

        async def run(self, queue, *, task_status):
            await anyio.sleep_forever()

    controller = Controller("c", Calls().reconcile, sources=[Stuck()], options=ControllerOptions(cache_sync_timeout=5))
    with pytest.raises(TimeoutError, match="stuck"):
        await controller.run(anyio.Event())


@pytest.mark.rules("U-26")
@pytest.mark.parametrize("how", ["stop", "cancel"])
async def test_rc_11_stop_or_cancel_while_syncing_is_no_error(host, how):
    host.cache.informer(ConfigMap).sync_at_once = False
    controller = Controller("c", Calls().reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject())])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(1)
        stop.set() if how == "stop" else tasks.cancel_scope.cancel()
    assert host.cache.informer(ConfigMap).registrations == []


async def test_rc_11_a_source_that_fails_to_start_is_the_error_itself():
    class Broken:
        name = "broken"

        async def run(self, queue, *, task_status):
            raise LookupError("no such thing")

    with pytest.raises(LookupError, match="no such thing"):
        await Controller("c", Calls().reconcile, sources=[Broken()]).run(anyio.Event())


@pytest.mark.rules("U-27")
async def test_rc_11_sources_start_side_by_side_and_start_and_sync_share_one_limit():
    class Slow:
        def __init__(self, number, start, sync):
            self.name = f"slow-{number}"
            self.start, self.sync = start, sync

        async def run(self, queue, *, task_status):
            began.append(self.name)
            await anyio.sleep(self.start)
            await anyio.sleep(self.sync)
            task_status.started()
            await anyio.sleep_forever()

    began: list[str] = []
    options = ControllerOptions(cache_sync_timeout=5)
    controller = Controller("c", Calls().reconcile, sources=[Slow(n, 2, 2) for n in range(20)], options=options)
    stop = anyio.Event()
    start = anyio.current_time()
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: controller.run(stop, task_status=task_status))
        assert anyio.current_time() - start == pytest.approx(4, abs=0.1), "one after the other would take 80 s"
        stop.set()
    assert len(began) == 20
    late = Controller("c", Calls().reconcile, sources=[Slow(1, 1, 1), Slow(2, 3, 3)], options=options)
    with pytest.raises(TimeoutError, match=r"no sync within 5 s of slow-2;"):
        await late.run(anyio.Event())


@pytest.mark.rules("U-31")
async def test_rc_10_a_controller_that_is_never_started_has_no_tasks_and_one_that_ended_neither(host, run):
    before = asyncio.all_tasks()
    controller = Controller("c", Calls().reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject())])
    controller.watch(KindSource(host.cache, Secret, EnqueueObject()))
    await anyio.sleep(60)
    assert asyncio.all_tasks() == before
    assert controller.queue is None
    assert host.cache.informers == {}
    async with run(controller):
        assert len(asyncio.all_tasks()) > len(before)
    assert asyncio.all_tasks() == before


@pytest.mark.rules("U-28")
async def test_rc_10_a_second_start_is_an_error(run):
    controller = Controller("c", Calls().reconcile, sources=[])
    async with run(controller):
        with pytest.raises(RuntimeError, match="controller c was started before"):
            await controller.run(anyio.Event())
    with pytest.raises(RuntimeError, match="started before"):
        await controller.run(anyio.Event())


async def test_rc_13_a_source_added_to_a_running_controller_begins_at_once(host, raw, run):
    calls = Calls()
    controller = Controller("c", calls.reconcile)
    early, late = host.cache.informer(ConfigMap), host.cache.informer(Secret)
    early.initial, late.initial = [raw("early")], [raw("late")]
    controller.watch(KindSource(host.cache, ConfigMap, EnqueueObject()))
    async with run(controller):
        await anyio.sleep(1)
        assert calls.keys == ["ns/early"]
        assert controller._feed._sources == [], "the list of pending watches is freed"
        controller.watch(KindSource(host.cache, Secret, EnqueueObject()))
        await anyio.sleep(1)
        assert calls.keys == ["ns/early", "ns/late"]
    assert late.registrations == []


async def test_sr_1_an_informer_that_is_not_to_be_had_is_tried_again_every_10_s(host, raw, run):
    calls = Calls()
    host.cache.informer(ConfigMap).initial = [raw()]
    host.cache.failures = 3
    controller = Controller("c", calls.reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject())])
    stop = anyio.Event()
    with capture_logs() as logs:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(controller.run, stop)
            await anyio.sleep(29)
            assert calls.keys == []
            await anyio.sleep(2)
            assert calls.keys == ["ns/a"]
            stop.set()
    assert [line["event"] for line in logs] == ["informer_unavailable"] * 3
    assert "no matches for kind" in logs[0]["error"]


async def test_sr_1_the_tries_end_with_the_controller(host):
    host.cache.failures = 1000
    controller = Controller(
        "c",
        Calls().reconcile,
        sources=[KindSource(host.cache, ConfigMap, EnqueueObject())],
        options=ControllerOptions(cache_sync_timeout=0),
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(95)
        assert host.cache.failures == 990
        stop.set()
    await anyio.sleep(60)
    assert host.cache.failures == 990


@pytest.mark.rules("U-35")
async def test_sr_4_a_missed_delete_reaches_the_handler_with_the_last_object(host, raw, run):
    seen = []
    handler = HandlerFuncs(delete=lambda event, queue: seen.append((event.raw, event.state_unknown)))
    controller = Controller("c", Calls().reconcile, sources=[KindSource(host.cache, ConfigMap, handler)])
    async with run(controller):
        host.cache.informer(ConfigMap).delete(raw(version="9"), state_unknown=True)
    assert seen == [(raw(version="9"), True)]


@pytest.mark.parametrize("broken", [{}, {"metadata": None}, {"metadata": {}}, {"kind": "ConfigMap"}], ids=repr)
async def test_sr_4_an_object_without_metadata_is_logged_and_dropped(host, raw, run, broken):
    calls = Calls()
    send, channel = ChannelSource.open(EnqueueObject())
    controller = Controller("c", calls.reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject()), channel])
    informer = host.cache.informer(ConfigMap)
    with capture_logs() as logs:
        async with run(controller):
            informer.add(broken)
            informer.update(raw(), broken)
            informer.delete(broken)
            await send.send(GenericEvent(broken, ConfigMap))
            await send.send(GenericEvent(raw("whole"), ConfigMap))
            await anyio.sleep(1)
    send.close()
    assert calls.keys == ["ns/whole"]
    assert {line["event"] for line in logs} == {"event_without_metadata"}
    assert [line["event_type"] for line in logs] == ["create", "update", "delete", "generic"]


async def test_sr_4_all_predicates_must_let_an_event_pass(host, raw, run):
    calls = Calls()
    predicates = [
        ObjectPredicate(lambda obj: obj["metadata"]["name"] != "x"),
        PredicateFuncs(create=lambda event: False, update=lambda event: True, delete=lambda event: False),
    ]
    source = KindSource(host.cache, ConfigMap, EnqueueObject(), predicates=predicates)
    informer = host.cache.informer(ConfigMap)
    async with run(Controller("c", calls.reconcile, sources=[source])):
        informer.add(raw("a"))
        informer.delete(raw("b"))
        informer.update(raw("x"), raw("x", version="2"))
        informer.update(raw("c"), raw("c", version="2"))
        await anyio.sleep(1)
    assert calls.keys == ["ns/c"]


@pytest.mark.rules("U-36")
async def test_sr_2_channel_keeps_early_events_blocks_when_full_and_ends_when_closed(raw, run):
    send, receive = anyio.create_memory_object_stream[GenericEvent](2)
    calls = Calls()
    send.send_nowait(GenericEvent(raw("early"), ConfigMap))
    send.send_nowait(GenericEvent(raw("x"), ConfigMap))
    with pytest.raises(anyio.WouldBlock):
        send.send_nowait(GenericEvent(raw("full"), ConfigMap))
    source = ChannelSource(
        receive, EnqueueObject(), predicates=[ObjectPredicate(lambda obj: obj["metadata"]["name"] != "x")]
    )
    controller = Controller("c", calls.reconcile, sources=[source])
    async with run(controller):
        await anyio.sleep(1)
        await send.send(GenericEvent(raw("late"), ConfigMap))
        await anyio.sleep(1)
        assert calls.keys == ["ns/early", "ns/late"]
        sources = {task.get_name() for task in asyncio.all_tasks()}
        assert f"c {source.name}" in sources
        await send.aclose()
        await anyio.sleep(1)
        assert f"c {source.name}" not in {task.get_name() for task in asyncio.all_tasks()}, "the source has ended"
        assert len(sources) - 1 == len(asyncio.all_tasks())
        controller.queue.add(Request("ns", "after"))
        await anyio.sleep(1)
    assert calls.keys[-1] == "ns/after", "and the controller goes on"


@pytest.mark.rules("U-36")
async def test_sr_2_a_sender_waits_while_the_channel_is_full_and_its_consumer_is_not_there(raw, run):
    send, source = ChannelSource.open(EnqueueObject(), buffer=2)
    calls = Calls()
    sent: list[int] = []

    async def produce():
        for number in range(5):
            await send.send(GenericEvent(raw(f"n{number}"), ConfigMap))
            sent.append(number)
        send.close()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(produce)
        await anyio.sleep(60)
        assert sent == [0, 1], "it waits as long as nobody takes anything"
        async with run(Controller("c", calls.reconcile, sources=[source])):
            await anyio.sleep(1)
    assert sent == [0, 1, 2, 3, 4]
    assert calls.keys == [f"ns/n{number}" for number in range(5)]


async def test_sr_2_a_handler_that_raises_does_not_end_the_channel(raw, run):
    send, receive = anyio.create_memory_object_stream[GenericEvent](10)
    calls = Calls()

    def handle(event, queue):
        if event.raw["metadata"]["name"] == "bad":
            raise ValueError("bad")
        queue.add(Request.for_object(event.raw))

    source = ChannelSource(receive, HandlerFuncs(generic=handle))
    with capture_logs() as logs:
        async with run(Controller("c", calls.reconcile, sources=[source])):
            for name in ("bad", "good"):
                await send.send(GenericEvent(raw(name), ConfigMap))
            await anyio.sleep(1)
    send.close()
    assert calls.keys == ["ns/good"]
    assert logs[0]["event"] == "event_handler_failed"


async def test_sr_2_a_channel_of_its_own_holds_1024_events_and_no_more(raw, run):
    send, source = ChannelSource.open(EnqueueObject(), name="pods")
    assert source.name == "pods"
    for number in range(1024):
        send.send_nowait(GenericEvent(raw(f"n{number}"), ConfigMap))
    with pytest.raises(anyio.WouldBlock):
        send.send_nowait(GenericEvent(raw("full"), ConfigMap))
    calls = Calls()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(send.send, GenericEvent(raw("blocked"), ConfigMap))
        await anyio.sleep(1)
        async with run(Controller("c", calls.reconcile, sources=[source])):
            await anyio.sleep(1)
    send.close()
    assert calls.keys == [f"ns/n{number}" for number in range(1024)] + ["ns/blocked"]


async def test_sr_2_only_generic_events_reach_the_handler(raw, run):
    told: list[str] = []
    handler = HandlerFuncs(
        create=lambda event, queue: told.append("create"),
        update=lambda event, queue: told.append("update"),
        delete=lambda event, queue: told.append("delete"),
        generic=lambda event, queue: told.append("generic"),
    )
    send, source = ChannelSource.open(handler, predicates=[PredicateFuncs(create=lambda event: False)])
    async with run(Controller("c", Calls().reconcile, sources=[source])):
        await send.send(GenericEvent(raw(), ConfigMap))
        await anyio.sleep(1)
    send.close()
    assert told == ["generic"]


async def test_sr_3_a_ready_informer_is_a_source(host, raw, run):
    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw("there")]
    informer.sync_at_once = False
    calls = Calls()
    source = InformerSource(
        informer, ConfigMap, EnqueueObject(), predicates=[ObjectPredicate(lambda obj: obj["metadata"]["name"] != "x")]
    )
    assert source.name == "informer v1 ConfigMap"
    controller = Controller("c", calls.reconcile, sources=[source])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(5)
        assert calls.keys == []
        informer.sync()
        await anyio.sleep(1)
        informer.add(raw("x"))
        informer.add(raw("new"))
        await anyio.sleep(1)
        stop.set()
    assert calls.keys == ["ns/there", "ns/new"]
    assert informer.registrations == []


async def test_sr_3_a_plain_function_is_called_once_before_workers_begin(run):
    calls = Calls()

    def feed(queue) -> None:
        queue.add(Request("", "once"))

    async with run(Controller("c", calls.reconcile, sources=[FunctionSource(feed)])):
        await anyio.sleep(1)
    assert calls.keys == ["once"]

    def fail(queue) -> None:
        raise LookupError("nothing to feed")

    with pytest.raises(LookupError, match="nothing to feed"):
        await Controller("c", calls.reconcile, sources=[FunctionSource(fail)]).run(anyio.Event())


@pytest.mark.rules("SR-2")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda cache: KindSource(None, ConfigMap, EnqueueObject()), "KindSource: cache is None"),
        (lambda cache: KindSource(cache, None, EnqueueObject()), "KindSource: kind is None"),
        (lambda cache: KindSource(cache, ConfigMap, None), "KindSource: handler is None"),
        (lambda cache: KindSource(cache, ConfigMap, EnqueueObject), "give an instance of a Handler"),
        (lambda cache: InformerSource(None, ConfigMap, EnqueueObject()), "InformerSource: informer is None"),
        (lambda cache: InformerSource(cache.informer(Pod), None, EnqueueObject()), "InformerSource: kind is None"),
        (lambda cache: InformerSource(cache.informer(Pod), Pod, None), "InformerSource: handler is None"),
        (lambda cache: ChannelSource(None, EnqueueObject()), "ChannelSource: events is None"),
        (lambda cache: ChannelSource.open(None), "ChannelSource: handler is None"),
        (lambda cache: FunctionSource(None), "FunctionSource: None cannot be called"),
    ],
)
def test_sr_3_a_source_that_lacks_something_says_what(host, make, message):
    with pytest.raises(TypeError, match=message):
        make(host.cache)


async def test_sr_3_function_source_feeds_until_the_end(run):
    calls = Calls()

    async def every_minute(queue):
        while True:
            queue.add(Request("", "tick"))
            await anyio.sleep(60)

    async with run(Controller("c", calls.reconcile, sources=[FunctionSource(every_minute)])):
        await anyio.sleep(130)
    assert calls.keys == ["tick"] * 3


async def test_sr_7_async_map_keeps_order_and_finishes_the_initial_list_before_workers(host, raw):
    informer = host.cache.informer(Pod)
    informer.initial = [raw("a"), raw("b")]
    calls = Calls()
    mapped = []

    async def to_owner(pod: Pod) -> list[Request]:
        await anyio.sleep(5)
        mapped.append(pod.metadata.name)
        if pod.metadata.name == "bad":
            raise ValueError("bad")
        return [Request("ns", f"owner-of-{pod.metadata.name}")]

    controller = Controller("c", calls.reconcile, sources=[MappedSource(host.cache, Pod, to_owner)])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(9)
        assert calls.keys == []
        assert mapped == ["a"]
        await anyio.sleep(2)
        assert calls.keys == ["ns/owner-of-a", "ns/owner-of-b"]
        informer.add(raw("bad"))
        informer.update(raw("c"), raw("d", version="2"))
        informer.delete(raw("e"))
        with capture_logs() as logs:
            await anyio.sleep(30)
        stop.set()
    assert mapped == ["a", "b", "bad", "c", "d", "e"]
    assert calls.keys[2:] == ["ns/owner-of-c", "ns/owner-of-d", "ns/owner-of-e"]
    assert [line["event"] for line in logs] == ["map_function_failed"]


@pytest.mark.rules("PQ-13")
async def test_pq_14_an_async_map_function_lowers_like_the_others(host, raw, queue):
    async def to_requests(pod: Pod) -> list[Request]:
        return [Request("ns", pod.metadata.name)]

    informer = host.cache.informer(Pod)
    informer.initial = [raw("first")]
    async with anyio.create_task_group() as tasks:
        await tasks.start(MappedSource(host.cache, Pod, to_requests).run, queue)
        informer.update(raw("resync"), raw("resync"))
        informer.update(raw("news"), raw("news", version="2"))
        informer.add(raw("new"))
        informer.delete(raw("gone"))
        await anyio.sleep(1)
        tasks.cancel_scope.cancel()
    assert [(request.name, priority) for request, priority in queue.taken()] == [
        ("first", -100),
        ("resync", -100),
        ("news", 0),
        ("new", 0),
        ("gone", 0),
    ]


@pytest.mark.rules("WQ-16")
@pytest.mark.parametrize("use_priority_queue", [True, False])
async def test_pq_1_the_bucket_over_all_keys_is_there_only_without_the_priority_queue(run, use_priority_queue):
    calls = Calls()
    options = ControllerOptions(use_priority_queue=use_priority_queue)
    async with run(Controller("c", calls.reconcile, options=options)) as _:
        pass
    controller = Controller("c", calls.reconcile, options=options)
    async with run(controller):
        for number in range(120):
            controller.queue.add_rate_limited(Request("ns", f"n{number}"))
        await anyio.sleep(0.05)
        assert len(calls.keys) == (120 if use_priority_queue else 100)
        await anyio.sleep(2)
    assert len(calls.keys) == 120


@pytest.mark.rules("PQ-13", "RC-8")
async def test_pq_1_the_priority_queue_is_used_unless_an_option_turns_it_off(host, raw, run):
    host.cache.informer(ConfigMap).initial = [raw("a"), raw("b")]
    calls = Calls()

    def build(**options):
        source = KindSource(host.cache, ConfigMap, EnqueueObject())
        return Controller("c", calls.reconcile, sources=[source], options=ControllerOptions(**options))

    def news_during_the_first(controller):
        # The initial list is queued, and no worker has had a turn yet.
        assert len(controller.queue) == 2
        controller.queue.add(Request("ns", "news"))

    async with run(build()) as _:
        pass
    async with run(build(use_priority_queue=False)) as _:
        pass
    calls.keys.clear()
    controller = build()
    async with run(controller):
        assert repr(controller.queue).startswith("<PriorityQueue 'c'")
        news_during_the_first(controller)
        await anyio.sleep(1)
    assert calls.keys == ["ns/news", "ns/a", "ns/b"]
    calls.keys.clear()
    controller = build(use_priority_queue=False)
    async with run(controller):
        assert repr(controller.queue).startswith("<Queue 'c'")
        news_during_the_first(controller)
        await anyio.sleep(1)
    assert calls.keys == ["ns/a", "ns/b", "ns/news"], "priorities have no effect"
    assert repr(controller) == "<Controller 'c'>"


async def test_pq_13_the_low_priority_can_be_set(host, raw, run):
    priorities: list[int] = []
    handler = HandlerFuncs(
        create=lambda event, queue: priorities.append(event.priority),
        update=lambda event, queue: priorities.append(event.priority),
    )
    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw()]
    options = ControllerOptions(low_priority=-7)
    builder = Builder(host).for_(ConfigMap).watches(ConfigMap, handler).with_options(options)
    async with run(builder.complete(Calls().reconcile)):
        informer.update(raw(), raw())
        informer.update(raw(), raw(version="2"))
        informer.add(raw("new"))
    assert priorities == [-7, -7, 0, 0]


@pytest.mark.rules("U-29")
async def test_rc_15_warmup_fills_the_queue_and_the_reconciler_runs_only_after_the_start(host, raw):
    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw("a")]
    calls = Calls()
    options = ControllerOptions(enable_warmup=True)
    controller = Builder(host).for_(ConfigMap).with_options(options).complete(calls.reconcile)
    assert host.controllers == [controller]
    assert controller.needs_warmup  # so the manager calls warm_up before the election
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(lambda task_status: controller.warm_up(stop, task_status=task_status))
        informer.add(raw("b"))
        await anyio.sleep(60)
        assert len(controller.queue) == 2
        assert calls.keys == []
        await tasks.start(lambda task_status: controller.run(stop, task_status=task_status))
        informer.add(raw("c"))
        await anyio.sleep(1)
        assert calls.keys == ["ns/b", "ns/c", "ns/a"] or calls.keys == ["ns/b", "ns/a", "ns/c"]
        assert len(informer.registrations) == 1
        stop.set()
    assert informer.registrations == []


@pytest.mark.rules("U-28")
@pytest.mark.parametrize("first", ["run", "warm_up"])
async def test_rc_15_warmup_and_start_at_once_start_the_sources_once(host, raw, first):
    informer = host.cache.informer(ConfigMap)
    informer.initial = [raw("a")]
    informer.sync_at_once = False
    calls = Calls()
    controller = Controller("c", calls.reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject())])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        for method in (first, {"run": "warm_up", "warm_up": "run"}[first]):
            tasks.start_soon(getattr(controller, method), stop)
        await anyio.sleep(1)
        assert len(informer.registrations) == 1
        assert calls.keys == []
        informer.sync()
        await anyio.sleep(1)
        assert calls.keys == ["ns/a"]
        stop.set()


async def test_rc_15_a_warmup_that_never_leads_ends_with_the_stop(host):
    host.cache.informer(ConfigMap).sync_at_once = False
    controller = Controller("c", Calls().reconcile, sources=[KindSource(host.cache, ConfigMap, EnqueueObject())])
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(controller.warm_up, stop)
        tasks.start_soon(controller.run, stop)
        await anyio.sleep(1)
        stop.set()
    late = Controller(
        "c",
        Calls().reconcile,
        sources=[KindSource(host.cache, ConfigMap, EnqueueObject())],
        options=ControllerOptions(cache_sync_timeout=3),
    )
    with pytest.raises(TimeoutError, match="no sync within 3 s"):
        await late.warm_up(anyio.Event())


def test_rc_15_without_leader_election_nothing_extra_runs(host):
    options = ControllerOptions(enable_warmup=True, needs_leader_election=False)
    controller = Builder(host).for_(ConfigMap).with_options(options).complete(Calls().reconcile)
    assert host.controllers == [controller]
