"""What a soak does and when, drawn from a seed: the same seed, times and sets give the same plan. No I/O."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

Object = dict[str, Any]

CALM_EVERY: Final = 60.0
"""Seconds of a round: trouble, then a calm in which every set has to come right."""
TROUBLE_SHARE: Final = 0.75
"""Part of a round in which trouble is made."""
NODES: Final = 8
PREFIX: Final = "leaderworkerset.sigs.k8s.io/"

_WEIGHTS: Final = {
    "scale": 6,
    "template": 6,
    "resize": 3,
    "network": 1,
    "limits": 2,
    "partition": 2,
    "kill": 8,
    "restart": 3,
    "replace": 1,
}
_UNAVAILABLE: Final[list[int | str]] = [0, 1, 1, 2, "50%"]
_SURGE: Final[list[int | str]] = [0, 1, 2, "50%"]
_DOWN: Final = (0.0, 4.0)  # seconds that a manager is away
_LOST: Final = (9.0, 16.0)  # seconds that a node is away; its pods are evicted after about 7


@dataclass(frozen=True, slots=True)
class Action:
    """One thing to do.

    Attributes:
        at: seconds since the round began.
        kind: what to do.
        target: name of a set, pod or node; empty for the manager.
        detail: what else belongs to the kind.
    """

    at: float
    kind: str
    target: str
    detail: Object = field(default_factory=dict)

    def __str__(self) -> str:
        parts = [f"{self.at:6.1f}", self.kind, self.target, *(f"{key}={value}" for key, value in self.detail.items())]
        return " ".join(part for part in parts if part)


@dataclass
class SetModel:
    """A set as it was last asked for; makes its wire form."""

    name: str
    replicas: int
    size: int
    version: int
    unavailable: int | str
    surge: int | str
    partition: int
    restart_policy: str
    startup_policy: str
    subdomain: str
    leader_template: bool
    delay: str

    def template(self) -> Object:
        """Return the part of the spec that makes a revision, and is sent for each change of one."""
        pod = {
            "metadata": {"annotations": {"kwok.pyreconcile.dev/ready-delay": self.delay}},
            "spec": {"containers": [{"name": "c", "image": f"busybox:v{self.version}"}]},
        }
        made: Object = {"size": self.size, "workerTemplate": pod, "restartPolicy": self.restart_policy}
        if self.leader_template:
            made["leaderTemplate"] = pod
        return made

    def limits(self) -> Object:
        """Return the rolling update's configuration."""
        return {"maxUnavailable": self.unavailable, "maxSurge": self.surge, "partition": self.partition}

    def wire(self) -> Object:
        """Return the set to create."""
        return {
            "apiVersion": "leaderworkerset.x-k8s.io/v1",
            "kind": "LeaderWorkerSet",
            "metadata": {"name": self.name},
            "spec": {
                "replicas": self.replicas,
                "leaderWorkerTemplate": self.template(),
                "startupPolicy": self.startup_policy,
                "networkConfig": {"subdomainPolicy": self.subdomain},
                "rolloutStrategy": {"type": "RollingUpdate", "rollingUpdateConfiguration": self.limits()},
            },
        }


@dataclass(frozen=True)
class Plan:
    """The sets to begin with, and the actions of each round in order of time."""

    seed: int
    sets: list[Object]
    rounds: list[list[Action]]
    round_seconds: float

    def lines(self) -> Iterator[str]:
        """Give the plan as text."""
        for number, actions in enumerate(self.rounds, 1):
            yield f"round {number}"
            yield from (f"  {action}" for action in actions)


def make_plan(seed: int, *, seconds: float, sets: int) -> Plan:
    """Draw a plan.

    Args:
        seed: of the random numbers.
        seconds: how long the whole run is to last; a round has a minute, or all of a shorter run.
        sets: number of sets, at least 1.

    Raises:
        ValueError: there would be no set or no time.
    """
    if sets < 1 or seconds <= 0:
        raise ValueError(f"sets={sets}, seconds={seconds:g}: a soak needs one set and some time at least")
    numbers = random.Random(seed)
    models = [_new_set(numbers, f"soak-{index:02}") for index in range(sets)]
    created = [model.wire() for model in models]
    rounds = max(1, round(seconds / CALM_EVERY))
    length = seconds / rounds
    drawn = [_round(numbers, models, length * TROUBLE_SHARE) for _ in range(rounds)]
    return Plan(seed, created, drawn, length)


def _new_set(numbers: random.Random, name: str) -> SetModel:
    unavailable, surge = _limits(numbers)
    return SetModel(
        name=name,
        replicas=numbers.randint(1, 4),
        size=numbers.randint(1, 3),
        version=1,
        unavailable=unavailable,
        surge=surge,
        partition=0,
        restart_policy=numbers.choice([*["RecreateGroupOnPodRestart"] * 4, "RecreateGroupAfterStart", "None"]),
        startup_policy=numbers.choice(["LeaderCreated", "LeaderCreated", "LeaderReady"]),
        subdomain=numbers.choice(["Shared", "Shared", "UniquePerReplica"]),
        leader_template=numbers.random() < 0.5,
        delay=numbers.choice(["100ms", "500ms", "1s", "2s"]),
    )


def _limits(numbers: random.Random) -> tuple[int | str, int | str]:
    """Draw maxUnavailable and maxSurge, which are never both 0 at any number of replicas."""
    unavailable, surge = numbers.choice(_UNAVAILABLE), numbers.choice(_SURGE)
    if unavailable in (0, "50%") and surge == 0:
        surge = 1
    return unavailable, surge


def _round(numbers: random.Random, models: list[SetModel], trouble: float) -> list[Action]:
    # About one action a second for thirty sets.
    count = max(4, round(trouble * max(0.5, len(models) / 30)))
    kinds = list(_WEIGHTS)
    actions = []
    for at in sorted(numbers.uniform(0, trouble) for _ in range(count)):
        kind = numbers.choices(kinds, list(_WEIGHTS.values()))[0]
        actions.append(_action(numbers, kind, numbers.choice(models), round(at, 2)))
    actions += _outages(numbers, trouble)
    return sorted(actions, key=lambda action: action.at)


def _outages(numbers: random.Random, trouble: float) -> list[Action]:
    """Draw when the manager is restarted, and which node is lost for how long, once or twice a round."""
    signal = numbers.choice(["SIGTERM", "SIGKILL"])
    down = round(numbers.uniform(*_DOWN), 2)
    away = round(numbers.uniform(*_LOST), 2)
    node = f"node-{numbers.randrange(NODES)}"
    return [
        Action(round(numbers.uniform(0.2, 0.9) * trouble, 2), "manager", "", {"signal": signal, "down": down}),
        Action(round(numbers.uniform(0.0, 0.4) * trouble, 2), "node", node, {"away": away}),
    ]


def _action(numbers: random.Random, kind: str, model: SetModel, at: float) -> Action:
    detail: Object = {}
    target = model.name
    if kind == "scale":
        model.replicas = detail["replicas"] = numbers.randint(0, 5)
    elif kind in ("template", "resize", "network"):
        detail = _change_revision(numbers, kind, model)
    elif kind == "limits":
        model.unavailable, model.surge = _limits(numbers)
        detail["limits"] = model.limits()
    elif kind == "partition":
        model.partition = numbers.randint(0, 3)
        detail["limits"] = model.limits()
    elif kind == "replace":
        model.version += 1
        detail["set"] = model.wire()
    else:
        group, worker = numbers.randrange(max(1, model.replicas)), numbers.randrange(model.size)
        target = f"{model.name}-{group}" + (f"-{worker}" if worker else "")
        if kind == "kill":
            detail["grace"] = numbers.choice([0, 0, 30])
    return Action(at, kind, target, detail)


def _change_revision(numbers: random.Random, kind: str, model: SetModel) -> Object:
    if kind == "template":
        model.version += 1
    elif kind == "resize":
        model.size = numbers.choice([size for size in (1, 2, 3, 4) if size != model.size])
    else:
        model.subdomain = "Shared" if model.subdomain == "UniquePerReplica" else "UniquePerReplica"
    return {"template": model.template(), "subdomain": model.subdomain}
