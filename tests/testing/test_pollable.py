"""Checks for `eventually`, and comparing objects."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyreconcile.api.apps_v1 import Deployment
from pyreconcile.api.core_v1 import ConfigMap, Pod, PodStatus
from pyreconcile.client import BadRequestError, MergePatch
from pyreconcile.testing import Interceptor, Poller, assert_equal, differences, eventually, fake_client, intercept
from pyreconcile.testing._comparison import SERVER_METADATA

pytestmark = pytest.mark.rules("TE-7")


def config_map(name="x", **data):
    return ConfigMap(metadata={"name": name, "namespace": "n"}, data=data or {"a": "1"})


async def later(action):
    await asyncio.sleep(0.05)
    return await action


@pytest.mark.looptime
async def test_te_7_get_waits_for_an_object_and_for_what_it_should_be():
    client = fake_client()
    poll = Poller(client)
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(later(client.create(config_map())))
        created = await eventually(poll.get(ConfigMap, "n/x"), timeout=5)
        tasks.create_task(later(client.patch(created, MergePatch({"data": {"a": "2"}}))))
        changed = await eventually(poll.get(ConfigMap, "n/x", when=lambda found: found.data["a"] == "2"), timeout=5)
        tasks.create_task(later(client.delete(changed)))
        assert await eventually(poll.gone(ConfigMap, "n/x"), timeout=5)
    with pytest.raises(AssertionError, match=r"not within 0\.05 s: get ConfigMap n/x; last: NotFoundError"):
        await eventually(poll.get(ConfigMap, "n/x"), timeout=0.05)


@pytest.mark.looptime
async def test_te_7_list_waits_for_what_the_objects_should_be():
    client = fake_client(config_map("a"))
    poll = Poller(client)
    assert [obj.key for obj in await eventually(poll.list(ConfigMap, namespace="n"))] == ["n/a"]
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(later(client.create(config_map("b"))))
        both = await eventually(poll.list(ConfigMap, when=lambda found: len(found) == 2), timeout=5)
        assert [obj.metadata.name for obj in both] == ["a", "b"]
        tasks.create_task(later(client.delete_all_of(ConfigMap, namespace="n")))
        assert await eventually(poll.list(ConfigMap, when=lambda found: not found), timeout=5) == []
    with pytest.raises(AssertionError, match="list ConfigMap"):
        await eventually(poll.list(ConfigMap), timeout=0.05)


async def test_te_7_update_reads_changes_and_writes_until_nobody_is_quicker():
    tries = []

    async def get(client, kind, key):
        found = await client.get(kind, key)
        tries.append(found.metadata.resource_version)
        if len(tries) < 3:
            await client.patch(kind, key, MergePatch({"data": {"b": str(len(tries))}}))
        return found

    poll = Poller(intercept(fake_client(config_map()), Interceptor(get=get)))

    def change(found):
        found.data["a"] = "9"

    assert (await eventually(poll.update(ConfigMap, "n/x", change))).data == {"a": "9", "b": "2"}
    assert len(tries) == 3


async def test_te_7_update_status_leaves_the_rest():
    pod = Pod(metadata={"name": "p", "namespace": "n"}, spec={"containers": [{"name": "c", "image": "i"}]})
    client = fake_client(pod)

    def change(found):
        found.status = PodStatus(phase="Running")
        found.spec.node_name = "x"

    updated = await eventually(Poller(client).update_status(Pod, "n/p", change))
    assert (updated.status.phase, updated.spec.node_name) == ("Running", None)


async def test_te_7_other_errors_pass_through():
    with pytest.raises(BadRequestError):
        await eventually(Poller(fake_client()).list(ConfigMap, fields={"data.a": "1"}))


@pytest.mark.plane
async def test_te_7_pollables_work_on_a_control_plane(client, namespace):
    poll = Poller(client)
    labels = {"app": "web"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    web = await client.create(
        Deployment(
            metadata={"name": "web", "namespace": namespace},
            spec={"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        )
    )

    def change(found):
        found.spec.replicas = 2

    await eventually(poll.update(Deployment, web.key, change))
    pods = await eventually(poll.list(Pod, namespace=namespace, labels=labels, when=lambda found: len(found) == 2))
    assert {pod.metadata.labels["app"] for pod in pods} == {"web"}


# -- comparing ---------------------------------------------------------------------------------------------------------


def pod(**container):
    return {
        "metadata": {"name": "p", "labels": {"app.kubernetes.io/name": "x", "tier": "web"}},
        "spec": {"containers": [{"name": "c", "image": "i", **container}]},
    }


def test_te_7_objects_that_mean_the_same_are_equal():
    one = pod(resources={"requests": {"cpu": "1000m"}}, env=[])
    assert differences(one, pod(resources={"requests": {"cpu": "1"}})) == []
    assert_equal(Pod.from_dict(one), {"apiVersion": "v1", "kind": "Pod", **one})


def test_te_7_differences_name_paths_and_values():
    other = pod(image="j", args=["x"])
    other["metadata"]["labels"] = {"app.kubernetes.io/name": "y", "tier": "web"}
    assert [str(found) for found in differences(other, pod())] == [
        "metadata.labels[app.kubernetes.io/name]: 'y', expected 'x'",
        "spec.containers[0].image: 'j', expected 'i'",
        "spec.containers[0].args: ['x'], expected None",
    ]
    with pytest.raises(AssertionError, match=r"^the objects differ:\nmetadata.*\nspec\.containers\[0\]\.image: "):
        assert_equal(other, pod())


def test_te_7_paths_can_be_ignored_or_chosen():
    other = pod(image="j")
    other["metadata"]["labels"]["app.kubernetes.io/name"] = "y"
    image, label = "spec.containers[0].image", "metadata.labels[app.kubernetes.io/name]"
    assert [found.path for found in differences(other, pod(), ignore=[label])] == [image]
    assert [found.path for found in differences(other, pod(), ignore=["spec"])] == [label]
    assert differences(other, pod(), ignore=[image, label]) == []
    assert [found.path for found in differences(other, pod(), only=["spec.containers"])] == [image]
    assert [found.path for found in differences(other, pod(), only=["metadata"])] == [label]
    assert differences(other, pod(), only=["metadata.labels.tier", "spec.containers[0].name"]) == []
    assert differences(other, pod(), only=["spec"], ignore=[image]) == []
    assert differences({"spec": {"a": 1}}, {}, ignore=["spec.a"]) == []


@pytest.mark.parametrize("path", ["", "a..b", "a[", "a]", ".", "a[]"])
def test_te_7_a_path_that_cannot_be_read_is_refused(path):
    with pytest.raises(ValueError, match="is no path: write it as in"):
        differences({}, {}, ignore=[path])


async def test_te_7_one_switch_leaves_out_what_the_server_made():
    wanted = config_map()
    stored = await fake_client().create(wanted)
    assert (
        {found.path for found in differences(stored, wanted)}
        == {
            "metadata.uid",
            "metadata.resourceVersion",
            "metadata.creationTimestamp",
            "metadata.managedFields",
        }
        <= set(SERVER_METADATA)
    )
    assert_equal(stored, wanted, server_metadata=False)
    stored.metadata.labels = {"a": "b"}
    assert [found.path for found in differences(stored, wanted, server_metadata=False)] == ["metadata.labels.a"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "b"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b.c", "d"]), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.sampled_from(["a", "b.c", "d"]), JSON, max_size=3)


@settings(deadline=None)
@given(OBJECTS, OBJECTS)
def test_te_7_ignoring_all_differences_leaves_none(one, other):
    found = differences(one, other)
    assert bool(differences(other, one)) == bool(found)
    assert differences(one, other, ignore=[item.path for item in found]) == []
    assert differences(one, one) == []
