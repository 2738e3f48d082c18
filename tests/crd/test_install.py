"""CRDs on the real API server: accepted, served, and meaning what the models say."""

import secrets
from collections.abc import AsyncIterator
from typing import Annotated, Any

import orjson
import pytest
from click.testing import CliRunner
from pydantic import Field

from pyreconcile.api import (
    Column,
    CustomResource,
    Int32,
    IntOrString,
    Model,
    Quantity,
    RawObject,
    ScaleSubresource,
    Spec,
    Status,
    unstructured,
)
from pyreconcile.api.apiextensions_v1 import CustomResourceDefinition
from pyreconcile.api.core_v1 import PersistentVolumeClaim, PodTemplateSpec
from pyreconcile.cli import cli
from pyreconcile.client import Client, InvalidError
from pyreconcile.crd import (
    CRDNotServedError,
    cel,
    crd_for,
    install_crds,
    list_type,
    nullable,
    preserve_unknown_fields,
)
from pyreconcile_controllers.leaderworkerset import MODELS as LWS_MODELS
from pyreconcile_controllers.modelcache import ModelCache

pytestmark = pytest.mark.plane

GROUP = f"t{secrets.token_hex(4)}.example.dev"


class Part(Model):
    name: str
    size: int = 1


class CrewSpec(Spec):
    template: PodTemplateSpec
    claims: list[PersistentVolumeClaim] | None = None
    replicas: Annotated[Int32, Field(ge=0)] = 1
    surge: IntOrString = "25%"
    memory: Quantity | None = None
    parts: list[Part] | None = Field(default=None, json_schema_extra=list_type("map", keys=["name"]))
    note: str | None = Field(default=None, json_schema_extra=nullable())
    plain: str | None = None
    extra: Part | None = Field(default=None, json_schema_extra=preserve_unknown_fields())
    rank: int | None = Field(default=None, json_schema_extra=cel("self >= oldSelf", "rank only grows"))


class CrewStatus(Status):
    replicas: Int32 | None = None


class Crew(
    CustomResource[CrewSpec, CrewStatus],
    group=GROUP,
    version="v1",
    columns=[Column("Wanted", ".spec.replicas", "integer")],
    scale=ScaleSubresource(),
):
    """Pods of a kind."""


class CrewBeta(CustomResource[CrewSpec, CrewStatus], group=GROUP, version="v1beta1", kind="Crew", storage=False):
    """Pods of a kind, as they were."""


_served: set[str] = set()


@pytest.fixture
async def crews(client: Client) -> Client:
    """A client of a server that has Crew; it is big, so it is installed once."""
    if GROUP not in _served:
        await install_crds(client, [Crew, CrewBeta])
        _served.add(GROUP)
    return client


@pytest.fixture
async def scratch(client: Client) -> AsyncIterator[list[str]]:
    """Names of CRDs to delete in the end."""
    names: list[str] = []
    yield names
    for name in names:
        await client.delete(CustomResourceDefinition, name, missing_ok=True)


def crew(namespace: str, **spec: Any) -> RawObject:
    pod = {"spec": {"containers": [{"name": "main", "image": "example.dev/x:1"}]}}
    return {"metadata": {"name": "a", "namespace": namespace}, "spec": {"template": pod, **spec}}


async def test_model_cache_defaults_and_refusals(client: Client, namespace: str):
    await install_crds(client, [ModelCache])
    made = await client.create(
        ModelCache.from_dict({"metadata": {"name": "a", "namespace": namespace}, "spec": {"model": "m"}}), dry_run=True
    )
    assert made.spec.replicas == 1
    for spec, message in (
        ({"model": ""}, "model must not be empty"),
        ({"model": "m", "replicas": 9}, r"spec\.replicas.*less than or equal to 8"),
        ({"model": "m", "replicas": -1}, r"spec\.replicas.*greater than or equal to 0"),
    ):
        obj = unstructured("labs.example.dev/v1", "ModelCache")(
            metadata={"name": "b", "namespace": namespace}, spec=spec
        )
        with pytest.raises(InvalidError, match=message):
            await client.create(obj, dry_run=True)


async def test_the_server_drops_nothing_from_a_crd(crews: Client):
    for models in ([Crew, CrewBeta], [ModelCache], list(LWS_MODELS)):
        installed = (await install_crds(crews, models))[0].to_dict()
        ours = crd_for(*models)
        for mine, stored in zip(ours["spec"]["versions"], installed["spec"]["versions"], strict=True):
            assert stored["schema"] == mine["schema"]
            assert stored.get("additionalPrinterColumns") == mine.get("additionalPrinterColumns")
            assert stored.get("subresources") == mine.get("subresources")


async def test_installing_again_writes_nothing(crews: Client):
    first = (await install_crds(crews, [Crew, CrewBeta]))[0]
    second = (await install_crds(crews, [Crew, CrewBeta]))[0]
    assert first.metadata.resource_version == second.metadata.resource_version
    assert [version.name for version in second.spec.versions] == ["v1", "v1beta1"]


async def test_a_new_kind_can_be_watched_at_once(client: Client, scratch: list[str]):
    for number in range(5):
        name = f"Fresh{number}"
        kind = type(name, (CustomResource[Spec, Status],), {"__module__": __name__}, group=GROUP, version="v1")
        scratch.append(f"{kind.resource.plural}.{GROUP}")
        await install_crds(client, [kind])
        async with client.transport.stream(kind.resource.path(), query={"watch": "1"}, idle_timeout=30):
            pass


async def test_an_empty_default_and_a_subresource_come_and_go(client: Client, scratch: list[str]):
    def crow(*, status: bool, default: bool) -> RawObject:
        class Crow(CustomResource[Spec, Status], group=GROUP, version="v1", kind="Crow", status_subresource=status):
            """Comes and goes."""

        crd = crd_for(Crow)
        if default:
            crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["default"] = {}
        return crd

    scratch.append(f"crows.{GROUP}")
    for status, default in ((True, True), (False, False), (True, False)):
        crd = (await install_crds(client, [crow(status=status, default=default)]))[0].to_dict()
        version = crd["spec"]["versions"][0]
        assert version.get("subresources") == ({"status": {}} if status else None)
        spec = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
        assert spec.get("default") == ({} if default else None)


async def test_lws_1_1_defaults_inside_pod_templates(crews: Client, namespace: str):
    pod = {
        "metadata": {"labels": {"a": "b"}, "generateName": "dropped-"},
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "ports": [{"containerPort": 80}],
                    "env": [
                        {"name": "A", "valueFrom": {"configMapKeyRef": {"key": "k"}}},
                        {"name": "B", "valueFrom": {"secretKeyRef": {"key": "k"}}},
                        {"name": "C", "valueFrom": {"fileKeyRef": {"key": "k", "path": "p", "volumeName": "v"}}},
                    ],
                    "envFrom": [{"configMapRef": {}}, {"secretRef": {}}],
                    "livenessProbe": {"grpc": {"port": 1}},
                    "resources": {"limits": {"cpu": 1, "memory": "1Gi"}},
                }
            ],
            "imagePullSecrets": [{}],
            "volumes": [
                {"name": "azure", "azureDisk": {"diskName": "d", "diskURI": "u"}},
                {"name": "iscsi", "iscsi": {"iqn": "i", "lun": 0, "targetPortal": "t"}},
                {"name": "rbd", "rbd": {"image": "i", "monitors": ["m"]}},
                {"name": "scale", "scaleIO": {"gateway": "g", "secretRef": {}, "system": "s"}},
                {"name": "map", "configMap": {}},
                {"name": "all", "projected": {"sources": [{"secret": {}}, {"configMap": {}}]}},
            ],
        },
    }
    claim = {"metadata": {"name": "data", "uid": "dropped"}, "spec": {"resources": {"requests": {"storage": 5}}}}
    sent = crew(namespace, template=pod, claims=[claim])
    made = (await crews.create(Crew.from_dict(sent))).to_dict()["spec"]
    spec = made["template"]["spec"]
    main, volumes = spec["containers"][0], spec["volumes"]
    assert made["template"]["metadata"] == {"labels": {"a": "b"}}
    assert main["ports"] == [{"containerPort": 80, "protocol": "TCP"}]
    assert main["env"][0]["valueFrom"]["configMapKeyRef"] == {"key": "k", "name": ""}
    assert main["env"][1]["valueFrom"]["secretKeyRef"] == {"key": "k", "name": ""}
    assert main["env"][2]["valueFrom"]["fileKeyRef"]["optional"] is False
    assert main["envFrom"] == [{"configMapRef": {"name": ""}}, {"secretRef": {"name": ""}}]
    assert main["livenessProbe"]["grpc"] == {"port": 1, "service": ""}
    assert main["resources"] == {"limits": {"cpu": 1, "memory": "1Gi"}}
    assert spec["imagePullSecrets"] == [{"name": ""}]
    # No cachingMode and no kind, which have defaults in a pod but not in the CRDs that controller-gen makes.
    assert volumes[0]["azureDisk"] == {"diskName": "d", "diskURI": "u", "fsType": "ext4", "readOnly": False}
    assert volumes[1]["iscsi"]["iscsiInterface"] == "default"
    assert volumes[2]["rbd"].items() >= {"keyring": "/etc/ceph/keyring", "pool": "rbd", "user": "admin"}.items()
    assert volumes[3]["scaleIO"].items() >= {"fsType": "xfs", "storageMode": "ThinProvisioned"}.items()
    assert volumes[3]["scaleIO"]["secretRef"] == {"name": ""}
    assert volumes[4]["configMap"] == {"name": ""}
    assert volumes[5]["projected"]["sources"] == [{"secret": {"name": ""}}, {"configMap": {"name": ""}}]
    # Nothing is added to a claim: what is stored counts for the revision hash.
    assert made["claims"] == [{"metadata": {"name": "data"}, "spec": {"resources": {"requests": {"storage": 5}}}}]


async def test_lws_1_the_crd_is_accepted_with_its_defaults(client: Client):
    crd = (await install_crds(client, LWS_MODELS))[0]
    assert crd.metadata.name == "leaderworkersets.leaderworkerset.x-k8s.io"
    spec = crd.to_dict()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    group = spec["leaderWorkerTemplate"]["properties"]
    assert (spec["replicas"]["default"], spec["replicas"]["maximum"]) == (1, 1_000_000)
    assert (spec["startupPolicy"]["default"], group["size"]["default"]) == ("LeaderCreated", 1)
    assert group["restartPolicy"]["default"] == "RecreateGroupOnPodRestart"


# Left out of CRDs on purpose: enums, because each release adds values, and what only the server's own types have.
NOT_IN_CRDS = {
    "description",
    "enum",
    "x-kubernetes-group-version-kind",
    "x-kubernetes-patch-merge-key",
    "x-kubernetes-patch-strategy",
    "x-kubernetes-unions",
}


def differences(path: str, ours: RawObject, theirs: RawObject, schemas: RawObject) -> list[str]:
    """Compare a schema of ours with one of the OpenAPI document, down to the leaves."""
    ref = theirs.get("$ref") or next((part["$ref"] for part in theirs.get("allOf", ())), "")
    theirs = {**schemas.get(ref.rpartition("/")[2], {}), **theirs}
    if ref.endswith("ObjectMeta"):
        return []
    if ref.endswith(("Quantity", "IntOrString")):
        return [] if ours.get("x-kubernetes-int-or-string") else [f"{path}: not int-or-string"]
    skipped = NOT_IN_CRDS | {"$ref", "allOf", "properties", "items", "additionalProperties", "required", "default"}
    found = [
        f"{path}: {key} {ours.get(key)} != {theirs.get(key)}"
        for key in (ours.keys() | theirs.keys()) - skipped
        if ours.get(key) != theirs.get(key)
    ]
    required = set(theirs.get("required", ()))
    if set(ours.get("required", ())) != required:
        found.append(f"{path}: required {ours.get('required')} != {required}")
    properties = theirs.get("properties", {})
    if ours.get("properties", {}).keys() != properties.keys():
        found.append(f"{path}: properties differ")
    for name, theirs_inner in properties.items():
        inner = ours["properties"][name]
        default = {} if name in required else theirs_inner.get("default", {})  # there a required one has Go's zero
        if inner.get("default", {}) != default:
            found.append(f"{path}.{name}: default {inner.get('default')} != {default}")
        found += differences(f"{path}.{name}", inner, theirs_inner, schemas)
    for key in ("items", "additionalProperties"):
        if isinstance(theirs.get(key), dict):
            found += differences(f"{path}/{key}", ours[key], theirs[key], schemas)
    return found


async def test_lws_1_1_embedded_schemas_are_the_servers_own(client: Client):
    openapi = orjson.loads(await client.transport.request("GET", "/openapi/v3/api/v1"))["components"]["schemas"]
    ours = crd_for(Crew)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    core = "io.k8s.api.core.v1"
    left_out = [
        f"pod.spec.volumes/items.azureDisk.{name}" for name in ("cachingMode", "kind")
    ]  # as controller-gen does
    found = differences("pod", ours["template"], {"$ref": f"{core}.PodTemplateSpec"}, openapi)
    assert [text.partition(": default None")[0] for text in found] == left_out
    claim = ours["claims"]["items"]
    assert differences("claim", claim, {"$ref": f"{core}.PersistentVolumeClaim"}, openapi) == []


async def test_defaults_and_null(crews: Client, namespace: str):
    made = await crews.create(Crew.from_dict(crew(namespace, note=None, plain=None, memory="1Gi")), dry_run=True)
    assert (made.spec.replicas, made.spec.surge) == (1, "25%")
    spec = made.to_dict()["spec"]
    assert spec["note"] is None
    assert "plain" not in spec


async def test_unknown_fields_are_pruned_unless_preserved(crews: Client, namespace: str):
    obj = unstructured(f"{GROUP}/v1", "Crew").from_dict(crew(namespace, unknown=1, extra={"name": "e", "unknown": 1}))
    spec = (await crews.create(obj, dry_run=True, field_validation="Ignore"))["spec"]
    assert "unknown" not in spec
    assert spec["extra"] == {"name": "e", "size": 1, "unknown": 1}


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ({"memory": "1 Gi"}, r"spec\.memory"),
        ({"surge": True}, r"spec\.surge"),
        ({"replicas": 2**31}, r"spec\.replicas"),
        ({"parts": [{"name": "a"}, {"name": "a"}]}, r"spec\.parts\[1\].*Duplicate"),
    ],
)
async def test_wrong_values_are_refused(crews: Client, namespace: str, spec: RawObject, message: str):
    obj = unstructured(f"{GROUP}/v1", "Crew").from_dict(crew(namespace, **spec))
    with pytest.raises(InvalidError, match=message):
        await crews.create(obj, dry_run=True)


async def test_a_transition_rule_holds_on_update(crews: Client, namespace: str):
    made = await crews.create(Crew.from_dict(crew(namespace, rank=2)))
    made.spec.rank = 1
    with pytest.raises(InvalidError, match="rank only grows"):
        await crews.update(made)
    made.spec.rank = 3
    assert (await crews.update(made)).spec.rank == 3


async def test_columns_scale_and_the_other_version(crews: Client, namespace: str):
    await crews.create(Crew.from_dict(crew(namespace, replicas=4)))
    path = Crew.resource.path(namespace, "a")
    table = orjson.loads(
        await crews.transport.request("GET", path, accept="application/json;as=Table;v=v1;g=meta.k8s.io")
    )
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Wanted"]
    assert table["rows"][0]["cells"] == ["a", 4]
    scale = orjson.loads(await crews.transport.request("GET", f"{path}/scale"))
    assert scale["spec"]["replicas"] == 4
    assert (await crews.get(CrewBeta, f"{namespace}/a")).spec.replicas == 4


async def test_a_crd_that_the_server_refuses_is_an_invalid_error(client: Client):
    class Wrong(CustomResource[Spec, Status], group=GROUP, version="v1", plural="wrongs"):
        """Wrong."""

    crd = crd_for(Wrong)
    crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"] |= cel("self.nothing > 1")
    with pytest.raises(InvalidError, match="undefined field 'nothing'"):
        await install_crds(client, [crd])


async def test_a_crd_whose_names_are_taken_is_named_with_its_condition(crews: Client, scratch: list[str]):
    class Rook(CustomResource[Spec, Status], group=GROUP, version="v1", singular="crew"):
        """Of a name that Crew has."""

    scratch.append(f"rooks.{GROUP}")
    told = ""
    for timeout in (1.0, 5.0, 25.0):  # a busy server looks at the names some time later
        with pytest.raises(CRDNotServedError) as refused:
            await install_crds(crews, [Rook], timeout=timeout)
        told = str(refused.value)
        if "NamesAccepted" in told:
            break
    assert f'does not serve rooks.{GROUP}: NamesAccepted=False: "crew"' in told


async def test_the_command_applies(client: Client, control_plane):
    import anyio.to_thread

    arguments = ["crds", "modelcache", "--apply", "--kubeconfig", str(control_plane.kubeconfig)]
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(cli, arguments))
    assert result.output == "modelcaches.labs.example.dev is served\n"
    assert result.exit_code == 0


async def test_the_command_says_in_one_line_when_there_is_no_server(tmp_path):
    import anyio.to_thread

    arguments = ["crds", "modelcache", "--apply", "--kubeconfig", str(tmp_path / "nothing")]
    result = await anyio.to_thread.run_sync(lambda: CliRunner().invoke(cli, arguments))
    assert result.exit_code == 1
    assert "nothing" in result.output
    assert "Traceback" not in result.output


async def test_cleaning_up(client: Client):
    await client.delete(CustomResourceDefinition, f"crews.{GROUP}", missing_ok=True)
