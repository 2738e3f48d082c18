"""What webhook configurations say to the API server."""

import asyncio
import base64

import anyio
import pytest

from pyreconcile.api import unstructured
from pyreconcile.webhook import (
    AdmissionPolicy,
    AdmissionWebhook,
    BundleInjector,
    ServiceReference,
    WebhookOptions,
    WebhookServer,
    webhook_configurations,
)

Pod = unstructured("v1", "Pod")
Gadget = unstructured("example.dev/v1", "Gadget", namespaced=False)


def server_with(options: WebhookOptions | None = None) -> WebhookServer:
    server = WebhookServer(options)
    server.add_mutator(Pod, lambda raw, request: None)
    server.add_raw_validator(Gadget, lambda request: None)
    return server


WEBHOOKS = (
    AdmissionWebhook(
        name="mpod.example.dev",
        stage="mutating",
        kind=Pod,
        operations=("CREATE",),
        object_selector={"matchLabels": {"a": "b"}},
        timeout=3,
    ),
    AdmissionWebhook(
        name="vgadget.example.dev",
        stage="validating",
        kind=Gadget,
        failure_policy="Ignore",
        sub_resource="scale",
        namespace_selector={},
        match_conditions=[{"name": "c", "expression": "true"}],
    ),
)
NAMES = {"mutating_name": "m", "validating_name": "v"}


def test_configurations_carry_url_ca_and_rules():
    server = server_with()
    mutating, validating = webhook_configurations(server, WEBHOOKS, base_url="https://10.0.0.1:9443/", **NAMES)
    assert (mutating["kind"], mutating["metadata"]) == ("MutatingWebhookConfiguration", {"name": "m"})
    assert (validating["kind"], validating["metadata"]) == ("ValidatingWebhookConfiguration", {"name": "v"})
    assert mutating["webhooks"] == [
        {
            "name": "mpod.example.dev",
            "clientConfig": {
                "url": "https://10.0.0.1:9443/mutate--v1-pod",
                "caBundle": base64.b64encode(server.ca_bundle).decode(),
            },
            "rules": [
                {
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods"],
                    "operations": ["CREATE"],
                    "scope": "Namespaced",
                }
            ],
            "admissionReviewVersions": ["v1"],
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "timeoutSeconds": 3,
            "objectSelector": {"matchLabels": {"a": "b"}},
        }
    ]
    (entry,) = validating["webhooks"]
    assert entry["rules"][0] | {"scope": "Cluster", "resources": ["gadgets/scale"]} == entry["rules"][0]
    assert (entry["failurePolicy"], entry["namespaceSelector"]) == ("Ignore", {})
    assert entry["matchConditions"] == [{"name": "c", "expression": "true"}]
    assert "objectSelector" not in entry


def test_configuration_names_the_service_inside_a_cluster():
    server = server_with(WebhookOptions(service=ServiceReference(namespace="ns", name="hooks")))
    (mutating,) = webhook_configurations(server, WEBHOOKS[:1], **NAMES)
    assert mutating["webhooks"][0]["clientConfig"]["service"] == {
        "namespace": "ns",
        "name": "hooks",
        "port": 443,
        "path": "/mutate--v1-pod",
    }


@pytest.mark.parametrize(
    ("webhooks", "base_url", "error", "message"),
    [
        (WEBHOOKS, None, RuntimeError, "does not listen yet"),
        (WEBHOOKS, "http://localhost", ValueError, "must start with https://"),
        (
            [AdmissionWebhook(name="v.example.dev", stage="validating", kind=Pod)],
            "https://localhost",
            ValueError,
            "names path /validate--v1-pod, which is not registered",
        ),
    ],
)
def test_a_configuration_that_cannot_work_is_refused(webhooks, base_url, error, message):
    with pytest.raises(error, match=message):
        webhook_configurations(server_with(), webhooks, base_url=base_url, **NAMES)


def test_a_webhook_that_the_api_server_would_refuse_is_refused():
    with pytest.raises(ValueError, match="three segments"):
        AdmissionWebhook(name="short", stage="mutating", kind=Pod)
    with pytest.raises(ValueError, match="1 to 30 s"):
        AdmissionWebhook(name="a.b.c", stage="mutating", kind=Pod, timeout=0)


@pytest.mark.rules("WH-10")
@pytest.mark.looptime
async def test_a_bundle_that_could_not_be_injected_is_tried_again_after_ten_seconds():
    class Certificates:
        def on_change(self, callback):
            self.changed = callback

    class Server:
        certificates = Certificates()

    tries = []

    async def put():
        tries.append(asyncio.get_running_loop().time())
        if len(tries) < 3:
            raise RuntimeError("the API server is away")

    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(BundleInjector(Server(), put).run, stop)
        await anyio.sleep(5)
        assert tries == []  # what is there at the start is in place
        Server.certificates.changed()
        await anyio.sleep(100)
        assert tries == [5, 15, 25]
        Server.certificates.changed()
        await anyio.sleep(1)
        assert len(tries) == 4
        stop.set()


@pytest.mark.parametrize(
    ("changes", "field"), [({"validations": {}}, "validations"), ({"actions": ("Deny", "Warn")}, "actions")]
)
def test_a_policy_that_cannot_work_is_refused(changes, field):
    with pytest.raises(ValueError, match=f"^{field}: "):
        AdmissionPolicy(**{"name": "p", "kind": Pod, "validations": {"true": "never"}, **changes})
