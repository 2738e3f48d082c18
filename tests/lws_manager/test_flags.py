"""The command line of upstream's manager (LWS §11)."""

from dataclasses import fields, replace

import pytest

from pyreconcile_controllers.lws_manager import Flags, UsageError, parse_flags
from pyreconcile_controllers.lws_manager.durations import parse_duration
from pyreconcile_controllers.lws_manager.flags import usage

# Every flag of upstream's manager, with a value that it takes and what comes of it.
ALL = {
    "--config=/c.yaml": {"config": "/c.yaml"},
    "--kubeconfig=/k": {"kubeconfig": "/k"},
    "--version": {"version": True},
    "--metrics-bind-address=0": {"metrics_bind_address": "0"},
    "--health-probe-bind-address=:9": {"health_probe_bind_address": ":9"},
    "--leader-elect": {"leader_elect": True},
    "--leader-elect-lease-duration=1m30s": {"leader_elect_lease_duration": 90.0},
    "--leader-elect-renew-deadline=20s": {"leader_elect_renew_deadline": 20.0},
    "--leader-elect-retry-period=500ms": {"leader_elect_retry_period": 0.5},
    "--leader-elect-resource-lock=leases": {"leader_elect_resource_lock": "leases"},
    "--leader-elect-resource-name=x": {"leader_elect_resource_name": "x"},
    "--kube-api-qps=12.5": {"kube_api_qps": 12.5},
    "--kube-api-burst=20": {"kube_api_burst": 20},
    "--zap-devel=false": {"zap_devel": False},
    "--zap-encoder=JSON": {"zap_encoder": "json"},
    "--zap-log-level=2": {"zap_log_level": "debug"},
    "--zap-stacktrace-level=panic": {"zap_stacktrace_level": "panic"},
    "--zap-time-encoding=iso8601": {"zap_time_encoding": "iso8601"},
    "--help": {"help": True},
}


@pytest.mark.parametrize("argument", ALL)
def test_lws_11_each_flag_of_upstream_is_taken(argument):
    assert parse_flags([argument]) == Flags(**ALL[argument])
    assert parse_flags([argument.removeprefix("-")]) == Flags(**ALL[argument])


def test_lws_11_the_table_above_has_every_flag_and_so_has_the_help():
    given = {name for value in ALL.values() for name in value}
    assert given == {field.name for field in fields(Flags)}
    for name in given:
        assert f"--{name.replace('_', '-')}\n" in usage("manager")


def test_lws_11_the_arguments_of_upstreams_deployments_are_taken():
    assert parse_flags(["--config=/controller_manager_config.yaml", "--zap-log-level=2"]) == Flags(
        config="/controller_manager_config.yaml", zap_log_level="debug"
    )
    assert parse_flags(["--leader-elect"]) == Flags(leader_elect=True)


def test_lws_11_what_is_not_given_is_none():
    assert parse_flags([]) == parse_flags(["--"]) == Flags()
    assert set(vars(Flags()).values()) == {None}


def test_lws_11_a_value_may_be_the_next_argument_but_not_of_a_boolean():
    flags = parse_flags(["-config", "a", "--leader-elect", "--kube-api-burst", "0x10"])
    assert flags == Flags(config="a", leader_elect=True, kube_api_burst=16)
    with pytest.raises(UsageError, match="'false' is no flag"):
        parse_flags(["--leader-elect", "false"])


@pytest.mark.parametrize(
    ("text", "value"), [("1", True), ("t", True), ("True", True), ("0", False), ("F", False), ("FALSE", False)]
)
def test_lws_11_booleans_are_written_as_in_go(text, value):
    assert parse_flags([f"--leader-elect={text}"]).leader_elect is value


def test_lws_11_the_last_of_two_wins():
    assert parse_flags(["--config=a", "--config=b", "--config="]).config == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--feature-gates=x"], "flag provided but not defined: -feature-gates"),
        (["--config"], "flag needs an argument: -config"),
        (["run"], "'run' is no flag"),
        (["-"], "'-' is no flag"),
        (["--", "x"], "'--' is no flag"),
        (["--leader-elect=yes"], "--leader-elect: 'yes' is neither true nor false"),
        (["--leader-elect-lease-duration=15"], "--leader-elect-lease-duration: '15' is no duration"),
        (["--kube-api-qps=many"], "--kube-api-qps: 'many' is no number"),
        (["--kube-api-burst=1.5"], "--kube-api-burst: '1.5' is no whole number"),
        (["--zap-encoder=xml"], "--zap-encoder: 'xml' is none of json, console"),
        (["--zap-log-level=0"], "--zap-log-level: '0' is none of"),
        (["--zap-log-level=loud"], "--zap-log-level: 'loud' is none of"),
        (["--zap-stacktrace-level=debug"], "--zap-stacktrace-level: 'debug' is none of"),
        (["--zap-time-encoding=unix"], "--zap-time-encoding: 'unix' is none of"),
    ],
)
def test_lws_11_wrong_usage_is_named(arguments, message):
    with pytest.raises(UsageError, match=message):
        parse_flags(arguments)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("-1.5h", -5400),
        ("1h2m3s", 3723),
        ("1ms1us1ns", 0.001001001),
        ("+.5s", 0.5),
        ("1.s", 1),
        ("2µs", 2e-6),
    ],
)
def test_lws_11_durations_are_read_as_in_go(text, seconds):
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "-", "5", "1 s", "s", "1s2", "1d", "١s", "1..5s"])
def test_lws_11_what_go_does_not_take_for_a_duration_is_refused(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration(text)


def test_lws_11_flags_are_immutable_and_comparable():
    assert replace(Flags(), config="a") == parse_flags(["--config", "a"])
