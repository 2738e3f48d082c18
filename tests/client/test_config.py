"""Where settings come from, and credentials that change."""

import asyncio
import os
import sys
import textwrap

import pytest
import structlog
import yaml
from aiohttp import web
from kubernetes_asyncio.client import Configuration

from pyreconcile.api.core_v1 import Namespace
from pyreconcile.client import ConfigError, ConnectOptions, UnauthorizedError, connect
from pyreconcile.client._config import load_config
from pyreconcile.client._credentials import Credentials


def kubeconfig(path, *, server="http://127.0.0.1:1", context="main", user=None, current=True):
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": context, "cluster": {"server": server}}],
        "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
        "users": [{"name": context, "user": user or {"token": f"token-{context}"}}],
    }
    if current:
        content["current-context"] = context
    path.write_text(yaml.safe_dump(content))
    return path


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """A home folder of the test's own, no KUBECONFIG, no pod."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("KUBECONFIG", "KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "home" / ".kube"
    folder.mkdir(parents=True)
    return folder


async def host_of(**options):
    loaded = await load_config(ConnectOptions(**options), os.environ)
    return loaded.configuration.host


async def test_cl_10_an_explicit_configuration_comes_first(monkeypatch):
    monkeypatch.setenv("KUBECONFIG", "no such file")
    configuration = Configuration(host="http://explicit")
    async with connect(configuration=configuration) as client:
        assert client.transport.base_url == "http://explicit"
        assert client.transport.host == "explicit"
    assert configuration.connection_pool_maxsize == 100


async def test_cl_10_the_named_file_comes_before_kubeconfig_and_home(tmp_path, monkeypatch, home):
    kubeconfig(home / "config", server="http://home")
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path / "env", server="http://env")))
    assert await host_of(kubeconfig=kubeconfig(tmp_path / "named", server="http://named")) == "http://named"
    assert await host_of() == "http://env"
    monkeypatch.delenv("KUBECONFIG")
    assert await host_of() == "http://home"


async def test_cl_10_several_files_merge_and_the_first_current_context_counts(tmp_path, monkeypatch):
    first = kubeconfig(tmp_path / "1", server="http://one", context="one", current=False)
    second = kubeconfig(tmp_path / "2", server="http://two", context="two")
    third = kubeconfig(tmp_path / "3", server="http://three", context="three")
    missing = tmp_path / "missing"
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, [missing, first, second, third])))
    assert await host_of() == "http://two"
    assert await host_of(context="three") == "http://three"
    assert await host_of(context="one") == "http://one"


async def test_cl_10_nothing_found_names_what_was_searched(home):
    with pytest.raises(ConfigError) as caught:
        await host_of()
    for part in ("KUBECONFIG is not set", "KUBERNETES_SERVICE_HOST", str(home / "config"), "kubeconfig=…"):
        assert part in str(caught.value)


async def test_cl_10_missing_files_are_named(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="nowhere: there is no such file"):
        await host_of(kubeconfig=tmp_path / "nowhere")
    monkeypatch.setenv("KUBECONFIG", "/nowhere/a:/nowhere/b")
    with pytest.raises(ConfigError, match="KUBECONFIG names '/nowhere/a:/nowhere/b'"):
        await host_of()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "must be a mapping"),
        ("[1]", "must be a mapping"),
        ("a: [", "is no YAML: expected"),
        ("apiVersion: v1", "no current-context"),
        ("current-context: x\ncontexts: []\nclusters: []", "name x"),
    ],
)
async def test_cl_10_a_bad_file_is_named_with_its_fault(tmp_path, text, message):
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(ConfigError, match="bad cannot be used") as caught:
        await host_of(kubeconfig=path)
    assert message in str(caught.value)


async def test_cl_10_an_unknown_context_is_named(tmp_path):
    with pytest.raises(ConfigError, match="name other"):
        await host_of(kubeconfig=kubeconfig(tmp_path / "k"), context="other")


async def test_cl_10_a_missing_certificate_is_a_config_error(tmp_path):
    path = kubeconfig(tmp_path / "k", server="https://127.0.0.1:1", user={"client-certificate": "no.crt"})
    with pytest.raises(ConfigError, match=r"no\.crt"):
        async with connect(kubeconfig=path):
            pass


async def test_cl_10_configuration_and_kubeconfig_exclude_each_other(tmp_path):
    with pytest.raises(ConfigError, match="not both"):
        await host_of(configuration=Configuration(), kubeconfig=tmp_path)


async def test_connect_refuses_unknown_options():
    with pytest.raises(TypeError, match="colour"):
        async with connect(colour="red"):
            pass


class TokenServer:
    """Takes one bearer token at a time."""

    def __init__(self, token):
        self.token = token
        self.seen = []

    async def __call__(self, request):
        given = request.headers.get("Authorization", "")
        self.seen.append(given)
        if given != f"Bearer {self.token}":
            return web.json_response({"kind": "Status", "reason": "Unauthorized", "code": 401}, status=401)
        return web.json_response({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "x"}})


@pytest.fixture
def plugin(tmp_path):
    """An exec plugin: prints the token and the expiry that stand in files, and counts its runs."""
    script = tmp_path / "plugin.py"
    script.write_text(
        textwrap.dedent("""
        import json, os, pathlib
        folder = pathlib.Path(os.environ["PLUGIN_FOLDER"])
        with open(folder / "runs", "a") as runs:
            runs.write("x")
        if (folder / "fail").exists():
            raise SystemExit("the identity provider is down")
        status = {"token": (folder / "token").read_text()}
        if (folder / "expiry").exists():
            status["expirationTimestamp"] = (folder / "expiry").read_text()
        print(json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}))
        """)
    )
    (tmp_path / "token").write_text("first")
    user = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-S", str(script)],
            "env": [{"name": "PLUGIN_FOLDER", "value": str(tmp_path)}],
            "interactiveMode": "Never",
        }
    }

    class Plugin:
        folder = tmp_path

        @property
        def runs(self):
            return len((tmp_path / "runs").read_text())

        def config(self, server):
            return kubeconfig(tmp_path / "config", server=server, user=user)

    return Plugin()


async def test_exec_plugin_runs_once_while_its_token_lasts(plugin, serve):
    (plugin.folder / "expiry").write_text("2999-01-01T00:00:00Z")
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        for _ in range(3):
            await client.get(Namespace, "x")
    assert (plugin.runs, server.seen) == (1, ["Bearer first"] * 3)


async def test_exec_plugin_runs_again_when_its_token_expires(plugin, serve):
    (plugin.folder / "expiry").write_text("2999-01-01T00:00:00Z")
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        await client.get(Namespace, "x")
        (plugin.folder / "token").write_text("second")
        server.token = "second"
        client.transport._credentials._due = 0
        await client.get(Namespace, "x")
    assert (plugin.runs, server.seen) == (2, ["Bearer first", "Bearer second"])


async def test_exec_plugin_runs_again_when_the_server_refuses_its_token(plugin, serve):
    (plugin.folder / "expiry").write_text("2999-01-01T00:00:00Z")
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        await client.get(Namespace, "x")
        (plugin.folder / "token").write_text("second")
        server.token = "second"
        assert (await client.get(Namespace, "x")).metadata.name == "x"
        server.token = "third"
        with pytest.raises(UnauthorizedError):
            await client.get(Namespace, "x")
    assert server.seen == [f"Bearer {token}" for token in ("first", "first", "second", "second", "second")]


async def test_exec_plugin_runs_again_when_a_stream_is_refused(plugin, serve):
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        (plugin.folder / "token").write_text("second")
        server.token = "second"
        async with client.transport.stream("/x") as lines:
            assert b"Namespace" in await anext(lines)
        server.token = "third"
        with pytest.raises(UnauthorizedError):
            async with client.transport.stream("/x"):
                pass
    assert server.seen == [f"Bearer {token}" for token in ("first", "second", "second", "second")]


async def test_many_requests_refused_at_once_run_the_plugin_once(plugin, serve):
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        (plugin.folder / "token").write_text("second")
        server.token = "second"
        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(client.get(Namespace, "x"))
    assert plugin.runs == 2


async def test_exec_plugin_that_fails_later_is_an_unauthorized_error(plugin, serve):
    server = TokenServer("first")
    async with connect(kubeconfig=plugin.config(await serve(server))) as client:
        await client.get(Namespace, "x")
        server.token = "second"
        (plugin.folder / "fail").touch()
        with pytest.raises(UnauthorizedError, match="identity provider is down"):
            await client.get(Namespace, "x")


async def test_exec_plugin_that_fails_at_first_is_a_config_error(plugin):
    (plugin.folder / "fail").touch()
    with pytest.raises(ConfigError, match="identity provider is down"):
        async with connect(kubeconfig=plugin.config("http://127.0.0.1:1")):
            pass


async def test_token_file_is_read_again_after_a_minute(tmp_path, serve):
    (tmp_path / "token").write_text("first\n")
    server = TokenServer("first")
    path = kubeconfig(tmp_path / "config", server=await serve(server), user={"tokenFile": "token"})
    async with connect(kubeconfig=path) as client:
        await client.get(Namespace, "x")
        (tmp_path / "token").write_text("second\n")
        server.token = "second"
        await client.get(Namespace, "x")
    assert server.seen == ["Bearer first", "Bearer first", "Bearer second"]


async def test_a_fixed_token_has_nothing_to_renew(tmp_path):
    loaded = await load_config(ConnectOptions(kubeconfig=kubeconfig(tmp_path / "config")), {})
    assert loaded.credentials is None
    assert loaded.configuration.refresh_api_key_hook is None


class Loader:
    """Stands for kubernetes_asyncio's loader with a token of a given end."""

    def __init__(self, end=None):
        if end is not None:
            self.exec_plugin_expiry = FakeTime(end)


class FakeTime:
    def __init__(self, seconds):
        self.seconds = seconds

    def timestamp(self):
        return self.seconds


@pytest.mark.parametrize(
    ("end", "by_expiry", "due"),
    [
        (None, False, 60),
        (None, True, float("inf")),
        (3600, True, 3300),
        (200, True, 10),
        (5, True, 5),
        (-5, True, 1),
    ],
)
def test_a_token_is_due_before_its_end(end, by_expiry, due):
    credentials = Credentials(Loader(end), Configuration(), by_expiry=by_expiry, clock=lambda: 0.0)
    assert credentials._due == due


async def test_bad_base64_in_a_kubeconfig_is_named(tmp_path):
    path = kubeconfig(tmp_path / "k", server="https://127.0.0.1:1", user={"client-key-data": "*"})
    with pytest.raises(ConfigError, match="client-key-data is no base64"):
        async with connect(kubeconfig=path):
            pass


async def test_files_are_looked_for_beside_the_kubeconfig_that_names_them(tmp_path):
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "token").write_text("beside\n")
    loaded = await load_config(
        ConnectOptions(kubeconfig=kubeconfig(folder / "config", user={"tokenFile": "token"})), {}
    )
    assert await loaded.configuration.get_api_key_with_prefix("BearerToken") == "Bearer beside"


async def test_basic_authentication(tmp_path, serve):
    seen = []

    async def handler(request):
        seen.append(request.headers["Authorization"])
        return web.json_response({"metadata": {"name": "x"}})

    user = {"username": "me", "password": "s:cret"}
    async with connect(kubeconfig=kubeconfig(tmp_path / "k", server=await serve(handler), user=user)) as client:
        await client.get(Namespace, "x")
    assert seen == ["Basic bWU6czpjcmV0"]


async def test_settings_for_kubernetes_asyncio_see_renewed_tokens(tmp_path):
    (tmp_path / "token").write_text("first")
    path = kubeconfig(tmp_path / "k", user={"tokenFile": "token"})
    async with connect(kubeconfig=path) as client:
        configuration = client.transport.configuration
        assert isinstance(configuration, Configuration)
        assert configuration is client.transport.configuration
        assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer first"
        (tmp_path / "token").write_text("second")
        client.transport._credentials._due = 0
        assert await configuration.get_api_key_with_prefix("BearerToken") == "Bearer second"


@pytest.mark.parametrize("missing", ["token", "ca.crt", "port"])
async def test_cl_10_what_a_pod_lacks_is_named(tmp_path, monkeypatch, missing):
    (tmp_path / "token").write_text("" if missing == "token" else "t")
    (tmp_path / "ca.crt").write_text("" if missing == "ca.crt" else "c")
    monkeypatch.setattr("pyreconcile.client._config._ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "" if missing == "port" else "443"}
    with pytest.raises(ConfigError, match="KUBERNETES_SERVICE_PORT" if missing == "port" else missing):
        await load_config(ConnectOptions(), environ)


async def test_cl_10_a_pod_s_address_may_be_ipv6(tmp_path, monkeypatch):
    (tmp_path / "token").write_text("t\n")
    (tmp_path / "ca.crt").write_text("c")
    monkeypatch.setattr("pyreconcile.client._config._ACCOUNT", tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    loaded = await load_config(ConnectOptions(), environ)
    assert (loaded.configuration.host, loaded.source) == ("https://[fd00::1]:443", "service account")
    assert await loaded.configuration.get_api_key_with_prefix("BearerToken") == "Bearer t"


async def test_an_error_in_a_kubeconfigs_yaml_does_not_quote_it(tmp_path):
    path = tmp_path / "config"
    path.write_text('users:\n- name: me\n  user: {token: "secret\n')
    with pytest.raises(ConfigError, match=r"config is no YAML: .*in line \d, column \d") as caught:
        async with connect(kubeconfig=path):
            pass
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"
    assert caught.value.__cause__.__suppress_context__


async def test_the_file_of_a_token_goes_before_a_token(tmp_path):
    (tmp_path / "token").write_text("filed")
    path = kubeconfig(tmp_path / "k", user={"tokenFile": "token", "token": "written"})
    loaded = await load_config(ConnectOptions(kubeconfig=path), {})
    assert await loaded.configuration.get_api_key_with_prefix("BearerToken") == "Bearer filed"
    assert loaded.credentials is not None


@pytest.mark.parametrize("users", [[], [{"name": "other", "user": {"token": "t"}}]])
async def test_cl_10_a_user_that_a_context_names_must_be_there(tmp_path, users):
    content = yaml.safe_load(kubeconfig(tmp_path / "k").read_text())
    (tmp_path / "k").write_text(yaml.safe_dump({**content, "users": users}))
    with pytest.raises(ConfigError, match="there is no user with name main"):
        await load_config(ConnectOptions(kubeconfig=tmp_path / "k"), {})


class FailingLoader(Loader):
    """Its first load succeeds, those that follow fail."""

    def __init__(self, end=None):
        super().__init__(end)
        self.calls = 0

    async def load_and_set(self, configuration):
        self.calls += 1
        raise RuntimeError("the provider is down")


async def test_a_token_that_still_holds_is_used_when_its_early_renewal_fails():
    now = 0.0
    loader = FailingLoader(end=1000)
    credentials = Credentials(loader, Configuration(), by_expiry=True, clock=lambda: now)
    now = 700.0
    with structlog.testing.capture_logs() as logs:
        waiting = [credentials.refresh(None) for _ in range(3)]
        for each in waiting:
            await each
    assert [(log["event"], log["error"]) for log in logs] == [("credentials_not_renewed", "the provider is down")]
    assert loader.calls == 1
    assert credentials.refresh(None) is None
    now = 705.0
    await credentials.refresh(None)
    assert loader.calls == 2
    with pytest.raises(UnauthorizedError, match="provider is down"):  # a refused token does not hold
        await credentials.renew_refused(credentials.loads)
    now = 1000.0
    with pytest.raises(UnauthorizedError, match="provider is down"):
        await credentials.refresh(None)


async def test_a_token_file_that_cannot_be_read_any_more_leaves_the_token_in_use(tmp_path, serve):
    (tmp_path / "token").write_text("first")
    server = TokenServer("first")
    path = kubeconfig(tmp_path / "config", server=await serve(server), user={"tokenFile": "token"})
    async with connect(kubeconfig=path) as client:
        (tmp_path / "token").unlink()
        client.transport._credentials._due = 0
        await client.get(Namespace, "x")
    assert server.seen == ["Bearer first"]
