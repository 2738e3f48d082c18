"""Versions of a kind become one another: by hub and spokes or by functions (rule WH-9)."""

from __future__ import annotations

import copy
import json
import ssl
from typing import Any, Self

import aiohttp
import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.api import CustomResource, KubeObject, Spec, Status
from pyreconcile.metrics import Metrics
from pyreconcile.webhook import (
    ConversionError,
    Conversions,
    PartialConversionError,
    WebhookOptions,
    WebhookServer,
)

GROUP = "convert.example.dev"


class SiteSpec(Spec):
    host: str = ""
    port: int = 80


class Site(CustomResource[SiteSpec, Status], group=GROUP, version="v1"):
    """The hub."""


class AddressSpec(Spec):
    address: str = ""


class SiteBeta(CustomResource[AddressSpec, Status], group=GROUP, version="v1beta1", kind="Site"):
    """A spoke that knows its way."""

    def to_hub(self) -> Site:
        host, _, port = self.spec.address.partition(":")
        if not port:
            raise ConversionError("spec.address: write host:port")
        return Site(metadata=self.metadata, spec=SiteSpec(host=host, port=int(port)))

    @classmethod
    def from_hub(cls, hub: Site) -> Self:
        return cls(metadata=hub.metadata, spec=AddressSpec(address=f"{hub.spec.host}:{hub.spec.port}"))


class PartsSpec(Spec):
    parts: list[str] | None = None


class SiteAlpha(CustomResource[PartsSpec, Status], group=GROUP, version="v1alpha1", kind="Site"):
    """A spoke without methods: functions convert it."""


class Other(CustomResource[PartsSpec, Status], group=GROUP, version="v1"):
    """Another kind."""


def conversions(**registered: Any) -> Conversions:
    """All three versions; the functions leave the metadata out."""
    both = Conversions(Site, SiteBeta, SiteAlpha)

    @both.register(SiteAlpha, Site)
    def up(alpha: SiteAlpha) -> Site:
        host, port = alpha.spec.parts or []
        return Site(spec=SiteSpec(host=host, port=int(port)))

    @both.register(Site, SiteAlpha)
    def down(hub: Site) -> SiteAlpha:
        return SiteAlpha(spec=PartsSpec(parts=[hub.spec.host, str(hub.spec.port)]))

    return both


METADATA = {
    "name": "web",
    "namespace": "ns",
    "uid": "1-2",
    "resourceVersion": "7",
    "generation": 2,
    "creationTimestamp": "2026-01-02T03:04:05Z",
    "labels": {"a": "b"},
    "annotations": {"c": "d"},
    "finalizers": ["x/y"],
    "managedFields": [{"manager": "m", "future": None}],
    "fieldOfTheFuture": {"x": [1]},
}


def site(version: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": f"{GROUP}/{version}", "kind": "Site", "metadata": copy.deepcopy(METADATA), "spec": spec}


FORMS = {
    "v1": {"host": "h", "port": 81},
    "v1beta1": {"address": "h:81"},
    "v1alpha1": {"parts": ["h", "81"]},
}


def review(desired: str, *objects: Any, version: str = "v1", uid: str = "u-1") -> dict[str, Any]:
    return {
        "apiVersion": f"apiextensions.k8s.io/{version}",
        "kind": "ConversionReview",
        "request": {"uid": uid, "desiredAPIVersion": desired, "objects": list(objects)},
    }


def server(metrics: Metrics | None = None) -> WebhookServer:
    one = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"), metrics=metrics)
    assert one.add_conversion(conversions()) == "/convert"
    return one


@pytest.mark.rules("WH-9", "U-67")
@pytest.mark.parametrize("source", FORMS)
@pytest.mark.parametrize("target", FORMS)
async def test_wh_9_each_version_becomes_each_other_and_keeps_its_metadata(source: str, target: str):
    if source == target:
        return
    answer = await server().call("/convert", review(f"{GROUP}/{target}", site(source, **FORMS[source])))
    assert answer == {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "ConversionReview",
        "response": {
            "uid": "u-1",
            "result": {"status": "Success"},
            "convertedObjects": [site(target, **FORMS[target])],
        },
    }


@pytest.mark.rules("WH-9", "U-67")
def test_wh_9_a_spoke_goes_by_the_hub_and_a_function_between_spokes_goes_first():
    way: list[str] = []
    both = Conversions(Site, SiteBeta, SiteAlpha)

    def step(source: type[KubeObject], target: type[KubeObject]) -> None:
        @both.register(source, target)
        def convert(obj: KubeObject) -> KubeObject:
            way.append(f"{type(obj).__name__} → {target.__name__}")
            return target.from_dict({"spec": {}})

    for source, target in ((SiteAlpha, Site), (Site, SiteAlpha), (SiteBeta, Site), (Site, SiteBeta)):
        step(source, target)
    both.convert(site("v1alpha1"), f"{GROUP}/v1beta1")
    assert way == ["SiteAlpha → Site", "Site → SiteBeta"]
    way.clear()
    step(SiteAlpha, SiteBeta)
    both.convert(site("v1alpha1"), f"{GROUP}/v1beta1")
    assert way == ["SiteAlpha → SiteBeta"]


@pytest.mark.rules("U-67")
def test_u_67_a_partial_implementation_is_refused_with_what_is_missing():
    with pytest.raises(PartialConversionError) as raised:
        WebhookServer().add_conversion(Conversions(Site, SiteBeta, SiteAlpha))
    assert str(raised.value) == (
        f"Site.{GROUP}: Site → SiteAlpha: give SiteAlpha a method from_hub, or register a function; "
        "SiteAlpha → Site: give SiteAlpha a method to_hub, or register a function"
    )
    half = Conversions(Site, SiteAlpha)
    half.register(SiteAlpha, Site)(lambda alpha: Site())
    with pytest.raises(PartialConversionError, match="Site → SiteAlpha"):
        half.check()
    half.register(Site, SiteAlpha)(lambda hub: SiteAlpha())
    half.check()


def test_u_67_what_is_no_set_of_versions_is_refused():
    with pytest.raises(ValueError, match="nothing to convert"):
        Conversions(Site)
    with pytest.raises(ValueError, match="share group and kind"):
        Conversions(Site, Other)
    with pytest.raises(ValueError, match="v1beta1 is there twice"):
        Conversions(Site, SiteBeta, SiteBeta)
    both = Conversions(Site, SiteAlpha)
    with pytest.raises(ValueError, match="SiteBeta is no version"):
        both.register(SiteBeta, Site)
    with pytest.raises(ValueError, match="needs no function"):
        both.register(Site, Site)
    both.register(Site, SiteAlpha)(lambda hub: SiteAlpha())
    with pytest.raises(ValueError, match="a function already"):
        both.register(Site, SiteAlpha)


def test_wh_9_a_kind_is_registered_once_and_the_path_is_for_conversions():
    one = server()
    with pytest.raises(ValueError, match="registered already"):
        one.add_conversion(conversions())
    taken = WebhookServer()
    taken.add_raw_validator(Site, lambda request: None, path="/convert")
    with pytest.raises(ValueError, match="'/convert' is registered already"):
        taken.add_conversion(conversions())


@pytest.mark.rules("WH-9", "U-67")
@pytest.mark.parametrize(
    ("desired", "obj", "message"),
    [
        (f"{GROUP}/v1", site("v1"), "Site 'web': the object has version v1 already"),
        ("foreign.example.dev/v1", site("v1beta1"), "cannot be converted to another group, foreign.example.dev"),
        (f"{GROUP}/v2", site("v1"), "Site 'web': Site.convert.example.dev has no version v2; known are v1, v1beta1"),
        (f"{GROUP}/v1", site("v0"), "has no version v0"),
        (f"{GROUP}/v1", {**site("v1"), "kind": "Thing"}, "objects[0]: conversions of convert.example.dev/v1 Thing"),
        (f"{GROUP}/v1", {"metadata": {}}, "objects[0] has no apiVersion and kind"),
        (f"{GROUP}/v1", "text", "objects[0] has no apiVersion and kind"),
        (f"{GROUP}/v1", site("v1beta1", address=5), "is no valid v1beta1 Site: spec.address: "),
        (f"{GROUP}/v1", site("v1beta1", address="h"), "Site 'web': spec.address: write host:port"),
        ("", site("v1"), "names no desiredAPIVersion"),
    ],
)
async def test_wh_9_a_failure_is_in_the_result_and_nothing_is_converted(desired: str, obj: Any, message: str):
    metrics = Metrics()
    answer = await server(metrics).call("/convert", review(desired, obj, uid="u-2"))
    assert set(answer["response"]) == {"uid", "result"}
    assert answer["response"]["uid"] == "u-2"
    assert answer["response"]["result"]["status"] == "Failure"
    assert message in answer["response"]["result"]["message"]
    assert metrics.registry.get_sample_value("controller_runtime_conversion_webhook_panics_total") == 0


@pytest.mark.rules("WH-9", "MT-23")
@pytest.mark.parametrize("bug", ["raises", "wrong type"])
async def test_wh_9_a_crash_is_one_neutral_error_for_all_objects_and_counted(bug: str):
    metrics = Metrics()
    broken = Conversions(Site, SiteAlpha)

    @broken.register(SiteAlpha, Site)
    def up(alpha: SiteAlpha) -> Any:
        if bug == "raises":
            raise KeyError("the secret reason")
        return alpha

    broken.register(Site, SiteAlpha)(lambda hub: SiteAlpha())
    one = WebhookServer(metrics=metrics)
    one.add_conversion(broken)
    objects = [site("v1alpha1", parts=["h", "1"])] * 3
    answer = await one.call("/convert", review(f"{GROUP}/v1", *objects))
    assert answer["response"] == {
        "uid": "u-1",
        "result": {"status": "Failure", "message": "the conversion webhook failed"},
    }
    assert metrics.registry.get_sample_value("controller_runtime_conversion_webhook_panics_total") == 1


async def test_wh_9_many_objects_come_back_in_order_and_others_get_their_turn():
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            await anyio.lowlevel.checkpoint()
            turns += 1

    objects = [site("v1beta1", address=f"h:{number}") for number in range(500)]
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(other)
        answer = await server().call("/convert", review(f"{GROUP}/v1", *objects))
        tasks.cancel_scope.cancel()
    assert [one["spec"]["port"] for one in answer["response"]["convertedObjects"]] == list(range(500))
    assert turns >= 5


def test_wh_9_labels_and_annotations_may_change_and_nothing_else():
    both = Conversions(Site, SiteAlpha)

    @both.register(SiteAlpha, Site)
    def up(alpha: SiteAlpha) -> Site:
        site = Site(metadata=alpha.metadata, spec=SiteSpec())
        site.metadata.labels = {"new": "label"}
        site.metadata.annotations = {}
        site.metadata.name = "stolen"
        site.metadata.finalizers = []
        return site

    both.register(Site, SiteAlpha)(lambda hub: SiteAlpha())
    expected = {key: value for key, value in METADATA.items() if key != "annotations"} | {"labels": {"new": "label"}}
    assert both.convert(site("v1alpha1"), f"{GROUP}/v1")["metadata"] == expected


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@given(
    st.dictionaries(st.sampled_from(["future", "other"]), json_values),
    st.text("abc.", max_size=5),
    st.integers(0, 65535),
)
def test_wh_9_there_and_back_is_the_same_object(extra: dict[str, Any], host: str, port: int):
    both = conversions()
    first = site("v1", host=host, port=port)
    first["metadata"] |= extra
    for spoke in ("v1beta1", "v1alpha1"):
        there = both.convert(copy.deepcopy(first), f"{GROUP}/{spoke}")
        assert both.convert(there, f"{GROUP}/v1") == first


@pytest.mark.rules("WH-9", "MT-21", "MT-22", "MT-20")
async def test_wh_9_over_https_a_body_that_is_no_review_is_400():
    metrics = Metrics()
    one = server(metrics)
    stop = anyio.Event()
    bodies = [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"apiVersion": "apiextensions.k8s.io/v1", "kind": "ConversionReview"}',
        json.dumps({**review(f"{GROUP}/v1"), "apiVersion": "apiextensions.k8s.io/v9"}).encode(),
    ]
    async with anyio.create_task_group() as tasks:
        await tasks.start(one.run, stop)
        trusted = ssl.create_default_context(cadata=one.ca_bundle.decode())
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trusted)) as session:
            url = f"https://localhost:{one.port}/convert"
            for body in bodies:
                async with session.post(url, data=body) as response:
                    assert response.status == 400, body
            for version in ("v1", "v1beta1"):
                asked = review(f"{GROUP}/v1", site("v1beta1", address="h:81"), version=version)
                async with session.post(url, json=asked) as response:
                    assert response.status == 200
                    answer = await response.json()
                assert answer["apiVersion"] == f"apiextensions.k8s.io/{version}"
                assert answer["response"]["convertedObjects"] == [site("v1", host="h", port=81)]
        stop.set()

    def sample(name: str, **labels: str) -> float | None:
        return metrics.registry.get_sample_value(
            f"controller_runtime_webhook_{name}", {"webhook": "/convert", **labels}
        )

    assert sample("requests_total", code="200") == 2
    assert sample("requests_total", code="400") == len(bodies)
    assert sample("requests_total", code="500") == 0
    assert sample("latency_seconds_count") == len(bodies) + 2
    assert sample("requests_in_flight") == 0
