"""What docs/disaggregatedset.md says is so."""

import re
from pathlib import Path

import orjson
import pytest
import yaml

from pyreconcile.client import JsonPatch
from pyreconcile_controllers.disaggregatedset import DisaggregatedSet, Rollout, states

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"  # As kubectl asks.
DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "disaggregatedset.md").read_text()
SAMPLE = yaml.safe_load((DOCS / "examples" / "disaggregatedset.yaml").read_text())


def test_the_table_of_the_rollout_is_the_planners():
    rows = re.findall(r"^\| (\d+) \| (\d), (\d) \| (\d), (\d) \|", PAGE, re.MULTILINE)
    replicas = [role["spec"]["replicas"] for role in SAMPLE["spec"]["roles"]]
    expected = [(number, *state.old, *state.new) for number, state in enumerate(states(Rollout.of(replicas, replicas)))]
    assert [tuple(map(int, row)) for row in rows] == expected


def test_the_example_prints_what_it_says(capsys):
    (code,) = re.findall(r"^```python\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.split()[:2] == ["5,2|0,0", "5,2|2,1"]


@pytest.mark.plane
async def test_the_sample_comes_up_with_the_objects_of_the_page(sets):
    sample = DisaggregatedSet.from_dict(SAMPLE)
    sample.metadata.namespace = sets.namespace
    await sets.client.create(sample)
    await sets.available("chat")
    assert len(await sets.pods(name="chat")) == 10
    names = {lws.metadata.name for lws in (await sets.lws("chat")).values()}
    assert names <= set(re.findall(r"chat-0-\w{8}-\w+", PAGE))
    path = f"/apis/disaggregatedset.x-k8s.io/v1/namespaces/{sets.namespace}/disaggregatedsets"
    table = orjson.loads(await sets.client.transport.request("GET", path, accept=TABLE))
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Available", "Progressing", "Age"]
    assert table["rows"][0]["cells"][:3] == ["chat", "True", "False"]


@pytest.mark.plane
async def test_the_sample_rolls_out_as_the_page_tells(sets):
    sample = DisaggregatedSet.from_dict(SAMPLE)
    sample.metadata.namespace = sets.namespace
    await sets.client.create(sample)
    await sets.available("chat")
    (old,) = await sets.revisions("chat")
    image = "spec/leaderWorkerTemplate/workerTemplate/spec/containers/0/image"
    changes = [{"op": "replace", "path": f"/spec/roles/{index}/{image}", "value": "busybox:1.37"} for index in range(2)]
    async with sets.watching() as watcher:
        await sets.client.patch(DisaggregatedSet, sample.key, JsonPatch(changes))

        async def replaced():
            await sets.available("chat")
            revisions = await sets.revisions("chat")
            return old not in revisions and {revision for revision, _ in watcher.replicas} == revisions

        await sets.until(replaced, timeout=60)
    totals = [
        tuple(sum(pair[0] for (_, name), pair in snapshot.items() if name == role) for role in ("prefill", "decode"))
        for snapshot in watcher.states
    ]
    assert {prefill for prefill, _ in totals} == {6, 7}
    assert {decode for _, decode in totals} == {2, 3}

    async def only_new_pods():
        return len(await sets.pods(name="chat")) == 10

    await sets.until(only_new_pods)
