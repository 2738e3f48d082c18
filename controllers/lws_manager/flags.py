"""The command line of upstream's manager, read as Go's ``flag`` package reads one (LWS §11). No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyreconcile_controllers.lws_manager.durations import parse_duration

_BOOLEANS: Final = {
    **dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True),
    **dict.fromkeys(("0", "f", "F", "false", "FALSE", "False"), False),
}
ENCODERS: Final = ("json", "console")
LEVELS: Final = ("debug", "info", "error", "panic")
STACKTRACE_LEVELS: Final = ("info", "error", "panic")
TIME_ENCODINGS: Final = ("epoch", "millis", "nanos", "iso8601", "rfc3339", "rfc3339nano")


class UsageError(ValueError):
    """The command line cannot be used; the message names the flag."""


@dataclass(frozen=True, kw_only=True)
class Flags:
    """What the command line says; None where it says nothing, so that the configuration file holds.

    Durations are in seconds.
    """

    config: str | None = None
    kubeconfig: str | None = None
    version: bool | None = None
    help: bool | None = None
    metrics_bind_address: str | None = None
    health_probe_bind_address: str | None = None
    leader_elect: bool | None = None
    leader_elect_lease_duration: float | None = None
    leader_elect_renew_deadline: float | None = None
    leader_elect_retry_period: float | None = None
    leader_elect_resource_lock: str | None = None
    leader_elect_resource_name: str | None = None
    kube_api_qps: float | None = None
    kube_api_burst: int | None = None
    zap_devel: bool | None = None
    zap_encoder: str | None = None
    zap_log_level: str | None = None
    zap_stacktrace_level: str | None = None
    zap_time_encoding: str | None = None


def _boolean(text: str) -> bool:
    if text not in _BOOLEANS:
        raise ValueError(f"{text!r} is neither true nor false")
    return _BOOLEANS[text]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number") from None


def _integer(text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise ValueError(f"{text!r} is no whole number") from None


def _one_of(words: Sequence[str]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text.lower() not in words:
            raise ValueError(f"{text!r} is none of {', '.join(words)}")
        return text.lower()

    return parse


def _log_level(text: str) -> str:
    if text.lower() in LEVELS:
        return text.lower()
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise ValueError(f"{text!r} is none of {', '.join(LEVELS)}, and no number above 0")
    return "debug"


@dataclass(frozen=True, slots=True)
class _Flag:
    parse: Callable[[str], Any]
    meaning: str
    default: str = ""


_TABLE: Final[Mapping[str, _Flag]] = {
    "config": _Flag(str, "file with the configuration; flags win over what it says"),
    "kubeconfig": _Flag(str, "kubeconfig file; else KUBECONFIG, the pod's service account, the home directory"),
    "version": _Flag(_boolean, "print the version and exit"),
    "help": _Flag(_boolean, "print this text and exit"),
    "metrics-bind-address": _Flag(str, "where metrics are served over TLS; 0 turns them off", ":8443"),
    "health-probe-bind-address": _Flag(str, "where the probes are served; 0 turns them off", ":8081"),
    "leader-elect": _Flag(_boolean, "act only with the Lease", "true"),
    "leader-elect-lease-duration": _Flag(parse_duration, "how long others wait after the last renewal", "15s"),
    "leader-elect-renew-deadline": _Flag(parse_duration, "how long the leader acts after its last renewal", "10s"),
    "leader-elect-retry-period": _Flag(parse_duration, "wait between two tries", "2s"),
    "leader-elect-resource-lock": _Flag(str, "kind of the lock; only leases exist", "leases"),
    "leader-elect-resource-name": _Flag(str, "name of the Lease", "b8b2488c.x-k8s.io"),
    "kube-api-qps": _Flag(_number, "requests a second on average to the API server; below 0: no limit", "500"),
    "kube-api-burst": _Flag(_integer, "requests that go at once before --kube-api-qps holds", "500"),
    "zap-devel": _Flag(_boolean, "defaults for developers: readable lines, all levels", "true"),
    "zap-encoder": _Flag(_one_of(ENCODERS), "form of the log: json or console"),
    "zap-log-level": _Flag(_log_level, "debug, info, error or panic; a number above 0 means debug"),
    "zap-stacktrace-level": _Flag(_one_of(STACKTRACE_LEVELS), "level from which on tracebacks are logged"),
    "zap-time-encoding": _Flag(_one_of(TIME_ENCODINGS), "form of the times in the log", "rfc3339"),
}


def parse_flags(arguments: Sequence[str]) -> Flags:
    """Read the arguments after the program's name.

    One or two dashes do, a value follows ``=`` or, but for those that are true or false, as the next argument.

    Raises:
        UsageError: a flag is unknown or has no fit value, or something is no flag.
    """
    given: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        if argument == "--" and not rest:
            break
        if not argument.startswith("-") or argument in ("-", "--"):
            raise UsageError(f"{argument!r} is no flag: the manager takes flags only")
        name, has_value, text = argument.removeprefix("-").removeprefix("-").partition("=")
        name = "help" if name == "h" else name
        flag = _TABLE.get(name)
        if flag is None:
            raise UsageError(f"flag provided but not defined: -{name}; --help shows those that exist")
        if not has_value:
            if flag.parse is _boolean:
                text = "true"
            elif rest:
                text = rest.pop(0)
            else:
                raise UsageError(f"flag needs an argument: -{name}")
        try:
            given[name.replace("-", "_")] = flag.parse(text)
        except ValueError as error:
            raise UsageError(f"--{name}: {error}") from None
    return Flags(**given)


def usage(program: str) -> str:
    """Return the text of ``--help``."""
    lines = [f"Usage: {program} [FLAG]...", ""]
    for name, flag in _TABLE.items():
        default = f" (default {flag.default})" if flag.default else ""
        lines.append(f"  --{name}\n        {flag.meaning}{default}")
    return "\n".join(lines)
