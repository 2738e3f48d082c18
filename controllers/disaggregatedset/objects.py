"""The objects that the controller makes: LeaderWorkerSets and Services (DS §6, §8). No I/O."""

from __future__ import annotations

from pyreconcile.api import ObjectMeta, copy_json
from pyreconcile.api.core_v1 import Service
from pyreconcile.controller import set_controller_reference
from pyreconcile_controllers.disaggregatedset import names
from pyreconcile_controllers.disaggregatedset.children import Child
from pyreconcile_controllers.disaggregatedset.types import DisaggregatedSet, Role
from pyreconcile_controllers.leaderworkerset import LeaderWorkerSet


def leader_worker_set(owner: DisaggregatedSet, role: Role, revision: str, replicas: int) -> LeaderWorkerSet:
    """Return the LeaderWorkerSet of a role at a revision: the role's spec, labelled, with this many replicas.

    The set's own labels win over those of the user.
    """
    set_name = owner.metadata.name
    labels = names.system_labels(set_name, revision, role.name)
    metadata = ObjectMeta(
        name=names.lws_name(set_name, revision, role.name),
        namespace=owner.metadata.namespace,
        labels={**(role.metadata.labels if role.metadata else {}), **labels},
    )
    if role.metadata and role.metadata.annotations:
        metadata.annotations = dict(role.metadata.annotations)
    spec = copy_json(role.spec.to_dict())
    spec["replicas"] = replicas
    for field in ("leaderTemplate", "workerTemplate"):
        template = spec["leaderWorkerTemplate"].get(field)
        if template is not None:
            template_metadata = template.setdefault("metadata", {})
            template_metadata["labels"] = {**(template_metadata.get("labels") or {}), **labels}
    made = LeaderWorkerSet.from_dict({"spec": spec})
    made.metadata = metadata
    set_controller_reference(made, owner, block_owner_deletion=False)
    return made


def headless_service(owner: DisaggregatedSet, child: Child) -> Service:
    """Return the Service that gives the pods of a LeaderWorkerSet their addresses: headless, without ports."""
    selector = names.selector(owner.metadata.name, child.revision, child.role, slice_label=child.sliced)
    made = Service.from_dict(
        {
            "metadata": {
                "name": names.service_name(child.name),
                "namespace": owner.metadata.namespace,
                "labels": selector,
            },
            "spec": {"clusterIP": "None", "selector": selector},
        }
    )
    set_controller_reference(made, owner, block_owner_deletion=False)
    return made
