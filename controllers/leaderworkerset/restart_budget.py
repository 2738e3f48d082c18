"""How soon a group that keeps failing is recreated again: an exponential delay that a set asks for. No I/O.

The Go controller recreates such a group at once, for ever (LWS §16.6), and so do we without the annotation.

What is known of a group, its record, stands in an annotation of the leader StatefulSet, one for each group: a manager
that starts anew goes on from there, and groups that fail at the same time do not overwrite each other's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Self

import orjson

from pyreconcile.api import Condition
from pyreconcile.controller import find_condition, remove_condition
from pyreconcile.controller import set_condition as set_one_condition
from pyreconcile_controllers.leaderworkerset.names import OWN_PREFIX, parse_number

BACKOFF_ANNOTATION: Final = OWN_PREFIX + "restart-backoff"
"""On a set: the delay before the second recreation in a row, such as ``10s``; it doubles with each one after that."""
BACKOFF_MAX_ANNOTATION: Final = OWN_PREFIX + "restart-backoff-max"
"""On a set: the longest delay."""
BACKOFF_RESET_ANNOTATION: Final = OWN_PREFIX + "restart-backoff-reset"
"""On a set: a group that did not fail for so long after its last recreation begins anew, with no delay."""
RECORD_PREFIX: Final = "restarts." + OWN_PREFIX + "group-"
"""On a leader StatefulSet, followed by a group's number: the group's record."""

CONDITION: Final = "RestartBackoff"
"""Type of the condition that is True while a group waits for its recreation."""

MAXIMUM: Final = timedelta(minutes=5)
"""Longest delay by default, as the kubelet has it for containers (kubelet's MaxContainerBackOff)."""
RESETS: Final = 2
"""The reset time by default, in longest delays; the kubelet's rule for containers."""
LIMIT: Final = timedelta(days=7)
"""The longest time that an annotation may give."""

_DOUBLINGS = 40  # more than it takes from a millisecond to the limit
_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)", re.ASCII)
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_NAMED = 3


def parse_duration(text: str) -> timedelta:
    """Read a length of time such as ``10s``, ``1m30s`` or ``500ms``.

    Raises:
        ValueError: it does not read as one, or is not above 0 and at most `LIMIT`.
    """
    parts = _PART.findall(text)
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ValueError("write a length of time such as 10s, 5m or 1m30s")
    if not 0 < seconds <= LIMIT.total_seconds():
        raise ValueError(f"must be more than 0 and at most {LIMIT.days * 24}h")
    return timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Backoff:
    """What a set asks for: the first delay, the longest one, and the time after which a group begins anew."""

    initial: timedelta
    maximum: timedelta = MAXIMUM
    reset: timedelta = RESETS * MAXIMUM

    @classmethod
    def read(cls, annotations: Mapping[str, str]) -> Self | None:
        """Read a set's annotations; None when it asks for no delay.

        Raises:
            ValueError: see `problems`.
        """
        if BACKOFF_ANNOTATION not in annotations:
            return None
        for name, why in problems(annotations):
            raise ValueError(f"metadata.annotations.{name}: {why}")
        initial = parse_duration(annotations[BACKOFF_ANNOTATION])
        longest, reset = annotations.get(BACKOFF_MAX_ANNOTATION), annotations.get(BACKOFF_RESET_ANNOTATION)
        maximum = parse_duration(longest) if longest is not None else max(MAXIMUM, initial)
        return cls(initial, maximum, parse_duration(reset) if reset is not None else RESETS * maximum)

    def delay(self, recreations: int) -> timedelta:
        """Return the shortest time between the last of so many recreations in a row and the next; none before one."""
        if recreations <= 0:
            return timedelta()
        doublings = recreations - 1
        seconds = self.initial.total_seconds() * 2.0 ** min(doublings, _DOUBLINGS)
        return min(self.maximum, timedelta(seconds=min(seconds, LIMIT.total_seconds())))


def problems(annotations: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    """Give the annotations of the budget that cannot be used, each with what is wrong."""
    read: dict[str, timedelta] = {}
    for name in (BACKOFF_ANNOTATION, BACKOFF_MAX_ANNOTATION, BACKOFF_RESET_ANNOTATION):
        if name not in annotations:
            continue
        try:
            read[name] = parse_duration(annotations[name])
        except ValueError as error:
            yield name, str(error)
        if BACKOFF_ANNOTATION not in annotations:
            yield name, f"means nothing without {BACKOFF_ANNOTATION}; give that one too"
    initial, maximum = read.get(BACKOFF_ANNOTATION), read.get(BACKOFF_MAX_ANNOTATION)
    if initial is not None and maximum is not None and maximum < initial:
        yield BACKOFF_MAX_ANNOTATION, f"must not be shorter than {BACKOFF_ANNOTATION}"


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of a pod: its name, the UID of its leader, and when it was seen."""

    pod: str
    leader: str
    at: datetime


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of one group.

    Attributes:
        recreations: how many there were in a row.
        last: when the last of them was.
        leader: UID of the leader that is deleted for it.
        revision: revision key of that leader; a group of another revision begins anew.
        failure: what the last recreation was for, or, with the UID of a later leader, what the next one waits for.
    """

    recreations: int
    last: datetime
    leader: str
    revision: str
    failure: Failure

    def to_text(self) -> str:
        """Return the record as the annotation holds it."""
        raw: dict[str, Any] = {
            "recreations": self.recreations,
            "last": _time_text(self.last),
            "leader": self.leader,
            "revision": self.revision,
            "failed": {"pod": self.failure.pod, "leader": self.failure.leader, "at": _time_text(self.failure.at)},
        }
        return orjson.dumps(raw).decode()

    @classmethod
    def from_text(cls, text: str | None) -> Self | None:
        """Read an annotation; None when there is none, or none that can be read: then the group begins anew."""
        if not text:
            return None
        try:
            raw = orjson.loads(text)
            failed = raw["failed"]
            failure = Failure(str(failed["pod"]), str(failed["leader"]), _time(failed["at"]))
            return cls(int(raw["recreations"]), _time(raw["last"]), str(raw["leader"]), str(raw["revision"]), failure)
        except (AttributeError, KeyError, TypeError, ValueError):
            return None

    @property
    def waits(self) -> bool:
        """Whether a recreation waits."""
        return self.failure.leader != self.leader

    def waits_for(self, leader: str) -> bool:
        """Tell whether the recreation of the group of this very leader waits."""
        return self.waits and self.failure.leader == leader

    def is_over(self, backoff: Backoff, now: datetime) -> bool:
        """Tell whether the record is of no more use: the group has been stable, or away, for long enough."""
        if self.waits:
            return now - self.failure.at >= backoff.maximum + backoff.reset
        return now - self.last >= backoff.reset


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do about a failure: write the record, and recreate the group when ``wait`` is over."""

    record: Record
    wait: timedelta

    @property
    def now(self) -> bool:
        """Whether the group is to be recreated at once."""
        return self.wait <= timedelta()


def due(backoff: Backoff, record: Record | None, failure: Failure, revision: str) -> datetime:
    """Return when a group may be recreated for a failure; a time that is past means now."""
    if record is None or record.revision != revision or failure.at - record.last >= backoff.reset:
        return failure.at
    # A record from a manager whose clock is ahead must not make the group wait for longer.
    return min(record.last, failure.at) + backoff.delay(record.recreations)


def decide(backoff: Backoff, record: Record | None, *, leader: str, revision: str, pod: str, now: datetime) -> Decision:
    """Decide what follows from the failure of a pod, or from another look at one that waits.

    Args:
        backoff: what the set asks for.
        record: what is known of the group.
        leader: UID of the group's leader.
        revision: its revision key.
        pod: the pod that failed; a failure of this leader's group that waits already keeps its own.
        now: the time.
    """
    if record is not None and record.leader == leader:
        return Decision(record, timedelta())  # decided before; its deletion may have been interrupted
    failure = Failure(pod, leader, now)
    if record is not None and record.waits_for(leader):
        failure = record.failure
    wait = due(backoff, record, failure, revision) - now
    if record is not None and wait > timedelta():
        return Decision(replace(record, failure=failure), wait)
    fresh = record is None or record.revision != revision or failure.at - record.last >= backoff.reset
    before = 0 if record is None or fresh else record.recreations
    return Decision(Record(before + 1, now, leader, revision, failure), timedelta())


def records(annotations: Mapping[str, str]) -> dict[int, Record]:
    """Return the groups' records from a leader StatefulSet's annotations."""
    found = {}
    for name, text in annotations.items():
        if name.startswith(RECORD_PREFIX):
            group, record = parse_number(name.removeprefix(RECORD_PREFIX)), Record.from_text(text)
            if record is not None and group is not None:
                found[group] = record
    return found


def changes(
    annotations: Mapping[str, str], group: int, record: Record | None, backoff: Backoff | None, now: datetime
) -> dict[str, str | None]:
    """Return the annotations to set (None: to remove) so that a group has this record and no old ones are left."""
    changed: dict[str, str | None] = {}
    for other, known in records(annotations).items():
        if other != group and (backoff is None or known.is_over(backoff, now)):
            changed[f"{RECORD_PREFIX}{other}"] = None
    name = f"{RECORD_PREFIX}{group}"
    text = None if record is None else record.to_text()
    if annotations.get(name) != text:
        changed[name] = text
    return changed


def set_condition(
    conditions: list[Condition],
    backoff: Backoff | None,
    annotations: Mapping[str, str],
    leaders: Mapping[str, str],
    *,
    generation: int | None,
    now: datetime,
) -> None:
    """Bring the condition up to date: True while groups wait, absent on a set that asks for no delays.

    Args:
        conditions: those of the set, which are changed in place.
        backoff: what the set asks for.
        annotations: the leader StatefulSet's.
        leaders: revision keys of the leaders that are there, by UID.
        generation: the set's.
        now: the time.
    """
    if backoff is None:
        remove_condition(conditions, CONDITION)
        return
    waiting = []
    for group, record in sorted(records(annotations).items()):
        if record.waits and record.failure.leader in leaders:
            at = due(backoff, record, record.failure, leaders[record.failure.leader])
            waiting.append(
                f"group {group} is recreated at {_time_text(at, 'seconds')} because of pod {record.failure.pod}, "
                f"after {recreated(record.recreations)}"
            )
    if not waiting and find_condition(conditions, CONDITION) is None:
        return
    rest = f"; and {len(waiting) - _NAMED} more" if len(waiting) > _NAMED else ""
    wanted = Condition(
        type=CONDITION,
        status="True" if waiting else "False",
        reason="GroupsWaiting" if waiting else "NoGroupWaits",
        message="; ".join(waiting[:_NAMED]) + rest if waiting else "no group waits to be recreated",
        last_transition_time=now,
        observed_generation=generation,
    )
    set_one_condition(conditions, wanted)


def recreated(recreations: int) -> str:
    """Say how often in a row."""
    return "1 recreation" if recreations == 1 else f"{recreations} recreations in a row"


def _time_text(moment: datetime, precision: str = "milliseconds") -> str:
    return moment.astimezone(UTC).isoformat(timespec=precision).replace("+00:00", "Z")


def _time(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"{text} names no time zone")
    return moment
