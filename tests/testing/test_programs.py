"""Finding, building and fetching the programs, with small fakes for Go and for the servers."""

from __future__ import annotations

import hashlib
import io
import os
import stat
import tarfile
from functools import partial

import anyio
import pytest
from aiohttp import web

from pyreconcile.testing import BuildError, DownloadError, ProgramNotFoundError, eventually
from pyreconcile.testing._build import MODULE, Module, build, cache_dir, cached_program, platform_name
from pyreconcile.testing._download import download
from pyreconcile.testing._programs import DEFAULT_ASSETS, Program, find_programs
from pyreconcile.testing._progress import PlainProgress

GO_MOD = """module x

go 1.26.0

require (
	go.etcd.io/etcd/server/v3 v3.7.0
	k8s.io/kubernetes v1.37.2
	sigs.k8s.io/kwok v0.8.0
)
"""
FAKE_GO = """#!/bin/sh
[ "$1" = version ] && { echo "go version go%s linux/amd64"; exit 0; }
echo started >> "$COUNT"
echo k8s.io/one >&2; echo k8s.io/two >&2
[ -n "$FAIL" ] && { echo "main.go:1: no good" >&2; exit 1; }
while [ -n "$UNTIL" ] && [ ! -e "$UNTIL" ]; do sleep 0.02; done
while [ "$1" != -o ]; do shift; done
printf '#!/bin/sh\\n' > "$2"; chmod +x "$2"
"""


class Messages(list):
    update = list.append


@pytest.fixture
def messages():
    return Messages()


def executable(path, text="#!/bin/sh\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def module(tmp_path):
    folder = tmp_path / "module"
    folder.mkdir()
    (folder / "go.mod").write_text(GO_MOD)
    (folder / "main.go").write_text("package main\n")
    return folder


@pytest.fixture
def env(tmp_path):
    return {
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "PYRECONCILE_CACHE_DIR": str(tmp_path / "cache"),
        "COUNT": str(tmp_path / "count"),
        # No name is ever resolved: nothing listens on port 1.
        **{f"PYRECONCILE_{name}_URL": "http://127.0.0.1:1" for name in ("KUBERNETES", "ETCD", "KWOK")},
    }


@pytest.fixture
def fake_go(tmp_path):
    def make(version="1.26.0"):
        executable(tmp_path / "bin" / "go", FAKE_GO % version)

    return make


def test_te_1_the_shipped_module_names_the_versions():
    module = Module.read(MODULE)
    assert module.go[:2] == (1, 26)
    assert module.kubernetes_version == "v1.37.2"
    assert "-X k8s.io/component-base/version.gitVersion=v1.37.2" in module.ldflags()
    assert "-X k8s.io/client-go/pkg/version.gitMinor=37" in module.ldflags()


def test_te_1_the_cache_key_follows_every_source_file(module):
    keys = {Module.read(module).content_hash()}
    for name, text in {"main.go": "package other\n", "go.sum": "x\n", "go.mod": "module y\n\ngo 1.26\n"}.items():
        (module / name).write_text(text)
        keys.add(Module.read(module).content_hash())
    assert len(keys) == 4


def test_te_1_the_cache_folder(tmp_path):
    assert str(cache_dir({"PYRECONCILE_CACHE_DIR": "/c", "XDG_CACHE_HOME": "/x"})) == "/c"
    assert str(cache_dir({"XDG_CACHE_HOME": "/x"})) == "/x/pyreconcile"
    assert str(cache_dir({"HOME": "/h"})) == "/h/.cache/pyreconcile"


async def test_te_1_search_order(tmp_path, module, env, messages):
    explicit = executable(tmp_path / "explicit" / "etcd").parent
    named = executable(tmp_path / "named")
    assets = executable(tmp_path / "assets" / "etcd").parent
    key = Module.read(module).content_hash()
    cached = executable(tmp_path / "cache" / "controlplane" / key / "controlplane")
    usual = executable(tmp_path / "usual" / "etcd").parent
    all_of = {**env, "TEST_ASSET_ETCD": str(named), "KUBEBUILDER_ASSETS": str(assets)}

    async def found(programs=None, **drop):
        chosen = {name: value for name, value in all_of.items() if name not in drop}
        answer = await find_programs(
            ["etcd"],
            programs=programs,
            progress=messages,
            env=chosen,
            module_directory=module,
            default_assets=usual,
        )
        return answer["etcd"]

    assert str(DEFAULT_ASSETS) == "/usr/local/kubebuilder/bin"

    assert await found(explicit) == Program(explicit / "etcd")
    assert await found(cached) == Program(cached, multi_call=True)
    assert await found() == Program(named)
    assert await found(TEST_ASSET_ETCD=1) == Program(assets / "etcd")
    assert await found(TEST_ASSET_ETCD=1, KUBEBUILDER_ASSETS=1) == Program(usual / "etcd")
    (usual / "etcd").unlink()
    assert await found(TEST_ASSET_ETCD=1, KUBEBUILDER_ASSETS=1) == Program(cached, multi_call=True)
    assert Program(cached, multi_call=True).argv("etcd") == [str(cached), "etcd"]
    with pytest.raises(ProgramNotFoundError, match=r"programs=.*holds no executable file etcd"):
        await found(tmp_path)
    all_of["KUBEBUILDER_ASSETS"] = str(tmp_path / "gone")
    with pytest.raises(ProgramNotFoundError, match=r"^KUBEBUILDER_ASSETS=.*gone' is not a folder$"):
        await found(TEST_ASSET_ETCD=1)
    named.chmod(0o644)
    with pytest.raises(ProgramNotFoundError, match="TEST_ASSET_ETCD="):
        await found()


async def test_te_1_each_program_has_its_variable(tmp_path, module, env, messages):
    variables = {
        "etcd": "TEST_ASSET_ETCD",
        "kube-apiserver": "TEST_ASSET_KUBE_APISERVER",
        "kubectl": "TEST_ASSET_KUBECTL",
    }
    for name, variable in variables.items():
        env[variable] = str(executable(tmp_path / "named" / name))
    found = await find_programs(variables, progress=messages, env=env, module_directory=module)
    assert found == {name: Program(tmp_path / "named" / name) for name in variables}


async def test_te_1_a_build_is_cached_and_two_at_once_build_once(tmp_path, module, env, messages, fake_go):
    fake_go()
    read = Module.read(module)
    cache = cache_dir(env)
    answers = []
    go_on = tmp_path / "go-on"

    async def one():
        answers.append(await build(read, cache, messages, env={**env, "UNTIL": str(go_on)}))

    async with anyio.create_task_group() as group:
        group.start_soon(one)
        group.start_soon(one)
        await eventually(lambda: any("waiting for another process" in message for message in messages))
        go_on.touch()
    assert answers == [cached_program(read, cache)] * 2
    assert os.access(answers[0], os.X_OK)
    assert (tmp_path / "count").read_text() == "started\n"
    assert any("packages compiled" in message for message in messages)
    assert [path.name for path in (cache / "controlplane").iterdir() if path.is_dir()] == [read.content_hash()]


async def test_te_1_a_failed_build_shows_what_the_compiler_said_and_leaves_nothing(module, env, messages, fake_go):
    fake_go()
    with pytest.raises(BuildError, match=r"exit code 1(.|\n)*main.go:1: no good"):
        await build(Module.read(module), cache_dir(env), messages, env={**env, "FAIL": "1"})
    assert cached_program(Module.read(module), cache_dir(env)) is None
    assert not [path for path in (cache_dir(env) / "controlplane").iterdir() if path.is_dir()]


async def test_te_1_a_cancelled_build_leaves_nothing(tmp_path, module, env, messages, fake_go):
    fake_go()
    env["UNTIL"] = str(tmp_path / "never")
    async with anyio.create_task_group() as group:
        group.start_soon(partial(build, Module.read(module), cache_dir(env), messages, env=env))
        await eventually((tmp_path / "count").exists)
        group.cancel_scope.cancel()
    assert not [path for path in (cache_dir(env) / "controlplane").iterdir() if path.is_dir()]


async def test_te_1_missing_and_old_go_say_what_to_do(module, env, messages, fake_go):
    fake_go("1.22.4")
    with pytest.raises(BuildError, match=r"Go 1\.26 or newer is needed.*go1\.22\.4.*go\.dev/dl"):
        await build(Module.read(module), cache_dir(env), messages, env=env)
    with pytest.raises(
        BuildError, match=r"Go 1\.26 or newer is needed.*no `go` program is on PATH.*KUBEBUILDER_ASSETS"
    ):
        await build(Module.read(module), cache_dir(env), messages, env={**env, "PATH": "/nowhere"})


async def test_te_1_with_neither_go_nor_network_both_reasons_are_given(module, env, messages):
    with pytest.raises(ProgramNotFoundError, match=r"Build: Go 1\.26(.|\n)*Fetch: .*127\.0\.0\.1:1"):
        await find_programs(
            ["etcd", "kwok"],
            progress=messages,
            env={**env, "PATH": "/nowhere"},
            module_directory=module,
            default_assets=module,
        )


def archive(name, content):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size = len(content)
        tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def digest(content):
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
async def releases(env):
    """A server on loopback laid out as the projects' own, with what a test puts on it."""
    files = {}

    async def serve(request):
        body = files.get(request.path)
        return web.Response(body=body) if body is not None else web.Response(status=404)

    runner = web.AppRunner(web.Application())
    runner.app.router.add_get("/{path:.*}", serve)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    env.update({f"PYRECONCILE_{name}_URL": f"http://127.0.0.1:{port}" for name in ("KUBERNETES", "ETCD", "KWOK")})
    yield files
    await runner.cleanup()


async def test_te_1_releases_are_fetched_when_go_is_missing(module, env, messages, releases):
    system, machine = platform_name()
    server = f"/v1.37.2/bin/{system}/{machine}/kube-apiserver"
    store = f"/v3.7.0/etcd-v3.7.0-{system}-{machine}.tar.gz"
    kwok = f"/v0.8.0/kwok-{system}-{machine}"
    packed = archive(f"etcd-v3.7.0-{system}-{machine}/etcd", b"the store")
    releases[server], releases[f"{server}.sha256"] = b"the server", digest(b"the server").encode()
    releases[store] = packed
    releases["/v3.7.0/SHA256SUMS"] = f"{'0' * 64}  other\n{digest(packed)}  {store.rsplit('/', 1)[1]}\n".encode()
    releases[kwok], releases[f"{kwok}.sha256"] = b"kwok", f"{digest(b'kwok')}  kwok".encode()
    releases[f"{kwok}.sha256"] = f"{digest(b'kwok')}  kwok-{system}-{machine}\n".encode()
    without_go = {**env, "PATH": "/nowhere"}
    names = ["kube-apiserver", "etcd", "kwok"]
    options = {"progress": messages, "env": without_go, "module_directory": module, "default_assets": module}
    found = await find_programs(names, **options)
    assert [found[name].path.read_bytes() for name in names] == [b"the server", b"the store", b"kwok"]
    assert all(found[name].path.stat().st_mode & stat.S_IXUSR and not found[name].multi_call for name in names)

    releases.clear()  # the second time nothing is asked for
    assert await find_programs(names, **options) == found


@pytest.mark.parametrize(
    ("sums", "error"),
    [
        (b"0" * 64, "has SHA-256 .* but .*kube-apiserver.sha256 says 0000"),
        (b"not a sum", "has no SHA-256 sum of kube-apiserver"),
        (None, "kube-apiserver.sha256 answered 404"),
    ],
)
async def test_te_1_a_wrong_or_missing_sum_is_refused(module, env, messages, releases, sums, error):
    path = "/".join(["", "v1.37.2", "bin", *platform_name(), "kube-apiserver"])
    releases[path] = b"tampered"
    if sums is not None:
        releases[f"{path}.sha256"] = sums
    with pytest.raises(DownloadError, match=error):
        await download("kube-apiserver", Module.read(module), cache_dir(env), messages, env=env)
    left = [file for file in cache_dir(env).rglob("*") if file.is_file() and file.suffix != ".lock"]
    assert left == []


def test_te_1_progress_in_a_log_is_one_line_in_15_seconds():
    now = 0.0
    stream = io.StringIO()
    progress = PlainProgress(stream, clock=lambda: now)
    for second in range(40):
        now = float(second)
        progress.update(f"{second} s")
    assert stream.getvalue().split("\n") == ["0 s", "15 s", "30 s", ""]
