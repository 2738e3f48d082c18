"""Who asked for the deletion of each pod, from the API server's audit log."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import orjson

KUBELET: Final = "kwok"
"""The program that stands in for the nodes' kubelets."""

_POLICY: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "RequestResponse", "verbs": ["delete"], "resources": [{"group": "", "resources": ["pods"]}]},
        {"level": "None"},
    ],
}


class Deletions:
    """Reads an audit log of deletions as it grows.

    Args:
        folder: where the API server finds its policy and leaves its log.
    """

    def __init__(self, folder: Path) -> None:
        self._policy = (folder / "audit-policy.json").absolute()
        self._log = (folder / "audit.log").absolute()
        self._read = 0

    def prepare(self) -> list[str]:
        """Write the policy, forget an earlier log, and return the API server's flags."""
        self._policy.write_bytes(orjson.dumps(_POLICY))
        self._log.unlink(missing_ok=True)
        return [f"--audit-policy-file={self._policy}", f"--audit-log-path={self._log}"]

    def first(self, known: dict[str, str]) -> None:
        """Add to ``known``, by UID, the program that was the first to ask for a pod's deletion."""
        if not self._log.exists():
            return  # the API server makes it with the first entry
        with self._log.open("rb") as log:
            log.seek(self._read)
            text = log.read()
        whole = text[: text.rfind(b"\n") + 1]
        self._read += len(whole)
        for uid, program in deletions(whole.splitlines()):
            known.setdefault(uid, program)


def deletions(lines: Iterable[bytes]) -> Iterable[tuple[str, str]]:
    """Yield UID and program of each deletion of a pod that the API server took, in order."""
    for line in lines:
        event = orjson.loads(line)
        metadata = (event.get("responseObject") or {}).get("metadata") or {}
        if event["responseStatus"]["code"] < 300 and metadata.get("uid"):
            yield metadata["uid"], event.get("userAgent", "").partition("/")[0]
