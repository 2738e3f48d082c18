"""The generated models: what is imported when, how they read what Go writes, and that they are up to date."""

import importlib
import json
import pkgutil
import subprocess
import sys
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

import pyreconcile.api
from pyreconcile.api import find_model
from pyreconcile.api.builtin._kinds import KINDS
from pyreconcile.api.core_v1 import Container, ContainerPort, Pod, PodSpec, Secret, Service
from pyreconcile.client import Client, MethodNotAllowedError, NotFoundError

FRONTS = [
    name
    for _, name, _ in pkgutil.iter_modules(pyreconcile.api.__path__)
    if not name.startswith("_") and name.rpartition("_")[2] in ("v1", "v2")
]


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_config_map_does_not_import_pod():
    loaded = json.loads(
        run(
            "import sys, json\nfrom pyreconcile.api.core_v1 import ConfigMap\nConfigMap()\n"
            "print(json.dumps([name for name in sys.modules if name.startswith('pyreconcile.api.builtin.core_v1.')]))"
        )
    )
    assert loaded == ["pyreconcile.api.builtin.core_v1.config_map"]


def test_importing_the_api_imports_no_model():
    code = "import sys, pyreconcile.api\nprint('pyreconcile.api.builtin._base' in sys.modules)"
    assert run(code).strip() == "False"


@pytest.mark.parametrize("front", FRONTS)
def test_every_exported_model_is_complete(front: str):
    module = importlib.import_module(f"pyreconcile.api.{front}")
    for name in module.__all__:
        model = getattr(module, name)
        assert issubclass(model, BaseModel)
        assert model.model_rebuild() is not False
        wires = [info.alias for info in model.model_fields.values()]
        assert len(wires) == len(set(wires))


def test_an_unknown_name_in_a_group_is_an_attribute_error():
    from pyreconcile.api import core_v1

    with pytest.raises(AttributeError, match=r"pyreconcile\.api\.core_v1.*'Podd'"):
        core_v1.Podd  # type: ignore[attr-defined]  # noqa: B018


def test_every_kind_of_the_table_is_found():
    for api_version, kinds in KINDS.items():
        for kind in kinds:
            model = find_model(api_version, kind)
            assert model is not None
            assert (model.resource.api_version, model.resource.kind) == (api_version, kind)
            assert model.resource.plural
            assert model.model_fields["api_version"].default == api_version


def test_subclassing_a_built_in_kind_leaves_the_registry_alone():
    class MyPod(Pod):
        @property
        def first_image(self) -> str | None:
            return self.spec.containers[0].image if self.spec else None

    assert MyPod(spec=PodSpec(containers=[Container(name="a", image="x")])).first_image == "x"
    assert find_model("v1", "Pod") is Pod


def test_wire_names_with_acronyms():
    port = ContainerPort(container_port=80, host_ip="10.0.0.1", host_port=8080)
    assert port.to_dict() == {"containerPort": 80, "hostIP": "10.0.0.1", "hostPort": 8080}
    service = Service.from_dict({"spec": {"clusterIP": "None", "clusterIPs": ["None"], "externalIPs": []}})
    assert service.spec is not None
    assert (service.spec.cluster_ip, service.spec.cluster_ips, service.spec.external_ips) == ("None", ["None"], [])


def test_names_that_clash_have_an_underscore():
    from pyreconcile.api.apiextensions_v1 import CustomResourceDefinitionVersion, JSONSchemaProps
    from pyreconcile.api.networking_v1 import NetworkPolicyIngressRule

    assert NetworkPolicyIngressRule(from_=[]).to_dict() == {"from": []}
    assert JSONSchemaProps(ref="x", schema_="y", not_=JSONSchemaProps()).to_dict() == {
        "$ref": "x",
        "$schema": "y",
        "not": {},
    }
    assert "schema" in CustomResourceDefinitionVersion(name="v1", served=True, storage=True, schema_={}).to_dict()


def test_a_required_list_reads_null_as_empty():
    from pyreconcile.api.core_v1 import NodeSelector
    from pyreconcile.api.events_v1 import Event

    assert PodSpec.from_dict({"containers": None}).containers == []
    assert NodeSelector.from_dict({"nodeSelectorTerms": None}).to_dict() == {"nodeSelectorTerms": []}
    assert Event.from_dict({"metadata": {"name": "a"}, "eventTime": None}).event_time is None


def test_an_empty_status_is_read():
    from pyreconcile.api.apps_v1 import StatefulSet

    raw = {"spec": {"selector": {}, "serviceName": "", "template": {}}, "status": {}}
    status = StatefulSet.from_dict(raw).status
    assert status is not None
    assert status.replicas == 0


def test_secret_data_is_in_no_repr():
    secret = Secret(metadata={"name": "a"}, data={"password": "aHVudGVyMg=="}, string_data={"token": "hunter2"})
    assert "hunter2" not in repr(secret)
    assert "aHVudGVyMg" not in f"{secret}"


JSON_VALUES = st.none() | st.integers(-100, 100) | st.text(max_size=4) | st.lists(st.text(max_size=3), max_size=2)


@given(
    st.dictionaries(st.text(min_size=1, max_size=6).map("x-{}".format), JSON_VALUES, max_size=3),
    st.lists(st.text(max_size=5), max_size=3),
    st.none() | st.integers(0, 2**31 - 1),
    st.dictionaries(st.text(max_size=5), st.text(max_size=5) | st.integers(0, 9), max_size=3),
)
def test_pods_round_trip_with_fields_of_a_later_release(
    unknown: dict[str, Any], args: list[str], grace: int | None, limits: dict[str, Any]
):
    raw = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a", **unknown},
        "spec": {
            "containers": [{"name": "c", "args": args, "resources": {"limits": limits}, **unknown}],
            "terminationGracePeriodSeconds": grace,
            **unknown,
        },
        **unknown,
    }
    pod = Pod.from_dict(raw)
    assert pod.to_dict() == raw
    assert Pod.from_json(pod.to_json()) == pod


@pytest.mark.plane
async def test_everything_the_server_has_round_trips(client: Client, namespace: str):
    from pyreconcile.api.apps_v1 import StatefulSet

    await client.create(StatefulSet.from_dict(_STATEFUL_SET | {"metadata": {"name": "web", "namespace": namespace}}))
    seen: set[str] = set()
    for api_version, kinds in KINDS.items():
        for kind in kinds:
            model = find_model(api_version, kind)
            assert model is not None
            try:
                answer = await client.transport.request("GET", model.resource.path(), query={"limit": "20"})
            except (NotFoundError, MethodNotAllowedError):  # a kind that can only be created, such as TokenReview
                continue
            listed = orjson.loads(answer)
            for item in listed.get("items") or ():
                raw = {"apiVersion": api_version, "kind": kind, **item}
                obj = model.from_dict(raw)
                assert obj.to_dict() == raw
                assert obj.deep_copy() == obj
                seen.add(kind)
    assert {"StatefulSet", "Node", "Namespace", "Service", "ClusterRole", "FlowSchema", "Lease"} - seen <= {
        "FlowSchema"
    }


_STATEFUL_SET: dict[str, Any] = {
    "spec": {
        "replicas": 1,
        "serviceName": "web",
        "selector": {"matchLabels": {"app": "web"}},
        "template": {
            "metadata": {"labels": {"app": "web"}},
            "spec": {
                "containers": [
                    {
                        "name": "main",
                        "image": "example.dev/web:1",
                        "ports": [{"containerPort": 80, "name": "http"}],
                        "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
                        "resources": {"requests": {"cpu": "0.1", "memory": "1Gi"}},
                        "readinessProbe": {"httpGet": {"path": "/", "port": "http"}},
                    }
                ],
                "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "1.5Gi"}}],
            },
        },
        "volumeClaimTemplates": [
            {
                "metadata": {"name": "data"},
                "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}},
            }
        ],
    }
}


@pytest.mark.plane
async def test_the_checked_in_models_are_what_the_server_gives(control_plane, monkeypatch: pytest.MonkeyPatch):
    from pathlib import Path

    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    generate = importlib.import_module("hack.generate")
    server = await generate.read_server(str(control_plane.kubeconfig), generate.GROUPS.values())
    assert generate.model_changes(server, check=True) == []
