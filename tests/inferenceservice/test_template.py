"""From spec and runtime to a pod template, and its hash (KServe §1.9 item 1, §2.2 and §2.3)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile_controllers.inferenceservice import InferenceService, ServingRuntimeSpec, Settings
from pyreconcile_controllers.inferenceservice.merge import merge_container, order_containers
from pyreconcile_controllers.inferenceservice.names import child_name, pod_labels, revision_name
from pyreconcile_controllers.inferenceservice.objects import _ports
from pyreconcile_controllers.inferenceservice.template import InvalidPredictorError, Template, render

CONTAINER = {"name": "kserve-container", "image": "server:1", "args": ["--model={{.Name}}"]}


def service(metadata=None, **predictor):
    predictor = predictor or {"model": {"runtime": "server"}}
    return InferenceService.from_dict(
        {"metadata": {"name": "m", "namespace": "n", **(metadata or {})}, "spec": {"predictor": predictor}}
    )


def runtime(**spec):
    return ServingRuntimeSpec.from_dict({"containers": [CONTAINER], **spec})


def rendered(isvc, spec=None):
    return render(isvc, spec or runtime(), storage_initializer="init:1")


def pod(isvc, spec=None):
    return rendered(isvc, spec).raw["spec"]


def model(**fields):
    return service(model={"runtime": "server", **fields})


def test_kserve_2_2_containers_are_merged():
    base = {
        "name": "kserve-container",
        "image": "server:1",
        "args": ["--a"],
        "command": ["serve"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
        "ports": [{"containerPort": 8080, "name": "http"}],
        "resources": {"limits": {"cpu": "1", "memory": "1Gi"}},
    }
    overlay = {
        "name": "other",
        "args": ["--b"],
        "env": [{"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        "ports": [{"containerPort": 8080, "protocol": "TCP"}, {"containerPort": 9000}],
        "resources": {"limits": {"cpu": "2"}},
    }
    assert merge_container(base, overlay) == {
        "name": "kserve-container",
        "image": "server:1",
        "args": ["--a", "--b"],
        "command": ["serve"],
        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}, {"name": "C", "value": "3"}],
        "ports": [{"containerPort": 8080, "name": "http", "protocol": "TCP"}, {"containerPort": 9000}],
        "resources": {"limits": {"cpu": "2", "memory": "1Gi"}},
    }
    assert base["args"] == ["--a"]


def test_kserve_2_2_order_of_containers():
    runtime_containers = [
        {"name": "side"},
        {"name": "kserve-container"},
        {"name": "transformer-container", "args": ["1"]},
    ]
    own = [{"name": "mine"}, {"name": "transformer-container", "args": ["2"]}]
    ordered = order_containers({"name": "kserve-container"}, runtime_containers, own)
    assert [item["name"] for item in ordered] == ["kserve-container", "transformer-container", "side", "mine"]
    assert ordered[1]["args"] == ["1", "2"]


def test_kserve_2_2_pod_fields_of_both_with_the_services_on_top():
    spec = runtime(
        nodeSelector={"a": "1", "b": "1"},
        volumes=[{"name": "v", "emptyDir": {}}],
        labels={"from": "runtime"},
        annotations={"x": "runtime", "y": "runtime"},
    )
    isvc = service(
        model={"runtime": "server"},
        nodeSelector={"b": "2"},
        volumes=[{"name": "w", "emptyDir": {}}],
        serviceAccountName="me",
        annotations={"x": "service"},
        minReplicas=3,
        futureField=1,
    )
    template = rendered(isvc, spec).raw
    assert template["metadata"] == {
        "labels": {"from": "runtime"},
        "annotations": {"x": "service", "y": "runtime"},
    }
    found = template["spec"]
    assert found["nodeSelector"] == {"a": "1", "b": "2"}
    assert [volume["name"] for volume in found["volumes"]] == ["v", "w"]
    assert found["serviceAccountName"] == "me"
    assert found.keys() == {"containers", "nodeSelector", "volumes", "serviceAccountName"}


def test_kserve_2_2_placeholders():
    spec = runtime(
        containers=[{**CONTAINER, "args": ["{{.Name}}/{{ .Namespace }}", "{{.Labels.tier}}{{.Annotations.a}}"]}]
    )
    isvc = service({"labels": {"tier": "gold"}, "annotations": {"a": "b"}})
    assert pod(isvc, spec)["containers"][0]["args"] == ["m/n", "goldb"]


@pytest.mark.parametrize("text", ["{{.Spec}}", "{{.Labels.none}}", "{{ if .Name }}"])
def test_a_placeholder_that_cannot_be_filled_is_an_invalid_predictor(text):
    with pytest.raises(InvalidPredictorError, match=r"\{\{") as caught:
        rendered(service(), runtime(containers=[{**CONTAINER, "args": [text]}]))
    assert caught.value.reason == "InvalidPredictorSpec"


def test_kserve_2_2_runtime_version_is_the_images_tag():
    assert pod(model(runtimeVersion="2"))["containers"][0]["image"] == "server:2"
    fixed = runtime(containers=[{**CONTAINER, "image": "registry:5000/server@sha256:abc"}])
    assert pod(model(runtimeVersion="2"), fixed)["containers"][0]["image"] == "registry:5000/server@sha256:abc"
    port = runtime(containers=[{**CONTAINER, "image": "registry:5000/server"}])
    assert pod(model(runtimeVersion="2"), port)["containers"][0]["image"] == "registry:5000/server:2"


def test_kserve_3_2_the_service_is_named_in_the_environment():
    assert {"name": "INFERENCE_SERVICE_NAME", "value": "m"} in pod(service())["containers"][0]["env"]


def test_kserve_3_3_a_probe_makes_ready_mean_that_the_server_listens():
    assert pod(service())["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": 8080}
    ports = [{"containerPort": 9000}]
    assert pod(model(ports=ports))["containers"][0]["readinessProbe"]["tcpSocket"] == {"port": 9000}
    own = {"httpGet": {"path": "/ready", "port": 1}}
    assert pod(model(readinessProbe=own))["containers"][0]["readinessProbe"] == own


def test_kserve_2_3_a_model_is_fetched_by_an_init_container():
    found = pod(model(storageUri="gs://b/m"))
    (initializer,) = found["initContainers"]
    assert (initializer["name"], initializer["image"]) == ("storage-initializer", "init:1")
    assert initializer["args"] == ["gs://b/m", "/mnt/models"]
    assert found["containers"][0]["volumeMounts"] == [
        {"name": "kserve-provision-location", "mountPath": "/mnt/models", "readOnly": True}
    ]


def test_kserve_2_3_a_claim_is_mounted():
    found = pod(model(storageUri="pvc://claim/a/b"))
    assert "initContainers" not in found
    assert found["volumes"][0]["persistentVolumeClaim"] == {"claimName": "claim", "readOnly": True}
    assert found["containers"][0]["volumeMounts"][0]["subPath"] == "a/b"


@pytest.mark.parametrize("uri", ["oci://image", "models/1", "://x", ""])
def test_an_unknown_storage_uri_is_an_invalid_predictor(uri):
    if not uri:
        assert "volumes" not in pod(model(storageUri=uri))
        return
    with pytest.raises(InvalidPredictorError, match="storageUri"):
        rendered(model(storageUri=uri))


def test_own_containers_need_no_runtime():
    isvc = service(containers=[{"name": "mine", "image": "mine:1", "ports": [{"containerPort": 9}]}])
    found = render(isvc, None, storage_initializer="").raw["spec"]["containers"]
    assert found[0]["name"] == "mine"
    assert found[0]["readinessProbe"]["tcpSocket"] == {"port": 9}
    with pytest.raises(InvalidPredictorError, match="has no image"):
        render(service(containers=[{"name": "mine"}]), None, storage_initializer="")


def test_kserve_1_9_1_only_the_template_makes_a_revision():
    base = rendered(model(storageUri="gs://b/1")).hash
    same = service(
        {"labels": {"a": "b"}, "annotations": {"c": "d"}},
        model={"storageUri": "gs://b/1", "runtime": "server", "modelFormat": {"name": "x"}},
        minReplicas=7,
        canaryTrafficPercent=3,
        maxReplicas=9,
        scaleTarget=1,
    )
    assert rendered(same).hash == base
    assert rendered(model(storageUri="gs://b/2")).hash != base
    assert rendered(model(storageUri="gs://b/1"), runtime(nodeSelector={"a": "b"})).hash != base


def test_kserve_1_9_1_the_hash_is_of_what_is_meant():
    def hashed(**container):
        return Template.of({"spec": {"containers": [container]}}).hash

    assert hashed(resources={"limits": {"cpu": "1000m"}}) == hashed(resources={"limits": {"cpu": "1"}})
    assert hashed(name="c", env=[], securityContext={}, image=None) == hashed(name="c")
    assert hashed(args=["1000m"]) != hashed(args=["1"])
    assert hashed(args=["a", "b"]) != hashed(args=["b", "a"])
    assert hashed(tty=False) != hashed()


@given(st.from_regex(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True), st.integers(1, 99999))
def test_kserve_1_7_names_fit_and_differ(name, number):
    revision = revision_name(name, number)
    assert len(revision) <= 63
    assert all(len(value) <= 63 for value in pod_labels(name, revision).values())
    assert revision_name(name, number + 1) != revision


def test_kserve_1_7_a_short_name_is_kept():
    assert revision_name("m", 1) == "m-predictor-00001"
    assert child_name("a" * 60, "-x") == "a" * 60 + "-x"
    assert len(child_name("a" * 70, "-x")) == 63


@pytest.mark.parametrize(
    ("ports", "expected"),
    [
        (None, [{"port": 80, "targetPort": 8080, "protocol": "TCP"}]),
        (
            [{"containerPort": 8081, "name": "h2c"}, {"containerPort": 9000}],
            [
                {"port": 80, "targetPort": 8081, "protocol": "TCP", "name": "h2c", "appProtocol": "kubernetes.io/h2c"},
                {"port": 9000, "targetPort": 9000, "protocol": "TCP", "name": "port-9000"},
            ],
        ),
    ],
)
def test_kserve_3_3_service_ports(ports, expected):
    assert _ports({"ports": ports}) == expected


def test_settings_come_from_the_environment():
    environment = {
        "INFERENCESERVICE_GATEWAY": "edge/public",
        "INFERENCESERVICE_PROPAGATION": "2.5",
        "INFERENCESERVICE_PROGRESS_DEADLINE": "1200",
        "INFERENCESERVICE_READY_FOLLOWS_CANDIDATE": "true",
    }
    found = Settings.from_environment(environment)
    assert (found.gateway, found.propagation, found.progress_deadline) == ("edge/public", 2.5, 1200)
    assert found.ready_follows_candidate is True
    assert Settings.from_environment({}) == Settings()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("GATEWAY", "edge", "gateway: 'edge' is not of the form namespace/name"),
        ("PROPAGATION", "soon", "INFERENCESERVICE_PROPAGATION: must be a number"),
        ("PROPAGATION", "-1", "propagation: must not be negative"),
        ("PROGRESS_DEADLINE", "0", "progress_deadline: must be at least 1"),
        ("DISCOVERY_PERIOD", "0", "discovery_period: must be above 0"),
        ("URL_SCHEME", "ftp", "url_scheme: must be 'http' or 'https'"),
        ("READY_FOLLOWS_CANDIDATE", "yes", "must be true or false"),
    ],
)
def test_a_setting_that_cannot_be_used_is_named(variable, value, message):
    with pytest.raises(ValueError, match=message):
        Settings.from_environment({f"INFERENCESERVICE_{variable}": value})
