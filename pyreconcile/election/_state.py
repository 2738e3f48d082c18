"""The decisions of one candidate: pure, no I/O, no clock of its own (rules LE-1, LE-4, LE-5)."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime

from pyreconcile.api import RawObject, copy_json


class LeaseState:
    """What a candidate knows of the Lease, and what it may write next.

    ``now`` is always the candidate's own monotonic time in seconds; ``wall`` is the time of day and is only ever
    written. Times that others wrote are never compared with ours (rule LE-5): a Lease counts as alive for its duration
    after *we* first saw its present content.
    """

    def __init__(
        self, *, name: str, namespace: str, identity: str, duration: int, labels: Mapping[str, str] | None = None
    ) -> None:
        self._name = name
        self._namespace = namespace
        self._identity = identity
        self._duration = duration
        self._labels = dict(labels or {})
        self._lease: RawObject | None = None
        self._seen_at = 0.0

    @property
    def holder(self) -> str:
        """Who holds the Lease as far as we saw; empty for nobody."""
        return _holder(self._lease) if self._lease is not None else ""

    @property
    def held_by_us(self) -> bool:
        """Whether the Lease we last saw names us."""
        return self.holder == self._identity

    @property
    def held_by_another(self) -> bool:
        """Whether the Lease we last saw names somebody else."""
        return self.holder not in ("", self._identity)

    def alive(self, now: float) -> bool:
        """Tell whether the time of the Lease, counted from when we saw it, is not over."""
        if self._lease is None:
            return False
        duration = _spec(self._lease).get("leaseDurationSeconds")
        seconds = duration if isinstance(duration, int) and duration > 0 else self._duration
        return now < self._seen_at + seconds

    def observe(self, lease: RawObject, now: float) -> None:
        """Note a Lease that was read; its time starts anew only if its spec changed.

        Raises:
            TypeError: this is no Lease.
        """
        spec = _spec(lease)
        if self._lease is None or spec != _spec(self._lease):
            self._seen_at = now
        self._lease = lease

    def written(self, lease: RawObject, sent_at: float) -> None:
        """Note a Lease that we wrote. Our time counts from when the request was *sent*: others saw it later."""
        _spec(lease)
        self._lease = lease
        self._seen_at = sent_at

    def creation(self, wall: datetime) -> RawObject:
        """Return the Lease to create when there is none."""
        metadata: RawObject = {"name": self._name, "namespace": self._namespace}
        if self._labels:
            metadata["labels"] = dict(self._labels)
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": metadata,
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": self._duration,
                "acquireTime": micro_time(wall),
                "renewTime": micro_time(wall),
                "leaseTransitions": 0,
            },
        }

    def renewal(self, now: float, wall: datetime) -> RawObject | None:
        """Return the Lease to write without reading first, if we hold it and its time is not over (LE-4 a)."""
        if self._lease is None or not self.held_by_us or not self.alive(now):
            return None
        return self._claimed(self._lease, wall)

    def claim(self, now: float, wall: datetime) -> RawObject | None:
        """Return the Lease to write after reading it, or None while another one holds it (LE-4 c and d)."""
        if self._lease is None or (self.held_by_another and self.alive(now)):
            return None
        return self._claimed(self._lease, wall)

    def release(self, lease: RawObject, wall: datetime) -> RawObject | None:
        """Return the emptied form of ``lease``, or None when it is not ours to empty (LE-6)."""
        if _holder(lease) != self._identity:
            return None
        released: RawObject = copy_json(lease)
        _spec(released).update(
            holderIdentity="", leaseDurationSeconds=1, acquireTime=micro_time(wall), renewTime=micro_time(wall)
        )
        return released

    def _claimed(self, lease: RawObject, wall: datetime) -> RawObject:
        claimed: RawObject = copy_json(lease)
        spec = _spec(claimed)
        if spec.get("holderIdentity") != self._identity:
            spec["acquireTime"] = micro_time(wall)
            spec["leaseTransitions"] = (spec.get("leaseTransitions") or 0) + 1
        spec["holderIdentity"] = self._identity
        spec["leaseDurationSeconds"] = self._duration
        spec["renewTime"] = micro_time(wall)
        if self._labels:
            metadata = claimed["metadata"]
            metadata["labels"] = {**(metadata.get("labels") or {}), **self._labels}
        return claimed


def micro_time(wall: datetime) -> str:
    """Write a time of day as Kubernetes' MicroTime: UTC, six digits (rule LE-1)."""
    return wall.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def _spec(lease: RawObject) -> RawObject:
    spec = lease.setdefault("spec", {}) if isinstance(lease, dict) else None
    if not isinstance(spec, dict):
        raise TypeError("the answer is no Lease: it has no spec")
    return spec


def _holder(lease: RawObject) -> str:
    return _spec(lease).get("holderIdentity") or ""
