"""Policies in CEL: checks that the API server makes by itself, with no process of ours to be asked (rule WH-10)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyreconcile.api import KubeObject, RawObject
from pyreconcile.webhook._options import Operation, rule_for

_API_VERSION = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionPolicy:
    """A ValidatingAdmissionPolicy: conditions on objects of a kind, in CEL.

    A rule over one object of your own kind belongs into its CRD (`pyreconcile.crd.cel`); a policy is for kinds that
    are not yours, and for what needs the user, the operation or the namespace.

    Args:
        name: name of the policy and of its binding.
        kind: the kind whose resource is checked.
        validations: what must hold, as CEL, each with the message for who breaks it. There are ``object``,
            ``oldObject``, ``request``, ``namespaceObject``, ``variables`` and more.
        variables: names for parts of expressions.
        operations: what is checked.
        match_conditions: by name, CEL conditions for all of which there is a check at all.
        object_selector, namespace_selector: label selectors in wire form; default everything.
        actions: what happens to what breaks a rule: ``Deny``, ``Warn`` or ``Audit``.
        failure_policy: ``Fail`` refuses when an expression fails to evaluate, ``Ignore`` admits.

    Raises:
        ValueError: there is nothing to check, or ``Deny`` and ``Warn`` are both wanted.
    """

    name: str
    kind: type[KubeObject]
    validations: Mapping[str, str]
    variables: Mapping[str, str] | None = None
    operations: Sequence[Operation] = ("CREATE", "UPDATE")
    match_conditions: Mapping[str, str] | None = None
    object_selector: Mapping[str, Any] | None = None
    namespace_selector: Mapping[str, Any] | None = None
    actions: Sequence[Literal["Deny", "Warn", "Audit"]] = ("Deny",)
    failure_policy: Literal["Fail", "Ignore"] = "Fail"

    def __post_init__(self) -> None:
        if not self.validations:
            raise ValueError(f"validations: policy {self.name!r} checks nothing; give CEL expressions and messages")
        if not self.actions or {"Deny", "Warn"} <= set(self.actions):
            raise ValueError(f"actions: policy {self.name!r} needs one at least, and cannot both deny and warn")

    def objects(self) -> list[RawObject]:
        """Return the policy and its binding, for `install`."""
        constraints: RawObject = {"resourceRules": [rule_for(self.kind, self.operations)]}
        if self.object_selector is not None:
            constraints["objectSelector"] = dict(self.object_selector)
        if self.namespace_selector is not None:
            constraints["namespaceSelector"] = dict(self.namespace_selector)
        spec: RawObject = {
            "failurePolicy": self.failure_policy,
            "matchConstraints": constraints,
            "validations": [
                {"expression": expression, "message": message} for expression, message in self.validations.items()
            ],
        }
        for field, values in (("variables", self.variables), ("matchConditions", self.match_conditions)):
            if values:
                spec[field] = [{"name": name, "expression": expression} for name, expression in values.items()]
        return [
            {
                "apiVersion": _API_VERSION,
                "kind": "ValidatingAdmissionPolicy",
                "metadata": {"name": self.name},
                "spec": spec,
            },
            {
                "apiVersion": _API_VERSION,
                "kind": "ValidatingAdmissionPolicyBinding",
                "metadata": {"name": self.name},
                "spec": {"policyName": self.name, "validationActions": list(self.actions)},
            },
        ]
