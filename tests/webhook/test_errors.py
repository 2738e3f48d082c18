"""The texts of field errors are those that Kubernetes users know from the API server."""

import pytest

from pyreconcile.api import Spec
from pyreconcile.webhook import Denied, FieldError, FieldErrors


class Limits(Spec):
    max_pods: int = 1


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (
            FieldError.invalid("spec.replicas", -1, "must be positive"),
            "spec.replicas: Invalid value: -1: must be positive",
        ),
        (FieldError.invalid("spec.on", value=True, detail="must be off"), "spec.on: Invalid value: true: must be off"),
        (FieldError.invalid("spec.x", None, "must be set"), "spec.x: Invalid value: null: must be set"),
        (FieldError.invalid("spec.x", "25%", "too much"), 'spec.x: Invalid value: "25%": too much'),
        (FieldError.invalid("spec.x", 'a "b"', "odd"), 'spec.x: Invalid value: "a \\"b\\"": odd'),
        (FieldError.invalid("spec.x", {"a": [1]}, "odd"), 'spec.x: Invalid value: {"a":[1]}: odd'),
        (FieldError.invalid("spec.x", Limits(max_pods=2), "odd"), 'spec.x: Invalid value: {"maxPods":2}: odd'),
        (FieldError.required("spec.image"), "spec.image: Required value"),
        (FieldError.required("spec.image", "name one"), "spec.image: Required value: name one"),
        (FieldError.forbidden("spec.x", "is immutable"), "spec.x: Forbidden: is immutable"),
        (
            FieldError.unsupported("spec.x", "c", ["a", "b"]),
            'spec.x: Unsupported value: "c": supported values: "a", "b"',
        ),
        (FieldError.unsupported("spec.x", "c"), 'spec.x: Unsupported value: "c"'),
        (FieldError.duplicate("spec.x[1]", "a"), 'spec.x[1]: Duplicate value: "a"'),
        (FieldError.not_found("spec.x", "a"), 'spec.x: Not found: "a"'),
        (FieldError.too_long("spec.x", 63), "spec.x: Too long: may not be more than 63 bytes"),
        (FieldError.too_long("spec.x", 1), "spec.x: Too long: may not be more than 1 byte"),
        (FieldError.too_many("spec.x", 5, 3), "spec.x: Too many: 5: must have at most 3 items"),
    ],
)
def test_field_error_has_kubernetes_text(error, text):
    assert str(error) == text


def test_one_field_error_reads_as_it_is():
    assert str(FieldErrors([FieldError.required("a")])) == "a: Required value"


def test_several_field_errors_are_joined_in_brackets_and_said_once():
    errors = [FieldError.required("a"), FieldError.required("b"), FieldError.required("a")]
    assert str(FieldErrors(errors)) == "[a: Required value, b: Required value]"


def test_field_errors_without_an_error_is_a_mistake_of_the_caller():
    with pytest.raises(ValueError, match="at least one"):
        FieldErrors([])


def test_wh_4_denied_defaults_to_403_forbidden():
    denied = Denied("no")
    assert (denied.code, denied.reason, str(denied)) == (403, "Forbidden", "no")


@pytest.mark.rules("WH-4")
@pytest.mark.parametrize("code", [0, 200, 302, 399, 600])
def test_wh_4_a_denial_has_a_code_that_refuses(code: int):
    with pytest.raises(ValueError, match=f"{code} does not refuse"):
        Denied("no", code=code)
