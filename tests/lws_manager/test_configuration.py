"""The configuration file of upstream's manager: form, defaults, and what wins over it (LWS §11)."""

import pytest

from pyreconcile.client import ConnectOptions
from pyreconcile_controllers.lws_manager import (
    CertificatePlace,
    Configuration,
    ConfigurationError,
    Flags,
    load_configuration,
    make_plan,
    parse_configuration,
    parse_flags,
)
from pyreconcile_controllers.lws_manager.version import user_agent, version_text

HEAD = "apiVersion: config.lws.x-k8s.io/v1alpha1\nkind: Configuration\n"


def plan(text="", *arguments, environment=None, namespace="lws-system"):
    return make_plan(parse_flags(arguments), parse_configuration(HEAD + text), environment or {}, namespace=namespace)


def test_lws_11_without_a_file_everything_has_its_default():
    found = make_plan(Flags(), load_configuration(None), {}, namespace="lws-system")
    assert load_configuration(None) == load_configuration("") == Configuration()
    options = found.manager
    assert options.metrics_bind_address == ":8443"
    assert options.metrics_tls is not None
    assert options.metrics_authorization
    assert (options.health_probe_bind_address, options.liveness_endpoint, options.readiness_endpoint) == (
        ":8081",
        "/healthz",
        "/readyz",
    )
    assert options.webhook == found.webhook
    assert found.webhook.bind_address == ":9443"
    assert found.webhook.cert_dir == "/tmp/k8s-webhook-server/serving-certs"
    election = options.leader_election
    assert (election.name, election.namespace) == ("b8b2488c.x-k8s.io", "lws-system")
    assert (election.lease_duration, election.renew_deadline, election.retry_period) == (15, 10, 2)
    assert found.certificates == CertificatePlace(
        namespace="lws-system", secret="lws-webhook-server-cert", service="lws-webhook-service"
    )
    assert found.certificates.host == "lws-webhook-service.lws-system.svc"
    assert found.settings.scheduler_provider is None
    assert options.handle_signals


def test_lws_11_a_file_with_its_kind_alone_is_the_default():
    assert parse_configuration(HEAD) == Configuration()


@pytest.mark.parametrize(("given", "qps"), [("-1", None), ("0", 5), ("12.5", 12.5)])
def test_lws_11_requests_are_limited_as_client_go_takes_the_rate(given, qps):
    assert plan(FILE, f"--kube-api-qps={given}").manager.connect.qps == qps
    assert plan(f"clientConnection: {{qps: {given}}}").manager.connect.qps == qps


def test_lws_11_a_burst_of_0_is_client_gos_default():
    assert plan(FILE, "--kube-api-burst=0").manager.connect.burst == 10
    assert plan("clientConnection: {burst: 0}").manager.connect.burst == 10


def test_lws_11_empty_sections_null_empty_texts_and_zero_durations_are_the_default():
    text = """
webhook:
leaderElection: {leaderElect: null, leaseDuration: 0s, resourceName: "", retryPeriod: "0"}
metrics: {bindAddress: ""}
health: {}
tls: {minVersion: "", cipherSuites: []}
internalCertManagement: {enable: null}
gangSchedulingManagement:
clientConnection: {qps: null}
"""
    assert parse_configuration(HEAD + text) == Configuration()


def test_lws_11_the_file_is_used():
    found = plan("""
health:
  healthProbeBindAddress: :38081
  readinessEndpointName: test
  livenessEndpointName: /alive
metrics:
  bindAddress: :38080
leaderElection:
  leaderElect: true
  resourceName: test-id
  resourceNamespace: elsewhere
  leaseDuration: 5m
  renewDeadline: 4m
  retryPeriod: 1m30s
webhook:
  port: 9444
  host: ::1
  certDir: /certs
internalCertManagement:
  webhookServiceName: lws-tenant-a-webhook-service
  webhookSecretName: lws-tenant-a.webhook-server-cert
gangSchedulingManagement:
  schedulerProvider: volcano
clientConnection:
  qps: 50
  burst: 100
""")
    options = found.manager
    assert (options.health_probe_bind_address, options.metrics_bind_address) == (":38081", ":38080")
    assert (options.liveness_endpoint, options.readiness_endpoint) == ("/alive", "/test")
    election = options.leader_election
    # The namespace is always the process's own, whatever the file says.
    assert (election.name, election.namespace) == ("test-id", "lws-system")
    assert (election.lease_duration, election.renew_deadline, election.retry_period) == (300, 240, 90)
    assert (found.webhook.bind_address, found.webhook.cert_dir) == ("[::1]:9444", "/certs")
    assert found.certificates.host == "lws-tenant-a-webhook-service.lws-system.svc"
    assert found.certificates.secret == "lws-tenant-a.webhook-server-cert"
    assert found.settings.scheduler_provider == "volcano"
    assert (options.connect.qps, options.connect.burst) == (50, 100)


def test_lws_11_native_gang_scheduling_can_be_chosen():
    assert plan("gangSchedulingManagement: {schedulerProvider: kubernetes}").settings.scheduler_provider == "kubernetes"


def test_lws_11_the_file_wins_over_the_environment():
    environment = {"LEADERWORKERSET_SCHEDULER_PROVIDER": "kubernetes", "LEADERWORKERSET_WAITING_EVENT_AFTER": "5"}
    assert plan(environment=environment).settings.scheduler_provider == "kubernetes"
    settings = plan("gangSchedulingManagement: {schedulerProvider: volcano}", environment=environment).settings
    assert (settings.scheduler_provider, settings.waiting_event_after) == ("volcano", 5)


FILE = """
health: {healthProbeBindAddress: ":8081"}
metrics: {bindAddress: ":8443"}
leaderElection:
  leaderElect: true
  resourceName: test
  leaseDuration: 5m
  renewDeadline: 4m
  retryPeriod: 1m
clientConnection: {burst: 7}
"""


def test_lws_11_flags_win_over_the_file():
    found = plan(
        FILE,
        "--health-probe-bind-address=:9",
        "--metrics-bind-address=0",
        "--leader-elect=true",
        "--leader-elect-lease-duration=3m",
        "--leader-elect-renew-deadline=2m",
        "--leader-elect-retry-period=1s",
        "--leader-elect-resource-lock=leases",
        "--leader-elect-resource-name=changed",
        "--kube-api-burst=9",
        "--kube-api-qps=1",
        "--kubeconfig=/k",
    )
    options, election = found.manager, found.manager.leader_election
    assert (options.health_probe_bind_address, options.metrics_bind_address) == (":9", "0")
    assert (election.name, election.lease_duration, election.renew_deadline, election.retry_period) == (
        "changed",
        180,
        120,
        1,
    )
    assert (options.connect.qps, options.connect.burst, options.connect.kubeconfig) == (1, 9, "/k")
    assert plan(FILE, "--leader-elect=false").manager.leader_election is None


def test_lws_11_flags_that_are_not_given_leave_the_file_as_it_is():
    found = plan(FILE, "--health-probe-bind-address=:9")
    election = found.manager.leader_election
    assert (election.name, election.lease_duration) == ("test", 300)
    assert (found.manager.connect.qps, found.manager.connect.burst) == (500, 7)
    assert plan("leaderElection: {leaderElect: false}").manager.leader_election is None
    assert plan("leaderElection: {leaderElect: false}", "--leader-elect").manager.leader_election is not None


def test_lws_11_others_may_provide_the_certificate():
    found = plan("internalCertManagement: {enable: false, webhookServiceName: 0-invalid}")
    assert found.certificates is None
    assert found.webhook is not None


@pytest.mark.parametrize("value", ["true", "", "no"])
def test_lws_11_webhooks_are_off_only_with_the_word_false(value):
    assert plan(environment={"ENABLE_WEBHOOKS": value}).webhook is not None
    off = plan(environment={"ENABLE_WEBHOOKS": "false"})
    assert off.webhook is off.manager.webhook is off.certificates is None


def test_lws_11_tls_settings_hold_for_webhooks_and_metrics():
    suites = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256, TLS_AES_128_GCM_SHA256, TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305"
    found = plan(f"tls: {{minVersion: VersionTLS12, cipherSuites: [{suites}]}}")
    for tls in (found.webhook, found.manager.metrics_tls):
        assert tls.minimum_version == "TLSv1.2"
        assert tls.ciphers == "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-CHACHA20-POLY1305"
    newest = plan("tls: {minVersion: VersionTLS13}")
    assert (newest.webhook.minimum_version, newest.manager.metrics_tls.minimum_version) == ("TLSv1.3", "TLSv1.3")
    assert plan("tls: {cipherSuites: [TLS_AES_128_GCM_SHA256]}").webhook.ciphers is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("invalidField: x", "unknown field 'invalidField'"),
        ("health: {healthprobebindaddress: x}", "unknown field 'health.healthprobebindaddress'"),
        ("spec: {}", "unknown field 'spec'"),
        ("webhook: {port: '9443'}", "webhook.port: "),
        ("webhook: {port: 65536}", "webhook.port: "),
        ("webhook: 9443", "webhook: "),
        ("leaderElection: {leaderElect: 'true'}", "leaderElection.leaderElect: "),
        ("leaderElection: {leaseDuration: 15}", "leaderElection.leaseDuration: 15 is no duration"),
        ("leaderElection: {leaseDuration: 15x}", "leaderElection.leaseDuration: '15x' is no duration"),
        ("health: {}\nhealth: {}", "line 4: field 'health' is there already"),
        ("gangSchedulingManagement: {}", "schedulerProvider: must be set when gang scheduling is enabled"),
        ("gangSchedulingManagement: {schedulerProvider: x}", "schedulerProvider: must be 'volcano' or 'kubernetes'"),
        ("internalCertManagement: {webhookSecretName: ':)'}", "internalCertManagement.webhookSecretName: ':\\)'"),
        ("internalCertManagement: {webhookServiceName: 0-x}", "internalCertManagement.webhookServiceName: '0-x'"),
        ("clientConnection: {burst: -1}", "clientConnection.burst: must not be below 0, and is -1"),
        ("tls: {minVersion: VersionTLS11}", "tls.minVersion: must be VersionTLS12 or VersionTLS13"),
        ("tls: {minVersion: x}", "tls.minVersion: "),
        ("tls: {cipherSuites: [TLS_INVALID_CIPHER]}", "tls.cipherSuites: 'TLS_INVALID_CIPHER' is not known"),
        ("tls: {cipherSuites: TLS_AES_128_GCM_SHA256}", "tls.cipherSuites: "),
        (
            "tls: {minVersion: VersionTLS13, cipherSuites: [TLS_AES_256_GCM_SHA384]}",
            "tls.cipherSuites: may not be given with minVersion VersionTLS13",
        ),
    ],
)
def test_lws_11_a_file_that_cannot_be_used_is_refused_with_the_field(text, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_configuration(HEAD + text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "one document"),
        ("- a", "one document"),
        (f"{HEAD}---\n{HEAD}", "one document"),
        ("a: [", "this is no YAML"),
        (b"\xff\xfe\x00", "this is no YAML"),
        ("kind: Configuration", "apiVersion: must be 'config.lws.x-k8s.io/v1alpha1', not None"),
        ("apiVersion: lws.x-k8s.io/v1alpha1\nkind: Configuration", "apiVersion: must be"),
        ("apiVersion: config.lws.x-k8s.io/v1alpha1\nkind: Config", "kind: must be 'Configuration', not 'Config'"),
    ],
)
def test_lws_11_another_form_is_refused(content, message):
    with pytest.raises(ConfigurationError, match=message):
        parse_configuration(content)


def test_lws_11_all_errors_are_told_at_once():
    with pytest.raises(ConfigurationError, match=r"metrics.bindAddress: .*; unknown field 'x'"):
        parse_configuration(f"{HEAD}x: 1\nmetrics: {{bindAddress: 8443}}")


def test_lws_11_json_is_taken_too(tmp_path):
    file = tmp_path / "config.json"
    file.write_text('{"apiVersion": "config.lws.x-k8s.io/v1alpha1", "kind": "Configuration", "webhook": {"port": 1}}')
    assert load_configuration(str(file)).webhook.port == 1


def test_lws_11_the_file_is_named_in_errors(tmp_path):
    file = tmp_path / "config.yaml"
    file.write_text(f"{HEAD}x: 1")
    with pytest.raises(ConfigurationError, match=r"config.yaml: unknown field 'x'"):
        load_configuration(str(file))
    with pytest.raises(IsADirectoryError):
        load_configuration(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("leaderElection: {resourceLock: test}", [], "leaderElection.resourceLock: must be 'leases', not 'test'"),
        ("", ["--leader-elect-resource-lock=endpoints"], "leaderElection.resourceLock: must be 'leases'"),
        ("", ["--leader-elect-renew-deadline=20s"], "lease_duration: must be above the renew_deadline"),
        ("", ["--metrics-bind-address=x"], "metrics_bind_address: 'x' is no address"),
        ("", ["--kube-api-burst=-1"], "kube-api-burst: must not be below 0, and is -1"),
        ("health: {readinessEndpointName: /healthz}", [], "readiness_endpoint: '/healthz' is the liveness_endpoint"),
    ],
)
def test_lws_11_values_that_do_not_fit_together_are_refused(text, arguments, message):
    with pytest.raises(ConfigurationError, match=message):
        plan(text, *arguments)


def test_lws_11_the_user_agent_names_version_system_and_commit():
    agent = user_agent({"PYRECONCILE_COMMIT": "0123456789abcdef"})
    assert agent.startswith("lws/v")
    assert agent.endswith(") 0123456")
    assert user_agent({}).endswith("/amd64) unknown") or user_agent({}).endswith(") unknown")
    found = make_plan(Flags(), Configuration(), {"PYRECONCILE_COMMIT": "abc"}, namespace="x").manager.connect
    assert found.user_agent == user_agent({"PYRECONCILE_COMMIT": "abc"})
    assert isinstance(found, ConnectOptions)


def test_lws_11_the_version_can_be_printed():
    lines = version_text({"PYRECONCILE_COMMIT": "abc", "PYRECONCILE_BUILD_DATE": "today"}).splitlines()
    assert lines[0].startswith("Version: v")
    assert lines[1:] == ["Build Date: today", "Git Commit: abc"]
