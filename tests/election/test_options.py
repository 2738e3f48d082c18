"""What an election refuses when it is built (rule LE-2)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from pyreconcile.election import ElectionOptions, _options


def options(**changes: Any) -> ElectionOptions:
    return ElectionOptions(**{"name": "lock", "namespace": "ns", **changes})


def test_le_2_defaults():
    built = options()
    assert (built.lease_duration, built.renew_deadline, built.retry_period) == (15, 10, 2)
    assert built.release_on_cancel
    assert built.request_timeout == 5
    assert built.release_timeout == 3


def test_le_2_the_lock_clients_timeout_is_half_the_renew_deadline_at_least_one_second():
    assert options(lease_duration=60, renew_deadline=40).request_timeout == 20
    assert options(lease_duration=3, renew_deadline=1.5, retry_period=0.5).request_timeout == 1


def test_le_2_only_the_lease_duration_needs_a_second():
    built = options(lease_duration=1, renew_deadline=0.5, retry_period=0.25)
    assert (built.renew_deadline, built.retry_period) == (0.5, 0.25)


def test_le_2_identity_is_hostname_and_uuid():
    one, two = options().identity, options().identity
    assert re.fullmatch(r".+_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", one)
    assert one != two


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": ""}, "name"),
        ({"identity": ""}, "identity"),
        ({"lease_duration": 0}, "lease_duration"),
        ({"lease_duration": 15.5}, "lease_duration"),
        ({"lease_duration": 10}, "lease_duration"),
        ({"renew_deadline": 2.4}, "renew_deadline"),
        ({"renew_deadline": 0}, "renew_deadline"),
        ({"retry_period": 0}, "retry_period"),
        ({"retry_period": -1}, "retry_period"),
        ({"retry_period": 9}, "renew_deadline"),
        ({"health_tolerance": -1}, "health_tolerance"),
    ],
)
@pytest.mark.rules("U-60")
def test_le_2_a_wrong_value_is_refused_by_the_fields_name(changes: dict[str, Any], field: str):
    with pytest.raises(ValueError, match=f"^{field}: "):
        options(**changes)


def test_le_2_namespace_comes_from_the_pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    file = tmp_path / "namespace"
    file.write_text("team-a\n")
    monkeypatch.setattr(_options, "NAMESPACE_FILE", file)
    assert ElectionOptions(name="lock").namespace == "team-a"


def test_le_2_outside_a_cluster_the_namespace_must_be_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_options, "NAMESPACE_FILE", tmp_path / "none")
    with pytest.raises(ValueError, match=r"^namespace: "):
        ElectionOptions(name="lock")
