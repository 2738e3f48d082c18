"""What docs/inferenceservice.md says is so."""

import re
from dataclasses import fields
from pathlib import Path

import orjson
import pytest
import yaml

from pyreconcile.client import MergePatch
from pyreconcile_controllers.inferenceservice import InferenceService, ServingRuntime, Settings
from pyreconcile_controllers.inferenceservice.settings import PREFIX

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "inferenceservice.md").read_text()
SAMPLE = yaml.safe_load((DOCS / "examples" / "inferenceservice.yaml").read_text())
RUNTIME = yaml.safe_load((DOCS / "examples" / "servingruntime.yaml").read_text())
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"  # as kubectl asks


def table_below(heading):
    """Return the rows of the first table below a heading, as tuples of cells without backquotes."""
    text = PAGE[PAGE.index(f"\n## {heading}\n") :]
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE).group().splitlines()
    return [tuple(cell.strip().replace("`", "") for cell in line.strip("|").split(" | ")) for line in lines[2:]]


def test_the_sample_is_the_one_on_the_page():
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(block) == SAMPLE


def test_the_settings_are_those_on_the_page():
    rows = {name: default for name, default, _ in table_below("Settings")}
    assert rows == {
        f"{PREFIX}{field.name.upper()}": str(field.default).lower() if field.type == "bool" else str(field.default)
        for field in fields(Settings)
    }


@pytest.mark.plane
async def test_the_canary_proceeds_as_the_page_tells(services, client, namespace):
    services.key = f"{namespace}/chat"
    for kind, raw in ((ServingRuntime, RUNTIME), (InferenceService, SAMPLE)):
        sample = kind.from_dict(raw)
        sample.metadata.namespace = namespace
        if isinstance(sample, InferenceService):
            sample.spec.predictor.termination_grace_period_seconds = 0  # nothing to wait for here
        await client.create(sample)
    never = {"kwok.pyreconcile.dev/never-ready": "true"}
    changes = [
        {},
        {"model": {"storageUri": "hf://example/chat-v2"}, "canaryTrafficPercent": 10, "annotations": never},
        None,
        {"canaryTrafficPercent": 50},
        {"canaryTrafficPercent": None},
        {"canaryTrafficPercent": 0},
    ]
    rows = table_below("How a canary proceeds")
    works = False  # the pods of the second revision
    for (_, state, traffic, pods), change in zip(rows, changes, strict=True):
        if change:
            await client.patch(InferenceService, services.key, MergePatch({"spec": {"predictor": change}}))
        else:
            works = works or change is None
        await services.until(as_told(services, state, traffic, pods, works=works))

    path = f"/apis/serving.kserve.io/v1beta1/namespaces/{namespace}/inferenceservices"
    table = orjson.loads(await client.transport.request("GET", path, accept=TABLE))
    header = " ".join(column["name"].upper() for column in table["columnDefinitions"])
    assert header in " ".join(PAGE.split())
    cells = table["rows"][0]["cells"][:7]
    one, two = "chat-predictor-00001", "chat-predictor-00002"
    assert cells == ["chat", f"http://chat-{namespace}.example.com", "True", 100, 0, one, two]

    told = set(await services.conditions())
    assert told == {row[0] for row in table_below("Status")}
    events = {name for row in table_below("Events") for name in re.findall(r"\w+", row[0])}
    assert set(await services.reasons()) <= events


def as_told(services, state, traffic, pods, *, works):
    weights = {name: int(share) for name, share in (item.split() for item in traffic.split(", "))}
    replicas = {f"r{index}": int(count) for index, count in enumerate(pods.split(", "), 1) if count != "-"}

    async def check():
        if works:
            await services.set_pods(2, never_ready=None, service="chat")
        now = (await services.state())[0], services.weights(), await services.replicas()
        return now == (state, weights, replicas)

    return check
