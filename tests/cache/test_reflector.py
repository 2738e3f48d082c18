from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import orjson
import pytest
from structlog.testing import capture_logs

from pyreconcile.api import RawObject
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.cache import Backoff, Reflector, Scope, ServerSupport
from pyreconcile.client import (
    BadRequestError,
    ConnectionLostError,
    ExpiredError,
    ForbiddenError,
    GoneError,
    InternalServerError,
    InvalidError,
    RequestTimeoutError,
    TooManyRequestsError,
    error_from_status,
)

pytestmark = pytest.mark.looptime

TOO_LARGE = error_from_status({"reason": "Timeout", "details": {"causes": [{"reason": "ResourceVersionTooLarge"}]}})
REFUSED = ConnectionLostError("refused", refused=True)


class Sink:
    def __init__(self) -> None:
        self.calls: list[tuple[str, Any]] = []

    def prepare(self, obj: RawObject) -> RawObject:
        return obj

    async def replace(self, objects: Mapping[str, RawObject], version: str) -> None:
        self.calls.append(("replace", sorted(obj["metadata"]["name"] for obj in objects.values())))

    def apply(self, change: str, obj: RawObject) -> None:
        self.calls.append((change, obj["metadata"]["name"]))

    def progressed(self, version: str) -> None:
        self.calls.append(("at", version))


class Bench:
    def __init__(self, transport: Any, **options: Any) -> None:
        self.transport = transport
        self.sink = Sink()
        clock = anyio.current_time
        options.setdefault("support", ServerSupport(streaming_list=False))
        self.reflector = Reflector(
            transport,
            ConfigMap.resource,
            options.pop("scope", Scope()),
            self.sink,
            backoff=Backoff(clock=clock, random=lambda: 0.0),
            clock=clock,
            random=lambda: 0.0,
            **options,
        )

    async def until(self, condition: Callable[[], Any]) -> None:
        with anyio.fail_after(100_000):
            while not condition():
                await anyio.sleep(0.1)

    @property
    def changes(self) -> list[tuple[str, Any]]:
        return [call for call in self.sink.calls if call[0] != "at"]

    @property
    def versions(self) -> list[tuple[str | None, bool]]:
        """Of each watch: the version it starts from, and whether it is a streaming list."""
        return [(query.get("resourceVersion"), "sendInitialEvents" in query) for query in self.transport.watched]


@pytest.fixture
def reflecting() -> Any:
    @asynccontextmanager
    async def reflecting(transport: Any, **options: Any) -> AsyncIterator[Bench]:
        bench = Bench(transport, **options)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(bench.reflector.run)
            yield bench
            tasks.cancel_scope.cancel()

    return reflecting


@pytest.mark.rules("U-38", "RF-11")
async def test_rf_6_first_list_takes_any_version_and_the_watch_follows_it(scripted: Any, wire: Any, reflecting: Any):
    a, b = wire.config_map("a", 3), wire.config_map("b", 6)
    gone = wire.config_map("a", 7)
    transport = scripted(
        lists=[wire.list_answer([a], 5)],
        watches=[[wire.event("ADDED", b), wire.event("MODIFIED", b), wire.event("DELETED", gone), wire.SILENT]],
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(bench.changes) == 4)
        assert bench.changes == [("replace", ["a"]), ("ADDED", "b"), ("MODIFIED", "b"), ("DELETED", "a")]
        assert transport.listed == [{"resourceVersion": "0", "limit": "500"}]
        assert transport.watched == [
            {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": "300", "resourceVersion": "5"}
        ]
        assert bench.reflector.version == "7"


@pytest.mark.rules("RF-14", "U-43")
async def test_rf_13_14_bookmarks_move_the_version_and_the_next_watch_goes_on_from_there(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[wire.bookmark(9), 300.0]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert bench.versions[1] == ("9", False)
        assert bench.changes == [("replace", [])]
        assert bench.sink.calls[-1] == ("at", "9")
        assert len(transport.listed) == 1
        assert bench.reflector.stats.errors == {}


async def test_rf_13_a_watch_that_ends_after_lasting_is_followed_by_the_next_at_once(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[60.0], [60.0]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 3)
        assert transport.times[-1] - transport.times[0] == pytest.approx(120.0, abs=0.1)
        assert len(transport.listed) == 1


async def test_rf_1_a_very_short_watch_without_event_waits_and_lists_at_the_last_version(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(lists=[wire.list_answer([], 5), wire.list_answer([], 6)], watches=[[]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.listed[1] == {"resourceVersion": "5"}
        assert transport.times[2] - transport.times[1] == pytest.approx(0.8, abs=0.05)
        assert "WatchFailedError" in bench.reflector.stats.errors


@pytest.mark.parametrize("error", [TooManyRequestsError("busy"), REFUSED, ConnectionLostError("reset")])
@pytest.mark.rules("U-39", "U-40")
async def test_rf_11_refused_or_shed_watch_waits_longer_each_time_and_never_lists(
    scripted: Any, wire: Any, reflecting: Any, error: Exception
):
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[error] * 4)
    with capture_logs() as logs:
        async with reflecting(transport) as bench:
            await bench.until(lambda: len(transport.watched) == 5)
        assert [entry["event"] for entry in logs] == ["watch_failed"] * 4
        waits = [after - before for before, after in zip(transport.times[1:], transport.times[2:], strict=False)]
        assert waits == pytest.approx([0.8, 1.6, 3.2, 6.4], abs=0.05)
        assert len(transport.listed) == 1
        assert {version for version, _ in bench.versions} == {"5"}


@pytest.mark.rules("RF-1", "U-40")
async def test_rf_11_refused_list_is_tried_again_after_growing_waits(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[REFUSED] * 3 + [wire.list_answer([], 5)])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "5")
        assert transport.times[3] == pytest.approx(transport.times[0] + 0.8 + 1.6 + 3.2, abs=0.05)


@pytest.mark.parametrize("in_stream", [False, True])
@pytest.mark.parametrize(("code", "reason"), [(410, "Expired"), (410, "Gone")])
@pytest.mark.rules("U-41", "RF-6")
async def test_rf_12_expired_watch_lists_with_the_last_version_first(
    scripted: Any, wire: Any, reflecting: Any, in_stream: bool, code: int, reason: str
):
    failure = [wire.error_event(code, reason)] if in_stream else error_from_status({"code": code, "reason": reason})
    transport = scripted(
        lists=[wire.list_answer([], 5), wire.list_answer([wire.config_map("a", 8)], 9)], watches=[failure]
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.listed[1:] == [{"resourceVersion": "5"}]
        assert bench.versions[1] == ("9", False)
        assert bench.changes[-1] == ("replace", ["a"])


async def test_o_02_expiry_after_a_watch_that_worked_is_listed_at_once_but_never_in_a_loop(
    scripted: Any, wire: Any, reflecting: Any
):
    lists = [wire.list_answer([], version) for version in (5, 7, 9)]
    expired = [wire.error_event(410, "Expired")]
    transport = scripted(lists=lists, watches=[[60.0], expired, expired])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "9")
        first, _, second_watch, at_once, _, after_wait = transport.times[:6]
        assert (second_watch - first, at_once - second_watch) == pytest.approx((60.0, 0.0), abs=0.05)
        assert after_wait - at_once == pytest.approx(0.8, abs=0.05)


@pytest.mark.parametrize("error", [ExpiredError("old"), GoneError("gone"), TOO_LARGE])
@pytest.mark.rules("U-41")
async def test_rf_6_a_refused_version_is_followed_at_once_by_a_list_of_the_newest_state(
    scripted: Any, wire: Any, reflecting: Any, error: Exception
):
    transport = scripted(
        lists=[wire.list_answer([], 5), error, wire.list_answer([], 9), wire.list_answer([], 11)],
        watches=[ExpiredError("old"), ExpiredError("old")],
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 3)
        assert transport.listed[1:] == [{"resourceVersion": "5"}, {"limit": "500"}, {"resourceVersion": "9"}]
        assert transport.times[3] == pytest.approx(transport.times[2], abs=0.01)


async def test_rf_12_shed_load_inside_a_stream_waits_and_watches_again(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[5.0, wire.error_event(429, "TooManyRequests")]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.times[2] - transport.times[1] == pytest.approx(5.8, abs=0.05)
        assert len(transport.listed) == 1


@pytest.mark.rules("U-44")
async def test_rf_12_an_internal_error_such_as_an_unreadable_object_lists_anew(
    scripted: Any, wire: Any, reflecting: Any
):
    a, b = wire.config_map("a", 3), wire.config_map("b", 4)
    transport = scripted(
        lists=[wire.list_answer([a, b], 5), wire.list_answer([a], 8)],
        watches=[[wire.error_event(500, "InternalError")]],
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "8")
        assert bench.changes == [("replace", ["a", "b"]), ("replace", ["a"])]


@pytest.mark.rules("U-38")
async def test_rf_14_events_of_unknown_type_kind_or_shape_are_dropped(scripted: Any, wire: Any, reflecting: Any):
    a = wire.config_map("a", 6)
    lines = [
        wire.event("RENAMED", a),
        wire.event("ADDED", {**a, "kind": "Secret"}),
        wire.event("ADDED", {"kind": "ConfigMap"}),
        wire.event("ADDED", {"kind": "ConfigMap", "metadata": None}),
        wire.event("ADDED", a),
    ]
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[*lines, wire.SILENT]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "6")
        assert bench.changes == [("replace", []), ("ADDED", "a")]


async def test_rf_12_a_line_that_is_no_json_lists_anew(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5), wire.list_answer([], 6)], watches=[[b"{broken"]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "6")


@pytest.mark.rules("U-38")
async def test_rf_15_additions_of_a_watch_from_nowhere_do_not_move_the_version(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(
        lists=[wire.list_answer([], "")],
        watches=[
            [wire.event("ADDED", wire.config_map("a", 9)), wire.event("ADDED", wire.config_map("b", 4)), 60.0],
            [wire.event("ADDED", wire.config_map("c", 5)), wire.event("MODIFIED", wire.config_map("c", 12)), 60.0],
        ],
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 3)
        assert [version for version, _ in bench.versions] == [None, None, "12"]
        assert [call for call in bench.sink.calls if call[0] == "at"] == [("at", "12")]


@pytest.mark.rules("PX-5")
async def test_rf_16_a_silent_stream_is_given_up_and_resumed_without_a_list(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(
        lists=[wire.list_answer([], 5)],
        watches=[[wire.event("ADDED", wire.config_map("a", 6)), wire.SILENT]],
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.times[2] - transport.times[1] == pytest.approx(70.0, abs=0.1)
        assert bench.versions[1] == ("6", False)
        assert (len(transport.listed), bench.reflector.stats.errors) == (1, {})


@pytest.mark.rules("PX-5")
async def test_rf_16_a_stream_kept_alive_past_the_servers_own_limit_is_ended(scripted: Any, wire: Any, reflecting: Any):
    chatter = [step for version in range(6, 60) for step in (30.0, wire.bookmark(version))]
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[chatter])
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.times[2] - transport.times[1] == pytest.approx(305.0, abs=0.1)
        assert len(transport.listed) == 1


@pytest.mark.parametrize("error", [ConnectionLostError("cut"), RequestTimeoutError("no answer", code=0)])
@pytest.mark.rules("U-43")
async def test_rf_13_a_stream_cut_after_lasting_is_resumed_at_once_and_without_a_list(
    scripted: Any, wire: Any, reflecting: Any, error: Exception
):
    transport = scripted(
        lists=[wire.list_answer([], 5)], watches=[[wire.event("ADDED", wire.config_map("a", 6)), 9.0, error]]
    )
    async with reflecting(transport) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert transport.times[2] - transport.times[1] == pytest.approx(9.0, abs=0.05)
        assert (bench.versions[1], len(transport.listed)) == (("6", False), 1)


async def test_rf_17_other_tasks_get_their_turn_during_a_long_burst(scripted: Any, wire: Any, reflecting: Any):
    big = {**wire.config_map("a", 6), "data": {"text": "x" * 100_000}}
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[wire.event("MODIFIED", big)] * 200])
    async with reflecting(transport) as bench:
        seen = set()
        while len(bench.changes) < 201:
            seen.add(len(bench.changes))
            await anyio.lowlevel.checkpoint()
        assert len(seen) >= 15


async def test_rf_18_only_so_many_lists_run_at_once(scripted: Any, wire: Any, reflecting: Any):
    lists = anyio.Semaphore(1)
    async with (
        reflecting(scripted(lists=[]), lists=lists) as slow,
        reflecting(scripted(lists=[wire.list_answer([], 5)]), lists=lists) as waiting,
    ):
        await anyio.sleep(100)
        assert len(slow.transport.listed) == 1
        assert waiting.transport.listed == []
    async with (
        reflecting(scripted(lists=[wire.list_answer([], 5)]), lists=lists) as first,
        reflecting(scripted(lists=[wire.list_answer([], 5)]), lists=lists) as second,
    ):
        await first.until(lambda: first.reflector.version and second.reflector.version)


async def test_rf_18_cancelled_reflector_closes_its_stream_at_once(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5)])
    async with reflecting(transport) as bench:
        await bench.until(lambda: transport.open_streams)
        before = anyio.current_time()
    assert (transport.open_streams, anyio.current_time()) == (0, before)


@pytest.mark.rules("RF-3", "U-46")
async def test_rf_2_3_streaming_list_replaces_at_its_mark_and_goes_on_with_the_same_stream(
    scripted: Any, wire: Any, reflecting: Any
):
    a, b, c = (wire.config_map(name, version) for name, version in (("a", 3), ("b", 4), ("c", 8)))
    transport = scripted(
        watches=[
            [
                wire.event("ADDED", b),
                wire.event("ADDED", a),
                wire.bookmark(5),
                wire.bookmark(7, end=True),
                wire.event("ADDED", c),
                wire.SILENT,
            ]
        ]
    )
    async with reflecting(transport, support=ServerSupport()) as bench:
        await bench.until(lambda: bench.reflector.version == "8")
        assert bench.changes == [("replace", ["a", "b"]), ("ADDED", "c")]
        assert transport.watched == [
            {
                "watch": "true",
                "allowWatchBookmarks": "true",
                "timeoutSeconds": "300",
                "sendInitialEvents": "true",
                "resourceVersionMatch": "NotOlderThan",
            }
        ]
        assert transport.listed == []


@pytest.mark.rules("U-46")
async def test_rf_3_changes_before_the_mark_are_part_of_the_initial_state(scripted: Any, wire: Any, reflecting: Any):
    a, b = wire.config_map("a", 3), wire.config_map("b", 4)
    lines = [wire.event("ADDED", a), wire.event("ADDED", b), wire.event("DELETED", a), wire.bookmark(7, end=True)]
    async with reflecting(scripted(watches=[[*lines, wire.SILENT]]), support=ServerSupport()) as bench:
        await bench.until(lambda: bench.changes)
        assert bench.changes == [("replace", ["b"])]


@pytest.mark.rules("U-46", "RF-4")
async def test_rf_2_streaming_list_after_a_failure_asks_for_the_last_version_and_after_expiry_for_none(
    scripted: Any, wire: Any, reflecting: Any
):
    transport = scripted(
        watches=[
            [wire.bookmark(7, end=True), wire.error_event(500, "InternalError")],
            ExpiredError("old"),
            [wire.bookmark(9, end=True), wire.SILENT],
        ]
    )
    async with reflecting(transport, support=ServerSupport()) as bench:
        await bench.until(lambda: bench.reflector.version == "9")
        assert bench.versions == [(None, True), ("7", True), (None, True)]
        assert transport.listed == []


async def test_a_streaming_list_whose_end_is_missing_is_warned_of_every_ten_seconds(
    scripted: Any, wire: Any, reflecting: Any
):
    added = wire.event("ADDED", wire.config_map("x", 3))
    transport = scripted(watches=[[added, 25.0, wire.bookmark(7, end=True), 60.0, wire.bookmark(9), wire.SILENT]])
    with capture_logs() as logs:
        async with reflecting(transport, support=ServerSupport()) as bench:
            await bench.until(lambda: bench.reflector.version == "9")
    assert [(log["event"], log["seconds"], log["kind"]) for log in logs] == [
        ("streaming_list_end_missing", 10, "ConfigMap"),
        ("streaming_list_end_missing", 20, "ConfigMap"),
    ]
    # Nor when it failed.
    transport = scripted(watches=[[added, 5.0, wire.error_event(500, "InternalError")]])
    with capture_logs() as logs:
        async with reflecting(transport, support=ServerSupport()):
            await anyio.sleep(100)
    assert "streaming_list_end_missing" not in [log["event"] for log in logs]


@pytest.mark.parametrize(("seconds", "logged"), [(9.0, []), (12.0, [("list_slow", 12.0, 1)])])
async def test_a_list_that_takes_longer_than_ten_seconds_is_logged(
    fake_server: Any, reflecting: Any, seconds: float, logged: list[Any]
):
    server = fake_server(streaming=False)
    server.put("n/a")
    server.answer_after = seconds
    with capture_logs() as logs:
        async with reflecting(server) as bench:
            await bench.until(lambda: bench.reflector.version)
    assert [(log["event"], log["seconds"], log["objects"]) for log in logs] == logged


@pytest.mark.parametrize("error", [REFUSED, TooManyRequestsError("busy")])
@pytest.mark.rules("U-46")
async def test_rf_4_streaming_list_that_is_refused_or_shed_is_tried_again(
    scripted: Any, wire: Any, reflecting: Any, error: Exception
):
    transport = scripted(watches=[error, error, [wire.bookmark(7, end=True), wire.SILENT]])
    with capture_logs() as logs:
        async with reflecting(transport, support=ServerSupport()) as bench:
            await bench.until(lambda: bench.reflector.version == "7")
        assert [entry["event"] for entry in logs] == ["watch_failed"] * 2
        assert transport.times[2] == pytest.approx(transport.times[0] + 0.8 + 1.6, abs=0.05)
        assert transport.listed == []


@pytest.mark.parametrize(
    "refusal",
    [
        "sendInitialEvents: Forbidden: sendInitialEvents is forbidden for watch unless the feature gate is enabled",
        "resourceVersionMatch: Forbidden: resourceVersionMatch is forbidden for watch",  # it knows no streaming lists
    ],
)
@pytest.mark.rules("U-46")
async def test_rf_5_a_server_without_streaming_lists_costs_one_request_once(
    scripted: Any, wire: Any, reflecting: Any, refusal: str
):
    support = ServerSupport()
    first = scripted(lists=[wire.list_answer([], 5)], watches=[InvalidError(refusal)])
    second = scripted(lists=[wire.list_answer([], 5)])
    async with reflecting(first, support=support) as bench:
        await bench.until(lambda: len(first.watched) == 2)
        assert first.times[1] == pytest.approx(first.times[0], abs=0.01)
        assert bench.versions == [(None, True), ("5", False)]
        assert not support.streaming_list
    async with reflecting(second, support=support) as bench:
        await bench.until(lambda: second.watched)
        assert bench.versions == [("5", False)]


@pytest.mark.parametrize(
    "watch",
    [
        ForbiddenError("watch"),
        InternalServerError("no"),
        BadRequestError("field label not supported: spec.x"),
        "error event",
        "end without mark",
        "silence",
    ],
)
@pytest.mark.rules("U-46")
async def test_rf_4_another_failure_of_the_streaming_list_gives_an_ordinary_list_for_this_round(
    scripted: Any, wire: Any, reflecting: Any, watch: Any
):
    added = wire.event("ADDED", wire.config_map("x", 3))
    steps = {
        "error event": [added, wire.error_event(500, "InternalError")],
        "end without mark": [added, 5.0],
        "silence": [added, wire.SILENT],
    }
    support = ServerSupport()
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[steps[watch] if isinstance(watch, str) else watch])
    async with reflecting(transport, support=support) as bench:
        await bench.until(lambda: len(transport.watched) == 2)
        assert bench.changes == [("replace", [])]
        assert bench.versions[1] == ("5", False)
        assert support.streaming_list


async def test_rf_11_another_refusal_of_a_watch_lists_anew(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5), wire.list_answer([], 6)], watches=[ForbiddenError("no")])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "6")
        assert isinstance(bench.reflector.last_error, ForbiddenError)


async def test_rf_10_scope_is_sent_with_list_and_watch(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5)])
    scope = Scope(namespace="n", labels="a=b", fields="metadata.name=x")
    async with reflecting(transport, scope=scope) as bench:
        await bench.until(lambda: transport.watched)
        for query in (transport.listed[0], transport.watched[0]):
            assert (query["labelSelector"], query["fieldSelector"]) == ("a=b", "metadata.name=x")


async def test_rf_17_each_line_is_parsed_once_and_whole(scripted: Any, wire: Any, reflecting: Any):
    big = {**wire.config_map("a", 6), "data": {"text": "ü" * 5_000_000}}
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[orjson.dumps({"type": "ADDED", "object": big})]])
    async with reflecting(transport) as bench:
        await bench.until(lambda: bench.reflector.version == "6")


async def test_o_19_time_without_a_watch_and_without_news_can_be_read(scripted: Any, wire: Any, reflecting: Any):
    transport = scripted(lists=[wire.list_answer([], 5)], watches=[[50.0, wire.bookmark(6), 60.0], *[REFUSED] * 8])
    async with reflecting(transport) as bench:
        await anyio.sleep(40)
        assert (bench.reflector.down_for, bench.reflector.silent_for) == (0.0, pytest.approx(40, abs=0.1))
        await anyio.sleep(40)
        assert bench.reflector.silent_for == pytest.approx(30, abs=0.1)
        await anyio.sleep(70)
        assert bench.reflector.down_for > 3
