"""PodGroups of Volcano: what a group's looks like, and how its pods name it (LWS §9). No I/O."""

from __future__ import annotations

from pyreconcile.api import RawObject, Unstructured, unstructured
from pyreconcile_controllers.leaderworkerset import groups, names
from pyreconcile_controllers.leaderworkerset.objects import owner_reference
from pyreconcile_controllers.leaderworkerset.pod_requests import group_requests
from pyreconcile_controllers.leaderworkerset.revision import Revision
from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

POD_GROUP = unstructured("scheduling.volcano.sh/v1beta1", "PodGroup")
_POD = unstructured("v1", "Pod")

GROUP_NAME_ANNOTATION = "scheduling.k8s.io/group-name"
QUEUE_ANNOTATION = "scheduling.volcano.sh/queue-name"
HOW = "install Volcano, or set schedulerProvider to kubernetes or to nothing"
_INHERITED = "volcano.sh/"


def annotate(pod: RawObject) -> None:
    """Name the group of a set's pod in its annotations, in place; the pod's labels are complete already."""
    labels = pod["metadata"]["labels"]
    name, index, key = (
        labels.get(label, "") for label in (names.SET_NAME_LABEL, names.GROUP_INDEX_LABEL, names.REVISION_LABEL)
    )
    annotations = pod["metadata"].setdefault("annotations", {})
    annotations[GROUP_NAME_ANNOTATION] = f"{name}-{index}-{key}"


def named_in(pod: RawObject) -> str:
    """Return the name of a pod's group; empty when it was admitted without one."""
    name: str = groups.annotations_of(pod).get(GROUP_NAME_ANNOTATION, "")
    return name


def pod_group(lws: LeaderWorkerSet, leader: RawObject, revision: Revision, pods: int) -> Unstructured:
    """Return the PodGroup of a leader's group.

    Args:
        lws: the live set, of which queue, startup policy and annotations are taken.
        leader: the leader pod, which owns it.
        revision: that of the group: its workers' template counts for what the group requests.
        pods: how many pods the group has.

    Raises:
        ValueError: an amount in one of the templates is no quantity.
    """
    metadata = leader["metadata"]
    annotations = lws.metadata.annotations
    spec: RawObject = {
        "minMember": 1 if lws.spec.startup_policy == "LeaderReady" else pods,
        "minResources": group_requests(leader["spec"], revision.template["workerTemplate"]["spec"], pods - 1),
    }
    if queue := annotations.get(QUEUE_ANNOTATION):
        spec["queue"] = queue
    return POD_GROUP.from_dict(
        {
            "metadata": {
                "name": named_in(leader),
                "namespace": metadata["namespace"],
                "labels": groups.group_labels(leader),
                "annotations": {key: value for key, value in annotations.items() if key.startswith(_INHERITED)},
                "ownerReferences": [owner_reference(_POD.from_dict(leader))],
            },
            "spec": spec,
        }
    )
