"""Which proxy is used, and what errors say of it."""

from __future__ import annotations

from urllib.parse import urlsplit

import pytest
from kubernetes_asyncio.client import Configuration

from pyreconcile.client import ConfigError, connect
from pyreconcile.client._proxy import goes_direct, proxy_for


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """No proxy from outside."""
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "REQUEST_METHOD"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    return monkeypatch


def chosen(url, named=None):
    proxy, headers = proxy_for(urlsplit(url), named, None)
    assert headers == {}
    return None if proxy is None else proxy.geturl()


def test_the_environment_names_a_proxy_by_scheme_and_never_for_this_machine(environment):
    environment.setenv("HTTPS_PROXY", "proxy.test:3128")
    environment.setenv("http_proxy", "http://plain.test")
    assert chosen("https://server.test:6443") == "http://proxy.test:3128"
    assert chosen("http://server.test") == "http://plain.test"
    for host in ("localhost", "LOCALHOST:6443", "127.0.0.1:6443", "127.1.2.3", "[::1]:6443"):
        assert chosen(f"https://{host}") is None
        assert chosen(f"https://{host}", "http://named.test") == "http://named.test"
    environment.setenv("NO_PROXY", "other.test, server.test:6443")
    assert chosen("https://server.test:6443") is None
    assert chosen("https://server.test") == "http://proxy.test:3128"
    assert chosen("https://server.test:6443", "http://named.test") == "http://named.test"


@pytest.mark.parametrize(
    ("no_proxy", "direct"),
    [
        ("", set()),
        ("*", {"a.test", "b.a.test", "10.1.2.3", "fd00::7"}),
        ("a.test", {"a.test", "b.a.test"}),
        ("A.test ,", {"a.test", "b.a.test"}),
        (".a.test", {"b.a.test"}),
        ("*.a.test", {"b.a.test"}),
        ("test", {"a.test", "b.a.test"}),
        ("est", set()),
        ("10.0.0.0/8", {"10.1.2.3"}),
        ("10.1.2.99/24, fd00::/16", {"10.1.2.3", "fd00::7"}),
        ("10.0.0.0/99,10.2.0.0/16", set()),
        ("10.1.2.3", {"10.1.2.3"}),
        ("10.1.2.3:6443,a.test:6443", {"10.1.2.3", "a.test", "b.a.test"}),
        ("10.1.2.3:443,a.test:443", set()),
        ("[fd00::7]:6443", {"fd00::7"}),
        ("[fd00::7]", {"fd00::7"}),
        ("fd00:0::7", {"fd00::7"}),
        ("[fd00::7]:443", set()),
        (":6443", set()),
    ],
)
def test_no_proxy_takes_names_addresses_networks_and_ports(no_proxy, direct):
    hosts = ("a.test", "b.a.test", "10.1.2.3", "fd00::7")
    assert {host for host in hosts if goes_direct(host, 6443, no_proxy)} == direct


@pytest.mark.parametrize(
    ("proxy", "said"),
    [
        ("socks5://me:secret@proxy.test:1080", "proxy socks5://proxy.test: only http"),
        ("http://me:secret/part@proxy.test", "malformed"),
        ("http://me:secret@[proxy.test", "malformed"),
        ("http://me:secret@", "proxy http://: only"),
    ],
)
async def test_the_password_of_a_proxy_is_in_no_error(proxy, said):
    settings = Configuration(host="https://server.test")
    settings.proxy = proxy
    with pytest.raises(ConfigError, match=said) as caught:
        async with connect(configuration=settings):
            pass
    assert "secret" not in f"{caught.value}{caught.value.__cause__}"
    assert caught.value.__cause__.__suppress_context__ or caught.value.__cause__.__context__ is None
