"""Whole objects: apiVersion and kind, custom resource classes and their arguments, kinds without a model."""

from typing import Any

import pytest

from pyreconcile.api import (
    Column,
    CustomResource,
    CustomResourceOptions,
    KubeObject,
    Resource,
    Spec,
    Status,
    Unstructured,
    find_model,
    register_lazy,
    split_key,
    unstructured,
)
from pyreconcile.api.core_v1 import ConfigMap, Pod, PodSpec


class WidgetSpec(Spec):
    size: int = 1


class WidgetStatus(Status):
    phase: str | None = None


class Widget(
    CustomResource[WidgetSpec, WidgetStatus],
    group="tests.example.dev",
    version="v1",
    short_names=["wd"],
    columns=[Column("Phase", ".status.phase")],
):
    """A widget."""


def test_a_new_object_has_its_api_version_and_kind():
    assert ConfigMap(metadata={"name": "a"}).to_dict() == {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "a"},
    }
    assert Widget(spec=WidgetSpec()).api_version == "tests.example.dev/v1"


def test_rf_10_items_of_a_list_get_api_version_and_kind():
    widget = Widget.from_dict({"metadata": {"name": "a", "namespace": "b"}, "spec": {}})
    assert (widget.api_version, widget.kind, widget.key) == ("tests.example.dev/v1", "Widget", "b/a")
    assert list(widget.to_dict())[:2] == ["apiVersion", "kind"]


def test_a_nested_object_does_not_grow_api_version_and_kind():
    from pyreconcile.api.apps_v1 import StatefulSet

    raw = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "spec": {
            "selector": {},
            "serviceName": "",
            "template": {},
            "volumeClaimTemplates": [{"metadata": {"name": "data"}, "spec": {}}],
        },
    }
    assert StatefulSet.from_dict(raw).to_dict() == raw


def test_metadata_is_always_there_and_written_once_filled():
    config = ConfigMap()
    assert config.to_dict() == {"apiVersion": "v1", "kind": "ConfigMap"}
    config.metadata.labels["a"] = "b"
    assert config.to_dict()["metadata"] == {"labels": {"a": "b"}}


def test_types_of_spec_and_status_are_known():
    widget = Widget.from_dict({"spec": {"size": 2}, "status": {"phase": "Ready", "observedGeneration": 3}})
    assert isinstance(widget.spec, WidgetSpec)
    assert isinstance(widget.status, WidgetStatus)
    assert (widget.spec.size, widget.status.phase, widget.status.observed_generation) == (2, "Ready", 3)


def test_a_custom_resource_class_has_resource_and_options():
    assert Widget.resource == Resource("tests.example.dev", "v1", "Widget", "widgets")
    assert Widget.options == CustomResourceOptions(
        singular="widget",
        list_kind="WidgetList",
        short_names=("wd",),
        columns=(Column("Phase", ".status.phase"),),
    )
    assert find_model("tests.example.dev/v1", "Widget") is Widget


def test_a_plain_subclass_is_of_the_same_kind_and_is_not_registered():
    class Special(Widget):
        def is_big(self) -> bool:
            return self.spec.size > 10

    special = Special(spec=WidgetSpec(size=11))
    assert special.is_big()
    assert special.to_dict() == {"apiVersion": "tests.example.dev/v1", "kind": "Widget", "spec": {"size": 11}}
    assert find_model("tests.example.dev/v1", "Widget") is Widget


def test_a_subclass_with_a_version_is_a_version_of_its_own():
    class WidgetV2(Widget, group="tests.example.dev", version="v2", kind="Widget"):
        """The next one."""

    assert WidgetV2(spec=WidgetSpec()).api_version == "tests.example.dev/v2"
    assert Widget(spec=WidgetSpec()).api_version == "tests.example.dev/v1"
    assert find_model("tests.example.dev/v2", "Widget") is WidgetV2


def test_a_class_that_is_built_at_once_has_the_same_defaults():
    class Eager(CustomResource[WidgetSpec, WidgetStatus], group="tests.example.dev", version="v1", defer_build=False):
        """Built when defined."""

    assert Eager(spec=WidgetSpec()).to_dict() == {"apiVersion": "tests.example.dev/v1", "kind": "Eager", "spec": {}}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"group": "a.dev"}, "Bad: give group and version"),
        ({"version": "v1"}, "Bad: give group and version"),
        ({"plural": "bads"}, "Bad: give group and version"),
        ({"group": "nodot", "version": "v1"}, "group 'nodot' is no lower-case domain with a dot"),
        ({"group": "A.dev", "version": "v1"}, "group 'A.dev'"),
        ({"group": "a.dev", "version": "V1"}, "version 'V1' is no lower-case name"),
        ({"group": "a.dev", "version": "v1", "kind": "bad"}, "a kind is a CamelCase name"),
        ({"group": "a.dev", "version": "v1", "scope": "cluster"}, "scope is 'Namespaced' or 'Cluster'"),
        ({"group": "a.dev", "version": "v1", "short_names": "bd"}, r"short_names is a list of names.*\['bd'\]"),
        ({"group": "a.dev", "version": "v1", "short_names": ["Bd"]}, "short_names: 'Bd'"),
        ({"group": "a.dev", "version": "v1", "plural": "Bads"}, "plural: 'Bads'"),
        ({"group": "a.dev", "version": "v1", "colums": []}, "no class argument 'colums'"),
    ],
)
def test_wrong_class_arguments_are_refused(arguments: dict[str, Any], message: str):
    with pytest.raises(TypeError, match=message):

        class Bad(CustomResource[WidgetSpec, WidgetStatus], **arguments):
            pass


def test_a_custom_resource_without_its_models_is_refused():
    with pytest.raises(TypeError, match=r"CustomResource\[BadSpec, BadStatus\]"):

        class Bad(CustomResource, group="a.dev", version="v1"):  # type: ignore[type-arg]
            pass


def test_unstructured_reads_and_writes_by_wire_names():
    gadget = unstructured("tests.example.dev/v1", "Gadget")
    assert gadget is unstructured("tests.example.dev/v1", "Gadget")
    assert gadget.resource == Resource("tests.example.dev", "v1", "Gadget", "gadgets")
    obj = gadget(metadata={"name": "a"}, spec={"size": 1})
    obj["spec"]["size"] += 1
    obj["status"] = {"phase": "Ready"}
    assert "status" in obj
    assert obj.get("nothing", 5) == 5
    del obj["status"]
    assert obj.to_dict() == {
        "apiVersion": "tests.example.dev/v1",
        "kind": "Gadget",
        "metadata": {"name": "a"},
        "spec": {"size": 2},
    }
    with pytest.raises(KeyError):
        obj["status"]


def test_unstructured_without_a_kind_keeps_what_it_reads():
    raw = {"apiVersion": "x.dev/v1", "kind": "Any", "metadata": {"name": "a"}, "spec": [1, None]}
    assert Unstructured.from_dict(raw).to_dict() == raw


def test_unstructured_holds_models_too():
    gadget = unstructured("tests.example.dev/v1", "Gadget")
    pod = Pod(spec=PodSpec(containers=[]))
    obj = gadget(template=pod)
    pod.metadata.labels["a"] = "b"
    assert obj.to_dict()["template"]["metadata"] == {"labels": {"a": "b"}}


def test_register_lazy_imports_on_first_use(monkeypatch: pytest.MonkeyPatch, tmp_path):
    (tmp_path / "lazy_kind_for_test.py").write_text(
        "from pyreconcile.api import CustomResource, Spec, Status\n"
        "class Lazy(CustomResource[Spec, Status], group='lazy.example.dev', version='v1'):\n    '''Lazy.'''\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    register_lazy("lazy.example.dev/v1", "Lazy", "lazy_kind_for_test")
    found = find_model("lazy.example.dev/v1", "Lazy")
    assert found is not None
    assert found.__module__ == "lazy_kind_for_test"
    assert find_model("lazy.example.dev/v1", "Other") is None


@pytest.mark.parametrize(
    ("kind", "plural"),
    [
        ("ModelCache", "modelcaches"),
        ("Policy", "policies"),
        ("Gateway", "gateways"),
        ("Ingress", "ingresses"),
        ("Mailbox", "mailboxes"),
        ("Switch", "switches"),
    ],
)
def test_the_default_plural_is_english(kind: str, plural: str):
    assert unstructured("tests.example.dev/v1", kind).resource.plural == plural


def test_the_default_plurals_of_built_in_kinds_are_right():
    from pyreconcile.api.builtin._kinds import KINDS

    for api_version, kinds in KINDS.items():
        for kind in kinds:
            model = find_model(api_version, kind)
            assert model is not None
            if kind != "Endpoints":
                assert unstructured(api_version, kind).resource.plural == model.resource.plural


@pytest.mark.parametrize(
    ("resource", "arguments", "path"),
    [
        (Pod.resource, ("ns", "a", "status"), "/api/v1/namespaces/ns/pods/a/status"),
        (Pod.resource, (), "/api/v1/pods"),
        (Widget.resource, ("ns",), "/apis/tests.example.dev/v1/namespaces/ns/widgets"),
        (Resource("", "v1", "Node", "nodes", namespaced=False), ("", "n"), "/api/v1/nodes/n"),
    ],
)
def test_paths(resource: Resource, arguments: tuple[str, ...], path: str):
    assert resource.path(*arguments) == path


def test_a_path_that_cannot_be_is_refused():
    from pyreconcile.api.autoscaling_v1 import Scale

    with pytest.raises(ValueError, match="give its namespace"):
        Pod.resource.path("", "a")
    with pytest.raises(ValueError, match="kind of a sub-resource"):
        Scale.resource.path("ns", "a")


@pytest.mark.parametrize("key", ["", "a/", "a/b/c"])
def test_in_17_a_wrong_key_is_refused(key: str):
    with pytest.raises(ValueError, match="is no key"):
        split_key(key)


def test_every_kube_object_names_its_group_kind():
    kind: type[KubeObject] = Widget
    assert kind.resource.group_kind == "Widget.tests.example.dev"
    assert str(kind.resource.gvk) == "tests.example.dev/v1 Widget"
    assert ConfigMap.resource.group_kind == "ConfigMap"
