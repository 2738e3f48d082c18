"""What an admission review is answered with (rules WH-3 to WH-8), without HTTP."""

import asyncio
import base64
import json
from typing import Any

import pytest
from pydantic import ConfigDict

from pyreconcile.api import CustomResource, Spec, Status
from pyreconcile.api.core_v1 import Pod
from pyreconcile.client import NotFoundError
from pyreconcile.metrics import Metrics
from pyreconcile.webhook import (
    AdmissionRequest,
    Denied,
    FieldError,
    FieldErrors,
    Validator,
    WebhookServer,
    admission_review,
    apply_patch,
    mutating_path,
    validating_path,
)


class GadgetSpec(Spec):
    replicas: int | None = None
    deprecated: str | None = None


class Gadget(CustomResource[GadgetSpec, Status], group="webhook.example.dev", version="v1"):
    """A kind for these tests."""


class NarrowItem(Spec):
    model_config = ConfigDict(extra="ignore")
    name: str = ""


class NarrowSpec(Spec):
    """A model that drops what it does not know, as a Go struct of an older version does."""

    model_config = ConfigDict(extra="ignore")
    replicas: int | None = None
    deprecated: str | None = None
    items: list[NarrowItem] | None = None
    table: dict[str, NarrowItem] | None = None


class Narrow(CustomResource[NarrowSpec, Status], group="webhook.example.dev", version="v1"):
    """Another model for a kind of these tests."""


MUTATE, VALIDATE = mutating_path(Gadget), validating_path(Gadget)


@pytest.fixture
def metrics():
    return Metrics()


@pytest.fixture
def server(metrics):
    return WebhookServer(metrics=metrics)


def gadget(**spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "webhook.example.dev/v1",
        "kind": "Gadget",
        "metadata": {"name": "g", "namespace": "default"},
        "spec": spec,
    }


def patch_of(review):
    return json.loads(base64.b64decode(review["response"]["patch"]))


def panics(metrics):
    return metrics.registry.get_sample_value("controller_runtime_webhook_panics_total")


def default_replicas(obj: Gadget, request: AdmissionRequest) -> None:
    if obj.spec.replicas is None:
        obj.spec.replicas = 1


def test_wh_2_paths_come_from_the_kind():
    assert (MUTATE, VALIDATE) == ("/mutate-webhook-example-dev-v1-gadget", "/validate-webhook-example-dev-v1-gadget")
    assert (mutating_path(Pod), validating_path(Pod)) == ("/mutate--v1-pod", "/validate--v1-pod")


def test_wh_1_a_path_registered_twice_is_an_error(server):
    server.add_defaulter(Gadget, default_replicas)
    with pytest.raises(ValueError, match="registered already"):
        server.add_mutator(Gadget, lambda raw, request: None)


@pytest.mark.parametrize("path", ["", "nope", "/a//b", "/a b", "/a/", "/a\n"])
def test_wh_2_a_custom_path_must_have_a_simple_form(server, path):
    with pytest.raises(ValueError, match="must consist of segments"):
        server.add(path, *())


def test_a_path_needs_a_handler(server):
    with pytest.raises(ValueError, match="at least one handler"):
        server.add_defaulter(Gadget)


@pytest.mark.rules("U-66")
async def test_wh_6_default_comes_back_as_the_smallest_patch(server):
    server.add_defaulter(Gadget, default_replicas)
    answer = await server.call(MUTATE, admission_review(gadget(future={"x": None})))
    assert answer["response"]["patchType"] == "JSONPatch"
    assert patch_of(answer) == [{"op": "add", "path": "/spec/replicas", "value": 1}]
    assert apply_patch(answer, gadget())["spec"] == {"replicas": 1}


@pytest.mark.rules("U-66")
async def test_wh_6_no_difference_gives_no_patch_and_no_patch_type(server):
    server.add_defaulter(Gadget, default_replicas)
    answer = await server.call(MUTATE, admission_review(gadget(replicas=3, list=[], map={}, none=None)))
    assert answer["response"] == {
        "uid": answer["response"]["uid"],
        "allowed": True,
        "status": {"code": 200},
    }


async def test_wh_6_delete_passes_the_defaulter_untouched(server):
    seen = []
    server.add_defaulter(Gadget, lambda obj, request: seen.append(obj))
    answer = await server.call(MUTATE, admission_review(gadget(), operation="DELETE"))
    assert answer["response"]["allowed"] is True
    assert "patch" not in answer["response"]
    assert seen == []


async def test_o_11_defaulter_with_a_narrow_model_keeps_newer_fields(server):
    def upgrade(obj: Narrow, request: AdmissionRequest) -> None:
        if obj.spec.replicas is None:
            obj.spec.replicas = 1
        del obj.spec.deprecated
        obj.spec.model_fields_set.discard("deprecated")

    server.add_defaulter(Narrow, upgrade)
    raw = gadget(
        newField={"deep": 1},
        deprecated="old",
        items=[{"name": "a", "newer": 1}, {"name": "b", "none": None}],
        table={"k": {"name": "c", "newer": [1]}},
        none=None,
        emptyList=[],
        emptyMap={},
    )
    answer = await server.call(mutating_path(Narrow), admission_review(raw))
    assert sorted(patch_of(answer), key=lambda operation: operation["op"]) == [
        {"op": "add", "path": "/spec/replicas", "value": 1},
        {"op": "remove", "path": "/spec/deprecated"},
    ]
    stored = apply_patch(answer, raw)["spec"]
    assert stored == {key: value for key, value in raw["spec"].items() if key != "deprecated"} | {"replicas": 1}


async def test_mutator_changes_a_copy_in_place_or_returns_another_object(server):
    def in_place(raw, request):
        raw["spec"]["replicas"] = 2

    async def another(raw, request):
        return raw | {"spec": raw["spec"] | {"more": True}}

    server.add_mutator(Gadget, in_place, another)
    review = admission_review(gadget())
    answer = await server.call(MUTATE, review)
    assert apply_patch(answer, gadget())["spec"] == {"replicas": 2, "more": True}
    assert review["request"]["object"] == gadget()


@pytest.mark.rules("U-66")
async def test_wh_8_handlers_run_in_order_on_the_running_result(server):
    seen = []

    def second(obj: Gadget, request: AdmissionRequest) -> None:
        seen.append(obj.spec.replicas)
        request.warn("second ran")
        obj.spec.deprecated = "x"

    def first(obj: Gadget, request: AdmissionRequest) -> None:
        request.warn("first ran")
        default_replicas(obj, request)

    server.add_defaulter(Gadget, first, second)
    answer = await server.call(MUTATE, admission_review(gadget()))
    assert seen == [1]
    assert apply_patch(answer, gadget())["spec"] == {"replicas": 1, "deprecated": "x"}
    assert answer["response"]["warnings"] == ["first ran", "second ran"]


@pytest.mark.rules("U-66")
async def test_wh_8_first_denial_ends_the_request_and_drops_the_patch(server):
    ran = []

    def refuse(obj: Gadget, request: AdmissionRequest) -> None:
        raise Denied("not today")

    server.add_defaulter(Gadget, default_replicas, refuse, lambda obj, request: ran.append(obj))
    answer = await server.call(MUTATE, admission_review(gadget()))
    assert answer["response"]["status"] == {"code": 403, "reason": "Forbidden", "message": "not today"}
    assert answer["response"]["allowed"] is False
    assert "patch" not in answer["response"]
    assert ran == []


@pytest.mark.rules("WH-8", "U-66")
async def test_wh_8_several_validators_run_in_order_and_the_first_denial_ends(server):
    ran = []

    def validator(name, refuse=False):
        def check(request):
            ran.append(name)
            request.warn(f"{name} ran")
            if refuse:
                raise Denied(f"{name} refuses")

        return check

    server.add_raw_validator(Gadget, validator("a"), validator("b", refuse=True), validator("c"))
    response = (await server.call(VALIDATE, admission_review(gadget())))["response"]
    assert ran == ["a", "b"]
    assert response["warnings"] == ["a ran", "b ran"]
    assert response["status"]["message"] == "b refuses"


class Recording(Validator[Gadget]):
    def __init__(self):
        self.calls = []

    def validate_create(self, obj, request):
        self.calls.append(("create", obj.spec.replicas))

    async def validate_update(self, old, new, request):
        self.calls.append(("update", old.spec.replicas, new.spec.replicas))

    def validate_delete(self, old, request):
        self.calls.append(("delete", old.spec.replicas))


async def test_wh_7_validator_gets_the_objects_of_each_operation_and_connect_passes(server):
    validator = Recording()
    server.add_validator(Gadget, validator)
    reviews = [
        admission_review(gadget(replicas=1)),
        admission_review(gadget(replicas=2), operation="UPDATE", old=gadget(replicas=1)),
        admission_review(gadget(replicas=2), operation="DELETE"),
        admission_review(gadget(), operation="CONNECT"),
    ]
    for review in reviews:
        assert (await server.call(VALIDATE, review))["response"]["allowed"] is True
    assert validator.calls == [("create", 1), ("update", 1, 2), ("delete", 2)]


async def test_wh_7_unknown_operation_is_a_bad_request(server):
    server.add_validator(Gadget, Recording())
    review = admission_review(gadget())
    review["request"]["operation"] = "SING"
    status = (await server.call(VALIDATE, review))["response"]["status"]
    assert status == {"code": 400, "reason": "BadRequest", "message": "unknown operation 'SING'"}


@pytest.mark.parametrize("refuse", [False, True])
@pytest.mark.rules("U-66")
async def test_wh_7_warnings_go_back_whether_allowed_or_not(server, refuse):
    def check(request: AdmissionRequest) -> None:
        request.warn("this field is deprecated")
        if refuse:
            raise FieldErrors([FieldError.invalid("spec.replicas", 0, "must be at least 1")])

    server.add_raw_validator(Gadget, check)
    response = (await server.call(VALIDATE, admission_review(gadget())))["response"]
    assert response["warnings"] == ["this field is deprecated"]
    assert response["allowed"] is not refuse


async def test_wh_4_field_errors_deny_with_403_and_their_text(server):
    def check(request: AdmissionRequest) -> None:
        raise FieldErrors([FieldError.required("spec.a"), FieldError.forbidden("spec.b", "is immutable")])

    server.add_raw_validator(Gadget, check)
    response = (await server.call(VALIDATE, admission_review(gadget())))["response"]
    assert response["status"] == {
        "code": 403,
        "reason": "Forbidden",
        "message": "[spec.a: Required value, spec.b: Forbidden: is immutable]",
    }


async def test_wh_4_an_error_with_a_status_keeps_it(server):
    def check(request: AdmissionRequest) -> None:
        raise Denied("come back later", code=429, reason="TooManyRequests")

    server.add_raw_validator(Gadget, check)
    status = (await server.call(VALIDATE, admission_review(gadget())))["response"]["status"]
    assert status == {"code": 429, "reason": "TooManyRequests", "message": "come back later"}


async def test_wh_4_an_api_error_of_a_look_up_keeps_its_status(server, metrics):
    def check(request: AdmissionRequest) -> None:
        raise NotFoundError('models "m" not found', details={"name": "m", "kind": "models"})

    server.add_raw_validator(Gadget, check)
    status = (await server.call(VALIDATE, admission_review(gadget())))["response"]["status"]
    assert status == {
        "code": 404,
        "reason": "NotFound",
        "message": 'models "m" not found',
        "details": {"name": "m", "kind": "models"},
    }
    assert panics(metrics) == 0


@pytest.mark.rules("U-66")
async def test_wh_5_an_unexpected_exception_is_500_with_uid_and_counted(server, metrics):
    def broken(request: AdmissionRequest) -> None:
        raise ZeroDivisionError("oops")

    server.add_raw_validator(Gadget, broken)
    assert panics(metrics) == 0
    review = admission_review(gadget())
    response = (await server.call(VALIDATE, review))["response"]
    assert response["uid"] == review["request"]["uid"]
    assert response["allowed"] is False
    assert response["status"]["code"] == 500
    assert "ZeroDivisionError: oops" in response["status"]["message"]
    assert panics(metrics) == 1


async def test_an_object_that_the_model_refuses_is_a_bad_request_that_names_the_field(server, metrics):
    server.add_defaulter(Gadget, default_replicas)
    status = (await server.call(MUTATE, admission_review(gadget(replicas="many"))))["response"]["status"]
    assert status["code"] == 400
    assert "spec.replicas" in status["message"]
    assert panics(metrics) == 0


@pytest.mark.parametrize("version", ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"])
@pytest.mark.rules("U-66")
async def test_wh_3_answer_repeats_version_and_uid(server, version):
    server.add_defaulter(Gadget, default_replicas)
    review = admission_review(gadget()) | {"apiVersion": version}
    answer = await server.call(MUTATE, review)
    assert (answer["apiVersion"], answer["kind"]) == (version, "AdmissionReview")
    assert answer["response"]["uid"] == review["request"]["uid"]


@pytest.mark.parametrize(
    ("review", "message"),
    [
        ([], "must be an AdmissionReview"),
        ({"apiVersion": "v1", "kind": "Pod", "request": {"uid": "u"}}, "must be an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v2", "kind": "AdmissionReview"}, "must be an AdmissionReview"),
        ({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}, "holds no request"),
        ({}, "holds no request"),
    ],
)
async def test_wh_3_a_body_that_is_no_review_is_a_bad_request(server, review, message):
    server.add_defaulter(Gadget, default_replicas)
    answer = await server.call(MUTATE, review)
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    assert answer["response"]["status"]["code"] == 400
    assert message in answer["response"]["status"]["message"]


async def test_request_offers_what_handlers_ask_for(server):
    seen: list[AdmissionRequest] = []
    server.add_raw_validator(Gadget, seen.append)
    await server.call(VALIDATE, admission_review(gadget(), sub_resource="scale", dry_run=True, user="ada"))
    (request,) = seen
    assert (request.key, request.operation, str(request.kind)) == (
        "default/g",
        "CREATE",
        "webhook.example.dev/v1 Gadget",
    )
    assert (request.sub_resource, request.dry_run, request.user) == ("scale", True, "ada")
    assert request.groups == ("system:authenticated",)


async def test_audit_annotations_go_back(server):
    def check(request: AdmissionRequest) -> None:
        request.audit_annotations["policy"] = "lenient"

    server.add_raw_validator(Gadget, check)
    response = (await server.call(VALIDATE, admission_review(gadget())))["response"]
    assert response["auditAnnotations"] == {"policy": "lenient"}


async def test_cancelling_the_caller_cancels_the_handler(server):
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def slow(request: AdmissionRequest) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    server.add_raw_validator(Gadget, slow)
    async with asyncio.timeout(5):
        call = asyncio.ensure_future(server.call(VALIDATE, admission_review(gadget())))
        await started.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await cancelled.wait()


@pytest.mark.looptime
async def test_a_handler_that_takes_too_long_is_answered_with_504(server):
    async def slow(request: AdmissionRequest) -> None:
        await asyncio.Event().wait()

    server.add_raw_validator(Gadget, slow)
    status = (await server.call(VALIDATE, admission_review(gadget())))["response"]["status"]
    assert (status["code"], status["reason"]) == (504, "Timeout")


def deleting(finalizers, *, replicas=0, **metadata):
    obj = gadget(replicas=replicas)
    obj["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers} | metadata
    return obj


class RefuseAll(Validator[Gadget]):
    def validate_update(self, old, new, request):
        raise Denied("the model is disabled")


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        (deleting(["a", "b"]), deleting(["b"], resourceVersion="7"), True),
        (deleting(["a"]), {**deleting([]), "metadata": {"name": "g", "namespace": "default"}}, True),
        # A change of a deleting object is not let in by the same door.
        (deleting(["a"]), deleting([], replicas=2), False),
        (deleting(["a"]), deleting([], labels={"x": "y"}), False),
        (deleting(["a"]), deleting(["a"]), False),
        (deleting(["a"]), deleting(["b"]), False),
        # Nor is a change of a live one.
        (gadget(replicas=0), gadget(replicas=1), False),
    ],
)
async def test_o_10_removing_a_finalizer_from_a_deleting_object_is_never_refused(server, old, new, allowed):
    def refuse(request: AdmissionRequest) -> None:
        raise Denied("the model is disabled")

    server.add_validator(Gadget, RefuseAll())
    server.add_raw_validator(Gadget, refuse, path="/raw")
    review = admission_review(new, operation="UPDATE", old=old)
    for path in (VALIDATE, "/raw"):
        assert (await server.call(path, review))["response"]["allowed"] is allowed


async def test_o_10_removing_a_finalizer_from_a_deleting_object_is_not_defaulted(server):
    def change(obj: Gadget, request: AdmissionRequest) -> None:
        obj.spec.replicas = 9

    server.add_defaulter(Gadget, change)
    review = admission_review(deleting([]), operation="UPDATE", old=deleting(["a"]))
    assert "patch" not in (await server.call(MUTATE, review))["response"]


@pytest.mark.rules("WH-8")
async def test_a_copy_that_shares_what_is_not_changed_gives_the_same_patch(server):
    def mutate(raw, request):
        raw["spec"]["replicas"] = 2

    def share(raw):
        return {**raw, "spec": {**raw["spec"]}}

    server.add_mutator(Gadget, mutate, path="/whole")
    server.add_mutator(Gadget, mutate, mutate, path="/shared", copy=share)
    review = admission_review(gadget(replicas=1, future=[{"x": 1}]))
    before = json.dumps(review)
    shared, whole = await server.call("/shared", review), await server.call("/whole", review)
    assert patch_of(shared) == patch_of(whole) == [{"op": "replace", "path": "/spec/replicas", "value": 2}]
    assert json.dumps(review) == before


async def test_an_async_mutator_and_validator_are_waited_for(server):
    async def mutate(raw, request):
        await asyncio.sleep(0)
        raw["spec"]["replicas"] = 2

    async def replace(raw, request):
        await asyncio.sleep(0)
        return {**raw, "spec": {"replicas": raw["spec"]["replicas"] + 1}}

    async def refuse(request):
        await asyncio.sleep(0)
        raise Denied("never")

    server.add_mutator(Gadget, mutate, replace)
    server.add_raw_validator(Gadget, refuse)
    answer = await server.call(MUTATE, admission_review(gadget()))
    assert patch_of(answer) == [{"op": "add", "path": "/spec/replicas", "value": 3}]
    assert (await server.call(VALIDATE, admission_review(gadget())))["response"]["status"]["message"] == "never"
