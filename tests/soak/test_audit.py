"""Who deleted a pod, told from the audit log."""

import json

from hack.soak.audit import Deletions, deletions


def event(uid, agent, code=200):
    body = {"responseStatus": {"code": code}, "userAgent": f"{agent}/v1 (linux)", "verb": "delete"}
    return body | ({"responseObject": {"kind": "Pod", "metadata": {"uid": uid}}} if uid else {})


def test_refused_deletions_and_answers_without_a_pod_do_not_count():
    events = [event("u-1", "a"), event("u-2", "b", 409), event("", "c"), event("u-1", "kwok")]
    assert list(deletions(json.dumps(item).encode() for item in events)) == [("u-1", "a"), ("u-1", "kwok")]


def test_the_first_who_asked_is_kept_and_a_half_written_line_is_read_later(tmp_path):
    found = Deletions(tmp_path)
    (tmp_path / "audit.log").write_text("of an earlier soak")
    flags = found.prepare()
    assert flags == [f"--audit-policy-file={tmp_path}/audit-policy.json", f"--audit-log-path={tmp_path}/audit.log"]
    first, second = (json.dumps(event("u-1", agent)) + "\n" for agent in ("pyreconcile", "kwok"))
    third = json.dumps(event("u-2", "kwok")) + "\n"
    log, known = tmp_path / "audit.log", {}
    log.write_text(first + third[:20])
    found.first(known)
    assert known == {"u-1": "pyreconcile"}
    with log.open("a") as more:
        more.write(third[20:] + second)
    found.first(known)
    assert known == {"u-1": "pyreconcile", "u-2": "kwok"}
