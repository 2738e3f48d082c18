"""Whole CRDs: names, columns, sub-resources, versions, YAML, and the files that are checked in."""

import importlib
import re
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from pyreconcile.api import Column, CustomResource, ScaleSubresource, Spec, Status
from pyreconcile.cli import cli
from pyreconcile.crd import SchemaError, crd_for, crd_yaml


class ThingSpec(Spec):
    replicas: int = 1


class ThingStatus(Status):
    replicas: int | None = None
    selector: str | None = None


class Thing(
    CustomResource[ThingSpec, ThingStatus],
    group="tests.example.dev",
    version="v1",
    scope="Cluster",
    short_names=["th"],
    categories=["all"],
    columns=[
        Column("Wanted", ".spec.replicas", "integer", "How many", priority=1),
        Column("Age", ".metadata.creationTimestamp", "date"),
    ],
    scale=ScaleSubresource(label_selector_path=".status.selector"),
    annotations={"example.dev/team": "a"},
):
    """A thing."""


class ThingBeta(
    CustomResource[ThingSpec, ThingStatus],
    group="tests.example.dev",
    version="v1beta1",
    kind="Thing",
    scope="Cluster",
    storage=False,
    status_subresource=False,
):
    """A thing of old."""


def test_names_columns_and_subresources():
    crd = crd_for(Thing)
    assert crd["metadata"] == {"name": "things.tests.example.dev", "annotations": {"example.dev/team": "a"}}
    assert crd["spec"]["scope"] == "Cluster"
    assert crd["spec"]["names"] == {
        "kind": "Thing",
        "listKind": "ThingList",
        "plural": "things",
        "singular": "thing",
        "shortNames": ["th"],
        "categories": ["all"],
    }
    version = crd["spec"]["versions"][0]
    assert version["additionalPrinterColumns"] == [
        {"name": "Wanted", "type": "integer", "jsonPath": ".spec.replicas", "description": "How many", "priority": 1},
        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
    ]
    assert version["subresources"] == {
        "status": {},
        "scale": {
            "specReplicasPath": ".spec.replicas",
            "statusReplicasPath": ".status.replicas",
            "labelSelectorPath": ".status.selector",
        },
    }


def test_several_versions():
    crd = crd_for(Thing, ThingBeta, conversion={"strategy": "None"})
    versions = crd["spec"]["versions"]
    assert [(v["name"], v["served"], v["storage"]) for v in versions] == [("v1", True, True), ("v1beta1", True, False)]
    assert "subresources" not in versions[1]
    assert crd["spec"]["conversion"] == {"strategy": "None"}


def test_versions_that_do_not_fit_are_refused():
    class ThingV2(CustomResource[ThingSpec, ThingStatus], group="tests.example.dev", version="v2", kind="Thing"):
        """Of another scope."""

    class ThingV3(
        CustomResource[ThingSpec, ThingStatus], group="tests.example.dev", version="v3", kind="Thing", scope="Cluster"
    ):
        """Stored too."""

    with pytest.raises(SchemaError, match="ThingV2: namespaced is True, but Thing has False"):
        crd_for(Thing, ThingV2)
    with pytest.raises(SchemaError, match="exactly one version is stored, not v1, v3"):
        crd_for(Thing, ThingV3)
    with pytest.raises(SchemaError, match="exactly one version is stored, not none"):
        crd_for(ThingBeta)
    with pytest.raises(SchemaError, match="version v1 is there twice"):
        crd_for(Thing, Thing)


def test_a_class_without_group_and_version_is_refused():
    class Plain(CustomResource[ThingSpec, ThingStatus]):
        """No kind."""

    with pytest.raises(SchemaError, match="Plain: give group and version"):
        crd_for(Plain)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (Column("Phase", ".status.phse"), r"Wrong: '\.status\.phse': there is no field 'phse'"),
        (Column("Phase", "status.phase"), "a path begins with a dot"),
    ],
)
def test_a_column_that_leads_nowhere_is_refused(column: Column, message: str):
    class Wrong(
        CustomResource[ThingSpec, ThingStatus], group="tests.example.dev", version="v1", columns=[column], kind="Wrong"
    ):
        """Wrong."""

    with pytest.raises(SchemaError, match=message):
        crd_for(Wrong)


def test_a_scale_path_that_leads_nowhere_is_refused():
    class Wrong(CustomResource[Spec, Status], group="tests.example.dev", version="v1", scale=ScaleSubresource()):
        """Wrong."""

    with pytest.raises(SchemaError, match="there is no field 'replicas'"):
        crd_for(Wrong)


def test_yaml_is_stable_and_says_the_same_as_the_object():
    text = crd_yaml(Thing)
    assert text == crd_yaml(Thing)
    assert yaml.safe_load(text) == crd_for(Thing)
    assert "&id" not in text
    assert list(yaml.safe_load_all(crd_yaml(Thing, crd_for(Thing, ThingBeta)))) == [
        crd_for(Thing),
        crd_for(Thing, ThingBeta),
    ]


def test_the_checked_in_crds_are_what_the_models_give(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    generate = importlib.import_module("hack.generate")
    assert generate.crd_changes(check=True) == []


def test_the_command_prints_the_crds_that_are_named():
    result = CliRunner().invoke(cli, ["crds", "modelcache"])
    assert result.exit_code == 0
    documents = list(yaml.safe_load_all(result.output))
    assert [crd["metadata"]["name"] for crd in documents] == ["modelcaches.labs.example.dev"]


def test_the_command_prints_all_crds_by_default():
    names = re.findall(r"^metadata:\n  name: (.*)$", CliRunner().invoke(cli, ["crds"]).output, re.MULTILINE)
    assert set(names) >= {"modelcaches.labs.example.dev", "leaderworkersets.leaderworkerset.x-k8s.io"}


@pytest.mark.parametrize("arguments", [["nope"], ["modelcache", "--kubeconfig", "x"]])
def test_the_command_refuses_wrong_usage_in_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]):
    from pyreconcile.cli import main

    with pytest.raises(SystemExit) as exit_info:
        main(["crds", *arguments])
    assert exit_info.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
