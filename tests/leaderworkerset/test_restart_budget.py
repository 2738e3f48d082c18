"""How soon a group that keeps failing is recreated again: the arithmetic, without a cluster (LWS §16.6)."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import Condition
from pyreconcile_controllers.leaderworkerset import restart_budget
from pyreconcile_controllers.leaderworkerset.restart_budget import (
    BACKOFF_ANNOTATION,
    BACKOFF_MAX_ANNOTATION,
    BACKOFF_RESET_ANNOTATION,
    LIMIT,
    RECORD_PREFIX,
    Backoff,
    Failure,
    Record,
    changes,
    decide,
    due,
    parse_duration,
    problems,
    records,
    set_condition,
)

START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
NONE = timedelta()


def seconds(number):
    return timedelta(seconds=number)


# Whole milliseconds, as the record keeps them.
spans = st.integers(1, 3_600_000).map(lambda number: timedelta(milliseconds=number))
backoffs = st.tuples(spans, spans, spans).map(lambda times: Backoff(min(times[:2]), max(times[:2]), times[2]))
moments = st.integers(0, 10**9).map(lambda number: START + timedelta(milliseconds=number))
words = st.text(min_size=1, max_size=12)
records_of = st.builds(Record, st.integers(0, 10**6), moments, words, words, st.builds(Failure, words, words, moments))


@given(backoffs, st.integers(0, 200))
def test_lws_16_6_the_delay_doubles_up_to_the_longest(backoff, recreations):
    assert backoff.delay(0) == NONE
    assert backoff.delay(1) == backoff.initial
    assert NONE <= backoff.delay(recreations) <= backoff.delay(recreations + 1) <= backoff.maximum
    if recreations:
        assert backoff.delay(recreations + 1) == min(backoff.maximum, 2 * backoff.delay(recreations))


@given(records_of)
def test_lws_16_6_a_record_is_read_as_it_was_written(record):
    assert Record.from_text(record.to_text()) == record


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "nonsense",
        "[]",
        "1",
        '{"recreations": 1}',
        '{"recreations": 1, "last": "today", "leader": "u", "revision": "r", "failed": {}}',
        '{"recreations": 1, "last": "2026-01-02T03:04:05", "leader": "u", "revision": "r",'
        ' "failed": {"pod": "p", "leader": "u", "at": "2026-01-02T03:04:05Z"}}',
    ],
)
def test_lws_16_6_a_record_that_cannot_be_read_counts_as_none(text):
    assert Record.from_text(text) is None


class Group:
    """A group whose pods fail, and the controller that looks at it as often as it is told to; time is virtual."""

    def __init__(self, backoff):
        self.backoff = backoff
        self.now = START
        self.leader = 0
        self.text = None
        self.recreated = []

    def look(self, pod="p", revision="r"):
        """Decide on a failure as the controller does, from what is stored; return how long it waits."""
        decision = decide(
            self.backoff,
            Record.from_text(self.text),
            leader=f"u{self.leader}",
            revision=revision,
            pod=pod,
            now=self.now,
        )
        self.text = decision.record.to_text()
        if decision.now:
            self.recreated.append(self.now)
            self.leader += 1
            return NONE
        return decision.wait

    def fail(self, after, looks=()):
        """Fail so long after the last recreation, with looks in between, until the group is recreated."""
        self.now += after
        wait = self.look()
        for share in looks:
            if wait <= NONE:
                return
            self.now += share * wait
            wait = self.look(pod="another")
        self.now += wait
        if wait > NONE:
            assert self.look() == NONE


@given(backoffs, st.lists(st.tuples(spans, st.lists(st.sampled_from([0.25, 0.5, 0.9]), max_size=3)), max_size=12))
def test_lws_16_6_recreations_are_as_far_apart_as_their_number_says(backoff, failures):
    group, in_a_row = Group(backoff), 0
    for after, looks in failures:
        before = group.recreated[-1] if group.recreated else None
        failed = group.now + after
        group.fail(after, looks)
        now = group.recreated[-1]
        if before is None or failed - before >= backoff.reset:
            in_a_row = 0
            assert now == failed
        else:
            assert max(failed, before + backoff.delay(in_a_row)) - now < timedelta(milliseconds=2)
            assert now - max(failed, before + backoff.delay(in_a_row)) < timedelta(milliseconds=2)
            assert now - failed <= backoff.maximum + timedelta(milliseconds=2)
        in_a_row += 1
        assert Record.from_text(group.text).recreations == in_a_row
    assert len(group.recreated) == len(failures)


@given(backoffs, records_of, moments)
def test_lws_16_6_what_was_decided_stays_decided(backoff, record, now):
    """A process that ended between the record and the deletion leaves neither a second count nor a second delay."""
    decision = decide(backoff, record, leader="now", revision=record.revision, pod="p", now=now)
    again = decide(backoff, decision.record, leader="now", revision=record.revision, pod="q", now=now)
    if decision.now:
        assert again == decision
    else:
        assert again.record == decision.record
        assert again.wait == decision.wait
        assert decision.record.waits_for("now")
        assert not decision.record.waits_for("later")


@given(backoffs, records_of, moments)
def test_lws_16_6_another_revision_begins_anew(backoff, record, now):
    decision = decide(backoff, record, leader="new leader", revision=record.revision + "x", pod="p", now=now)
    assert decision.now
    assert decision.record.recreations == 1


@given(backoffs, st.integers(1, 50), moments, st.integers(0, 10**8))
def test_lws_16_6_a_clock_that_was_ahead_makes_no_group_wait_longer(backoff, recreations, now, ahead):
    last = now + timedelta(milliseconds=ahead)
    record = Record(recreations, last, "old", "r", Failure("p", "old", last))
    assert decide(backoff, record, leader="new", revision="r", pod="p", now=now).wait <= backoff.maximum


def test_lws_16_6_a_crash_loop_by_the_defaults():
    group = Group(Backoff.read({BACKOFF_ANNOTATION: "10s"}))
    for _ in range(8):
        group.fail(seconds(1))
    gaps = [int((after - before).total_seconds()) for before, after in pairwise(group.recreated)]
    assert gaps == [10, 20, 40, 80, 160, 300, 300]
    group.fail(seconds(599))
    assert int((group.recreated[-1] - group.recreated[-2]).total_seconds()) == 599
    group.fail(seconds(600))
    assert Record.from_text(group.text).recreations == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [("10s", 10), ("1m30s", 90), ("1.5h", 5400), ("250ms", 0.25), ("1h1m1s1ms", 3661.001), ("168h", 168 * 3600)],
)
def test_lws_16_6_lengths_of_time(text, expected):
    assert parse_duration(text).total_seconds() == pytest.approx(expected)


@pytest.mark.parametrize(
    "text", ["", "10", "s", "-1s", "0s", "10 s", "1d", "169h", "1s1", "1e3s", "٣s", "99999999999h"]
)
def test_lws_16_6_what_is_no_length_of_time(text):
    with pytest.raises(ValueError, match=r"write a length|must be more than 0"):
        parse_duration(text)


def test_lws_16_6_what_a_set_asks_for():
    assert Backoff.read({}) is None
    assert Backoff.read({BACKOFF_ANNOTATION: "10s"}) == Backoff(seconds(10), seconds(300), seconds(600))
    assert Backoff.read({BACKOFF_ANNOTATION: "10m"}) == Backoff(seconds(600), seconds(600), seconds(1200))
    assert Backoff.read({BACKOFF_ANNOTATION: "168h"}).delay(9) == LIMIT
    given_all = {BACKOFF_ANNOTATION: "1s", BACKOFF_MAX_ANNOTATION: "8s", BACKOFF_RESET_ANNOTATION: "1m"}
    assert Backoff.read(given_all) == Backoff(seconds(1), seconds(8), seconds(60))
    assert not list(problems(given_all))


@pytest.mark.parametrize(
    ("annotations", "name", "why"),
    [
        ({BACKOFF_ANNOTATION: "soon"}, BACKOFF_ANNOTATION, "write a length of time"),
        ({BACKOFF_ANNOTATION: "1s", BACKOFF_MAX_ANNOTATION: "0s"}, BACKOFF_MAX_ANNOTATION, "must be more than 0"),
        ({BACKOFF_ANNOTATION: "9s", BACKOFF_MAX_ANNOTATION: "1s"}, BACKOFF_MAX_ANNOTATION, "must not be shorter than"),
        ({BACKOFF_RESET_ANNOTATION: "1s"}, BACKOFF_RESET_ANNOTATION, "means nothing without"),
    ],
)
def test_lws_16_6_annotations_that_cannot_be_used_are_named(annotations, name, why):
    ((found, text),) = problems(annotations)
    assert found == name
    assert why in text
    if BACKOFF_ANNOTATION in annotations:
        with pytest.raises(ValueError, match=f"metadata.annotations.{name}: "):
            Backoff.read(annotations)


BACKOFF = Backoff(seconds(10), seconds(40), seconds(60))


def waiting(group=0, *, leader="new", pod="demo-0-1", recreations=2):
    record = Record(recreations, START, "old", "r", Failure(pod, leader, START + seconds(1)))
    return {f"{RECORD_PREFIX}{group}": record.to_text()}


def test_lws_16_6_a_change_writes_one_record_and_drops_those_that_are_over():
    over = {f"{RECORD_PREFIX}7": Record(1, START, "u", "r", Failure("p", "u", START)).to_text()}
    foreign = {"other": "value", f"{RECORD_PREFIX}x": "?"}
    now = START + seconds(60)
    annotations = {**foreign, **over, **waiting(3)}
    record = Record(1, now, "u", "r", Failure("p", "u", now))
    assert set(records(annotations)) == {3, 7}
    assert changes(annotations, 0, record, BACKOFF, now) == {
        f"{RECORD_PREFIX}0": record.to_text(),
        f"{RECORD_PREFIX}7": None,
    }
    assert changes(annotations, 3, records(annotations)[3], BACKOFF, START) == {}
    assert changes({}, 0, None, None, now) == {}
    assert changes(annotations, 3, None, None, now) == {f"{RECORD_PREFIX}3": None, f"{RECORD_PREFIX}7": None}


def test_lws_16_6_a_failure_of_a_group_that_went_away_is_forgotten_in_the_end():
    record = records(waiting())[0]
    assert not record.is_over(BACKOFF, START + seconds(100))
    assert record.is_over(BACKOFF, START + seconds(101))


def shown(conditions, backoff, annotations, leaders, now=START):
    set_condition(conditions, backoff, annotations, leaders, generation=2, now=now)
    return [(item.status, item.reason, item.message, item.last_transition_time) for item in conditions]


def test_lws_16_6_the_condition_names_what_waits_and_until_when():
    conditions = []
    text = "group 0 is recreated at 2026-01-02T03:04:25Z because of pod demo-0-1, after 2 recreations in a row"
    assert shown(conditions, BACKOFF, {}, {"new": "r"}) == []
    assert shown(conditions, BACKOFF, waiting(), {"other": "r"}) == []
    first = shown(conditions, BACKOFF, waiting(), {"new": "r"})
    assert first == [("True", "GroupsWaiting", text, START)]
    assert shown(conditions, BACKOFF, waiting(), {"new": "r"}, START + seconds(1)) == first
    later = START + seconds(2)
    over = [("False", "NoGroupWaits", "no group waits to be recreated", later)]
    assert shown(conditions, BACKOFF, {}, {"new": "r"}, later) == over
    assert shown(conditions, BACKOFF, waiting(leader="old"), {"old": "r"}, START) == over
    assert shown(conditions, None, waiting(), {"new": "r"}) == []


def test_lws_16_6_the_condition_names_three_groups_and_counts_the_rest():
    annotations = {name: text for group in range(5) for name, text in waiting(group, recreations=1).items()}
    ((_, _, message, _),) = shown([], BACKOFF, annotations, {"new": "r"})
    assert message.count("after 1 recreation") == 3
    assert message.endswith("; and 2 more")


def test_lws_16_6_other_conditions_are_left_alone():
    other = Condition(type="Available", status="True", reason="R", message="m", last_transition_time=START)
    conditions = [other]
    set_condition(conditions, BACKOFF, waiting(), {"new": "r"}, generation=1, now=START)
    set_condition(conditions, None, {}, {}, generation=1, now=START)
    assert conditions == [other]
    assert restart_budget.CONDITION == "RestartBackoff"


def test_lws_16_6_due_is_when_it_failed_for_a_group_that_begins_anew():
    failure = Failure("p", "u", START)
    assert due(BACKOFF, None, failure, "r") == START
