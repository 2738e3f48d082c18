"""Documents of files, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pyreconcile.testing import ManifestError
from pyreconcile.testing._manifests import read_manifests

VERSION = "example.dev/v1"


def thing(name, **more):
    return {"apiVersion": VERSION, "kind": "Thing", "metadata": {"name": name}, **more}


def read(*paths):
    return read_manifests(paths, api_version=VERSION, kinds=["Thing"])


def test_te_5_every_document_of_every_file_is_read(tmp_path):
    (tmp_path / "a.yaml").write_text(yaml.safe_dump_all([None, thing("a"), {"kind": "Other"}, thing("b")]))
    (tmp_path / "b.yml").write_text(yaml.safe_dump(thing("c")))
    (tmp_path / "c.json").write_text(json.dumps(thing("d"), indent="\t") + "\n" + json.dumps(thing("e")))
    (tmp_path / "README.md").write_text("nothing for us")
    (tmp_path / "patches.yaml").mkdir()
    single = tmp_path / "patches.yaml" / "f.yaml"
    single.write_text(yaml.safe_dump(thing("f")))
    found = read(tmp_path, str(single))
    assert [manifest.name for manifest in found] == ["a", "b", "c", "d", "e", "f"]
    assert [manifest.source for manifest in found][:2] == [
        f"{tmp_path / 'a.yaml'}, document 2",
        f"{tmp_path / 'a.yaml'}, document 4",
    ]


def test_te_5_what_looks_like_a_date_is_text(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text(f"{yaml.safe_dump(thing('a'))}spec: {{released: 2026-01-31, size: 3, on: true}}\n")
    assert read(file)[0].raw["spec"]["released"] == "2026-01-31"
    assert read(file)[0].raw["spec"]["size"] == 3


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kind: Thing\napiVersion: example.dev/v1beta1\n", "document 1: apiVersion must be example.dev/v1, not 'exam"),
        ("---\nkind: Other\n---\nkind: Thing\napiVersion: example.dev/v1\n", r"document 2: metadata\.name is missing"),
        ("- 1\n", "document 1: it must be an object, not list"),
        ("{", "cannot be read"),
        ("kind: Other\n", "holds no document of kind Thing; folders in it are not read"),
    ],
)
def test_te_5_what_is_wrong_is_named_by_file_and_document(tmp_path, text, message):
    file = tmp_path / "a.yaml"
    file.write_text(text)
    with pytest.raises(ManifestError, match=rf"a\.yaml,? ?{message}"):
        read(file)


def test_te_5_a_path_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ManifestError, match="gone is no file or folder; relative paths start at"):
        read(tmp_path / "gone")
    with pytest.raises(ManifestError, match="holds no document"):
        read(tmp_path)


plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(specs=st.lists(plain, min_size=1, max_size=3))
def test_te_5_documents_are_the_same_in_json_and_yaml(tmp_path_factory, specs):
    folder: Path = tmp_path_factory.mktemp("manifests")
    things = [thing(f"t{number}", spec=spec) for number, spec in enumerate(specs)]
    (folder / "a.json").write_text("\n".join(map(json.dumps, things)))
    (folder / "b.yaml").write_text(yaml.safe_dump_all(things))
    assert [manifest.raw for manifest in read(folder / "a.json")] == things
    assert [manifest.raw for manifest in read(folder / "b.yaml")] == things
