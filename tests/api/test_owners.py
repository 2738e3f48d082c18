"""Owner references."""

import pytest

from pyreconcile.api import unstructured
from pyreconcile.api.owners import (
    AlreadyOwnedError,
    OwnerError,
    controller_of,
    has_owner_reference,
    remove_owner_reference,
    set_controller_reference,
    set_owner_reference,
)

pytestmark = pytest.mark.rules("U-65")

Widget = unstructured("labs.example.dev/v1", "Widget")
WidgetV2 = unstructured("labs.example.dev/v2", "Widget")
Gadget = unstructured("labs.example.dev/v1", "Gadget")
Cluster = unstructured("labs.example.dev/v1", "Zone", namespaced=False)


def make(kind, name="x", namespace="ns", uid=""):
    return kind.from_dict({"metadata": {"name": name, "namespace": namespace, "uid": uid or f"uid-{name}"}})


def references(obj):
    return obj.to_dict()["metadata"].get("ownerReferences", [])


def test_he_4_controller_reference_is_complete():
    obj = make(Gadget)
    set_controller_reference(obj, make(Widget, "owner"))
    assert references(obj) == [
        {
            "apiVersion": "labs.example.dev/v1",
            "kind": "Widget",
            "name": "owner",
            "uid": "uid-owner",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert controller_of(obj).name == "owner"


def test_he_4_same_owner_is_replaced_in_place_whatever_its_version_and_uid():
    obj = make(Gadget)
    set_owner_reference(obj, make(Widget, "first"))
    set_controller_reference(obj, make(Widget, "owner", uid="old"))
    set_owner_reference(obj, make(Widget, "last"))
    set_controller_reference(obj, make(WidgetV2, "owner", uid="new"))
    assert [(r["name"], r["uid"], r["apiVersion"]) for r in references(obj)] == [
        ("first", "uid-first", "labs.example.dev/v1"),
        ("owner", "new", "labs.example.dev/v2"),
        ("last", "uid-last", "labs.example.dev/v1"),
    ]


def test_he_4_another_controller_is_an_error():
    obj = make(Gadget)
    set_controller_reference(obj, make(Widget, "one"))
    with pytest.raises(AlreadyOwnedError, match="already controlled by Widget 'one'") as caught:
        set_controller_reference(obj, make(Widget, "two"))
    assert caught.value.controller.name == "one"
    assert len(references(obj)) == 1


def test_he_4_cluster_scoped_object_with_namespaced_owner_is_an_error():
    with pytest.raises(OwnerError, match="cluster-scoped"):
        set_controller_reference(make(Cluster, namespace=""), make(Widget))


def test_he_4_owner_in_another_namespace_is_an_error():
    with pytest.raises(OwnerError, match=r"'a'.*'b'"):
        set_controller_reference(make(Gadget, namespace="a"), make(Widget, namespace="b"))


def test_he_4_cluster_scoped_owner_may_own_anything():
    owner = make(Cluster, "zone", namespace="")
    for obj in (make(Gadget), make(Cluster, "other", namespace="")):
        set_controller_reference(obj, owner)
        assert has_owner_reference(obj, owner)


def test_he_4_owner_without_uid_is_an_error():
    owner = Widget.from_dict({"metadata": {"name": "x", "namespace": "ns"}})
    with pytest.raises(OwnerError, match="uid"):
        set_controller_reference(make(Gadget), owner)


def test_he_4_a_plain_owner_becomes_the_controller_in_its_place():
    obj, owner = make(Gadget), make(Widget, "owner")
    set_owner_reference(obj, owner)
    set_owner_reference(obj, make(Widget, "last"))
    set_controller_reference(obj, owner)
    assert [(r["name"], r.get("controller", False)) for r in references(obj)] == [("owner", True), ("last", False)]
    with pytest.raises(AlreadyOwnedError):
        set_controller_reference(obj, make(Gadget, "owner"))  # same name, another kind


def test_he_5_the_rules_of_scope_and_namespace_hold_without_that_of_one_controller():
    obj = make(Gadget)
    with pytest.raises(OwnerError, match="cluster-scoped"):
        set_owner_reference(make(Cluster, namespace=""), make(Widget))
    with pytest.raises(OwnerError, match=r"'ns'.*'b'"):
        set_owner_reference(obj, make(Widget, namespace="b"))
    with pytest.raises(OwnerError, match="uid"):
        set_owner_reference(obj, Widget.from_dict({"metadata": {"name": "x", "namespace": "ns"}}))
    assert references(obj) == []
    set_owner_reference(obj, make(Cluster, "zone", namespace=""))
    set_controller_reference(obj, make(Widget, "controller"))
    set_owner_reference(obj, make(Widget, "beside", uid="old"))
    set_owner_reference(obj, make(WidgetV2, "beside", uid="new"))
    assert [(r["name"], r["uid"]) for r in references(obj)] == [
        ("zone", "uid-zone"),
        ("controller", "uid-controller"),
        ("beside", "new"),
    ]
    assert controller_of(obj).name == "controller"


def test_he_5_both_can_be_asked_for_whatever_version_and_uid():
    obj = make(Gadget)
    set_controller_reference(obj, make(Widget, "owner", uid="old"))
    assert has_owner_reference(obj, make(WidgetV2, "owner", uid="new"))
    assert not has_owner_reference(obj, make(Gadget, "owner"))
    assert not has_owner_reference(obj, make(Widget, "other"))
    assert controller_of(obj).kind == "Widget"
    remove_owner_reference(obj, make(WidgetV2, "owner", uid="new"))
    assert controller_of(obj) is None
    assert not has_owner_reference(obj, make(Widget, "owner"))


def test_he_5_owner_reference_is_no_controller():
    obj, owner = make(Gadget), make(Widget, "owner")
    set_owner_reference(obj, owner)
    assert controller_of(obj) is None
    assert has_owner_reference(obj, owner)
    assert "controller" not in references(obj)[0]


def test_he_5_remove_fails_if_absent():
    obj, owner = make(Gadget), make(Widget, "owner")
    set_owner_reference(obj, owner)
    remove_owner_reference(obj, owner)
    assert not has_owner_reference(obj, owner)
    with pytest.raises(OwnerError, match="not owned"):
        remove_owner_reference(obj, owner)
