"""What the README, the tutorial and the examples show is so."""

import re
import sys
import types
from pathlib import Path

import anyio
import pytest
import yaml

import pyreconcile_controllers
from pyreconcile import Builder, install_crds
from pyreconcile.api import find_model
from pyreconcile.api.core_v1 import ConfigMap
from pyreconcile.client import ApiError
from pyreconcile.crd import crd_for
from pyreconcile.testing import running
from pyreconcile_controllers.modelcache import ModelCache

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))


def python_blocks(page):
    return re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)


def first_block(page, monkeypatch):
    module = types.ModuleType("shown_in_docs")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(python_blocks(page)[0], page, "exec"), module.__dict__)
    return module


def schema_of(model):
    schema = crd_for(model)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return re.sub(r"'description': '[^']*',? ?", "", str(schema))


async def test_the_controller_in_the_readme_works(manager, client, namespace, monkeypatch):
    readme = first_block("README.md", monkeypatch)
    kind = readme.ModelCache
    await install_crds(client, [kind])
    Builder(manager).for_(kind).owns(ConfigMap).complete(readme.ModelCacheReconciler())
    cache = kind.from_dict({"metadata": {"name": "a", "namespace": namespace}, "spec": {"model": "m"}})
    async with running(manager):
        await client.create(cache)
        with anyio.fail_after(10):
            while not ((found := await client.get(kind, cache.key)).status and found.status.phase == "Ready"):
                await anyio.sleep(0.02)
    assert (await client.get(ConfigMap, f"{namespace}/a-cfg")).data == {"model": "m", "replicas": "1"}


@pytest.mark.parametrize("page", ["README.md", "docs/tutorial.md"])
def test_the_kind_that_a_page_shows_is_the_bundled_one(page, monkeypatch):
    assert schema_of(first_block(page, monkeypatch).ModelCache) == schema_of(ModelCache)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_the_server_takes_the_example(path, client, namespace):
    bundles = pyreconcile_controllers.load(pyreconcile_controllers.BUNDLED)
    await install_crds(client, [model for bundle in bundles.values() for model in bundle.MODELS])
    for raw in yaml.safe_load_all(path.read_text()):
        sample = find_model(raw["apiVersion"], raw["kind"]).from_dict(raw)
        if sample.resource.namespaced:
            sample.metadata.namespace = namespace
        with anyio.fail_after(20):
            while True:
                try:
                    made = await client.create(sample, dry_run=True, field_validation="Strict")
                except ApiError as error:
                    if "failed calling webhook" not in str(error):
                        raise
                    await anyio.sleep(0.1)  # another test's webhooks are going away
                else:
                    break
        assert made.metadata.name == raw["metadata"]["name"]


def test_the_sample_in_the_tutorial_is_the_example():
    (block,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs" / "tutorial.md").read_text(), re.MULTILINE | re.DOTALL)
    assert yaml.safe_load(block) == yaml.safe_load((ROOT / "docs" / "examples" / "modelcache.yaml").read_text())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_page_tells_to_apply_the_example(path):
    assert any(f"-f docs/examples/{path.name}" in page.read_text() for page in (ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted((ROOT / "docs").glob("*.md")), ids=lambda p: p.name)
def test_links_to_files_lead_somewhere(page):
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
