"""What docs/leaderworkerset.md says is so."""

import re
from pathlib import Path

import yaml

from pyreconcile_controllers.leaderworkerset.types import LeaderWorkerSet

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "leaderworkerset.md").read_text()
SAMPLE = yaml.safe_load((DOCS / "examples" / "leaderworkerset.yaml").read_text())


def test_the_sample_is_the_one_on_the_page():
    (block,) = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(block) == SAMPLE


async def test_the_sample_comes_up_with_the_objects_of_the_page(sets):
    sample = LeaderWorkerSet.from_dict(SAMPLE)
    sample.metadata.namespace = sets.namespace
    await sets.client.create(sample)
    await sets.available()
    pods = await sets.running("demo", 2, 3)
    (revision,) = await sets.revisions()
    named = set(re.findall(r"`(demo-\d(?:-\d)?)`", PAGE))
    assert {"demo-1", "demo-1-1"} <= named <= set(pods)
    assert set(await sets.worker_sets()) == {"demo-0", "demo-1"}
    assert set(await sets.services()) == {"demo"}
    assert re.fullmatch(r"demo-\w+-1", revision.metadata.name)
