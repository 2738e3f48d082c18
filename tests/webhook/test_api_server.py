"""The real API server asks the webhook server: what users see and what is stored."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import anyio
import pytest

from pyreconcile.api import ObjectMeta, unstructured
from pyreconcile.api.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import ApiError, Client, ForbiddenError, InvalidError, MergePatch
from pyreconcile.webhook import (
    AdmissionPolicy,
    AdmissionRequest,
    AdmissionWebhook,
    Denied,
    FieldError,
    FieldErrors,
    Validator,
    WebhookOptions,
    WebhookServer,
    install,
    webhook_configurations,
)

pytestmark = pytest.mark.plane

REFUSED = FieldError.invalid("data.size", "0", "must not be 0")


def fill_in(obj: ConfigMap, request: AdmissionRequest) -> None:
    obj.metadata.labels.setdefault("defaulted", "yes")


class SizeValidator(Validator[ConfigMap]):
    def __init__(self) -> None:
        self.strict = False

    def check(self, obj: ConfigMap, request: AdmissionRequest) -> None:
        data = obj.data or {}
        if data.get("size") == "0" or self.strict:
            raise FieldErrors([REFUSED, FieldError.required("data.color")] if data.get("several") else [REFUSED])
        if "old" in data:
            request.warn("data.old is deprecated: use data.new")

    def validate_create(self, obj: ConfigMap, request: AdmissionRequest) -> None:
        self.check(obj, request)

    def validate_update(self, old: ConfigMap, new: ConfigMap, request: AdmissionRequest) -> None:
        self.check(new, request)

    def validate_delete(self, old: ConfigMap, request: AdmissionRequest) -> None:
        if (old.data or {}).get("keep"):
            raise Denied("data.keep is set: unset it first")


@contextlib.asynccontextmanager
async def registered(client: Client, namespace: str) -> AsyncIterator[SizeValidator]:
    """Run and register a webhook server for the config maps of the namespace; give its validator."""
    validator = SizeValidator()
    server = WebhookServer(WebhookOptions(bind_address="127.0.0.1:0"))
    server.add_defaulter(ConfigMap, fill_in)
    server.add_validator(ConfigMap, validator)
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    webhooks = (
        AdmissionWebhook(name="mconfig.test.example", stage="mutating", kind=ConfigMap, namespace_selector=here),
        AdmissionWebhook(
            name="vconfig.test.example",
            stage="validating",
            kind=ConfigMap,
            namespace_selector=here,
            operations=("CREATE", "UPDATE", "DELETE"),
        ),
    )
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(server.run, stop)
        configurations = webhook_configurations(
            server, webhooks, mutating_name=f"m-{namespace}", validating_name=f"v-{namespace}"
        )
        try:
            await install(client, configurations)
            await in_force(client, namespace)
            yield validator
        finally:
            for kind, name in (
                (MutatingWebhookConfiguration, f"m-{namespace}"),
                (ValidatingWebhookConfiguration, f"v-{namespace}"),
            ):
                await client.delete(kind, name, missing_ok=True)
            stop.set()


def config_map(namespace: str, name: str = "a", **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=namespace), data=data)


async def in_force(client, namespace):
    """Wait until the API server has taken notice of both configurations."""

    async def both() -> bool:
        probe = await client.create(config_map(namespace, "probe"), dry_run=True)
        with contextlib.suppress(ForbiddenError):
            await client.create(config_map(namespace, "probe", size="0"), dry_run=True)
            return False
        return "defaulted" in probe.metadata.labels

    await until(both)


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    with anyio.fail_after(20):
        while not await condition():
            await anyio.sleep(0.05)


async def test_wh_6_default_is_stored(client, namespace):
    async with registered(client, namespace):
        created = await client.create(config_map(namespace, size="1"))
        assert created.metadata.labels == {"defaulted": "yes"}
        assert created.data == {"size": "1"}


async def test_wh_4_refusal_reads_as_users_know_it(client, namespace):
    async with registered(client, namespace):
        with pytest.raises(ForbiddenError) as one:
            await client.create(config_map(namespace, size="0"))
        text = 'data.size: Invalid value: "0": must not be 0'
        assert str(one.value) == f'admission webhook "vconfig.test.example" denied the request: {text}'
        with pytest.raises(ForbiddenError) as several:
            await client.create(config_map(namespace, size="0", several="yes"))
        assert str(several.value).endswith(f"denied the request: [{text}, data.color: Required value]")


async def test_wh_7_update_and_delete_are_asked_about(client, namespace):
    async with registered(client, namespace):
        created = await client.create(config_map(namespace, keep="yes"))
        with pytest.raises(ForbiddenError, match="must not be 0"):
            await client.patch(created, MergePatch({"data": {"size": "0"}}))
        with pytest.raises(ForbiddenError, match=r"data\.keep is set"):
            await client.delete(created)
        await client.patch(created, MergePatch({"data": {"keep": None}}))
        await client.delete(created)


async def test_o_10_object_goes_although_it_would_be_refused_now(client, namespace):
    async with registered(client, namespace) as validator:
        created = config_map(namespace, size="1")
        created.metadata.finalizers = ["test.example/cleanup"]
        created = await client.create(created)
        validator.strict = True
        await client.delete(created)
        with pytest.raises(ForbiddenError, match="must not be 0"):
            await client.patch(created, MergePatch({"data": {"size": "2"}}))
        await client.patch(created, MergePatch({"metadata": {"finalizers": None}}))
        assert await client.find(ConfigMap, created.key) is None


async def test_installing_again_writes_nothing(client, namespace):
    async with registered(client, namespace):
        before = await client.get(MutatingWebhookConfiguration, f"m-{namespace}")
        raw = before.to_dict()
        entry = raw["webhooks"][0]
        again = {
            "apiVersion": raw["apiVersion"],
            "kind": raw["kind"],
            "metadata": {"name": raw["metadata"]["name"]},
            "webhooks": [
                {
                    name: value
                    for name, value in entry.items()
                    if name not in ("matchPolicy", "objectSelector", "reinvocationPolicy")
                }
            ],
        }
        await install(client, [again])
        after = await client.get(MutatingWebhookConfiguration, f"m-{namespace}")
        assert after.metadata.resource_version == before.metadata.resource_version
        again["webhooks"][0]["timeoutSeconds"] = 4
        await install(client, [again])
        changed = await client.get(MutatingWebhookConfiguration, f"m-{namespace}")
        assert changed.metadata.resource_version != before.metadata.resource_version


async def test_wh_10_a_webhook_that_was_registered_with_a_service_is_redirected_and_others_stay(client, namespace):
    async with registered(client, namespace):
        ours = (await client.get(MutatingWebhookConfiguration, f"m-{namespace}")).to_dict()
        name = f"s-{namespace}"
        entry = ours["webhooks"][0]
        service = {"service": {"namespace": namespace, "name": "away", "path": "/mutate", "port": 443}}
        theirs = {
            **{key: ours[key] for key in ("apiVersion", "kind")},
            "metadata": {"name": name},
            "webhooks": [
                {**entry, "name": "first.test.example", "clientConfig": service},
                {**entry, "clientConfig": service},
            ],
        }
        await client.create(MutatingWebhookConfiguration.from_dict(theirs))
        try:
            await install(client, [{**theirs, "webhooks": [entry]}])
            found = (await client.get(MutatingWebhookConfiguration, name)).to_dict()["webhooks"]
            assert [(one["name"], one["clientConfig"]) for one in found] == [
                ("first.test.example", service),
                (entry["name"], entry["clientConfig"]),
            ]
            back = {**entry, "clientConfig": service | {"caBundle": entry["clientConfig"]["caBundle"]}}
            await install(client, [{**theirs, "webhooks": [back]}])
            found = (await client.get(MutatingWebhookConfiguration, name)).to_dict()["webhooks"]
            assert found[1]["clientConfig"] == back["clientConfig"]
            both = {**entry, "clientConfig": entry["clientConfig"] | service}
            with pytest.raises(InvalidError, match="exactly one of url or service"):
                await install(client, [{**theirs, "webhooks": [both]}])
        finally:
            await client.delete(MutatingWebhookConfiguration, name, missing_ok=True)


async def test_wh_5_a_broken_handler_refuses_with_its_error(client, namespace, monkeypatch):
    async with registered(client, namespace) as validator:

        def broken(obj, request):
            raise ZeroDivisionError("oops")

        monkeypatch.setattr(validator, "check", broken)
        with pytest.raises(ApiError, match="ZeroDivisionError: oops") as caught:
            await client.create(config_map(namespace))
        assert caught.value.code == 500


@pytest.mark.rules("WH-10")
async def test_wh_10_a_policy_in_cel_needs_no_server_of_ours(client, namespace):
    policy = AdmissionPolicy(
        name=f"p-{namespace}",
        kind=ConfigMap,
        variables={"size": "has(object.data) && 'size' in object.data ? object.data.size : ''"},
        validations={"variables.size != '0'": "data.size must not be 0"},
        match_conditions={"not-exempt": "object.metadata.name != 'exempt'"},
        namespace_selector={"matchLabels": {"kubernetes.io/metadata.name": namespace}},
    )
    kinds = {
        kind: unstructured("admissionregistration.k8s.io/v1", kind, plural=plural, namespaced=False)
        for kind, plural in (
            ("ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
            ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
        )
    }
    await install(client, policy.objects())
    try:
        stored = await client.get(kinds["ValidatingAdmissionPolicy"], policy.name)

        async def refuses() -> bool:
            try:
                await client.create(config_map(namespace, size="0"), dry_run=True)
            except ApiError as error:
                return "data.size must not be 0" in str(error)
            return False

        await until(refuses)
        await client.create(config_map(namespace, size="1"), dry_run=True)
        await client.create(config_map(namespace, "exempt", size="0"), dry_run=True)
        await install(client, policy.objects())
        again = await client.get(kinds["ValidatingAdmissionPolicy"], policy.name)
        assert again.to_dict()["spec"] == stored.to_dict()["spec"]
    finally:
        for kind in kinds.values():
            await client.delete(kind, policy.name, missing_ok=True)
