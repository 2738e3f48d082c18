"""Which proxy leads to the server: the settings' own, or the environment's by the rules that Go programs keep."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass


def proxy_for(
    server: SplitResult, named: str | None, headers: Mapping[str, str] | None
) -> tuple[SplitResult | None, dict[str, str]]:
    """Return the proxy to use, or None, and the headers for it.

    Args:
        server: the URL of the server.
        named: the proxy that the settings name; without one the environment decides.
        headers: what the settings want the proxy to be sent.

    Raises:
        ValueError: it cannot be used; the message leaves user and password out.
    """
    sent = dict(headers or {})
    text = named or _of_environment(server)
    if not text:
        return None, sent
    try:
        url = urlsplit(text)
        _ = url.port
    except ValueError:  # its text would quote what may be a password
        raise ValueError("proxy: its URL is malformed; write it as http://name:port") from None
    if url.scheme not in ("http", "https") or not url.hostname:
        shown = f"{url.scheme}://{url.hostname or ''}"
        raise ValueError(f"proxy {shown}: only http:// and https:// proxies can be used")
    if url.username:
        login = f"{unquote(url.username)}:{unquote(url.password or '')}".encode()
        sent.setdefault("Proxy-Authorization", f"Basic {base64.b64encode(login).decode()}")
    return url, sent


def _of_environment(server: SplitResult) -> str | None:
    proxies = getproxies()
    text = proxies.get(server.scheme)
    host = (server.hostname or "").rstrip(".")
    if not text or _is_local(host):
        return None
    port = server.port or (443 if server.scheme == "https" else 80)
    if "no" in proxies:
        if goes_direct(host, port, proxies["no"]):
            return None
    elif proxy_bypass(host):  # what the system's own settings leave out
        return None
    return text if "://" in text else f"http://{text}"


def goes_direct(host: str, port: int, no_proxy: str) -> bool:
    """Tell whether NO_PROXY leaves a host out.

    Its entries, between commas, are names (with all that is below them; only that after a leading ``.`` or ``*.``),
    addresses and networks, each but networks also with a port, or ``*`` (golang.org/x/net/http/httpproxy).

    Args:
        host: name or address in lower case.
        port: port of the server.
        no_proxy: the variable's value.
    """
    address = _address(host)
    for entry in no_proxy.lower().split(","):
        name = entry.strip()
        if name == "*":
            return True
        if "/" in name:
            if address is not None and _is_within(address, name):
                return True
            continue
        name, wanted = _with_port(name)
        if not name or wanted not in ("", str(port)):
            continue
        if (literal := _address(name)) is not None:
            if literal == address:
                return True
            continue
        name = name.removeprefix("*")
        if name.startswith("."):
            if host.endswith(name):
                return True
        elif host == name or host.endswith(f".{name}"):
            return True
    return False


def _with_port(entry: str) -> tuple[str, str]:
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    if entry.count(":") == 1:
        name, _, port = entry.partition(":")
        return name, port
    return entry, ""


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _is_local(host: str) -> bool:
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_within(address: ipaddress.IPv4Address | ipaddress.IPv6Address, network: str) -> bool:
    try:
        return address in ipaddress.ip_network(network, strict=False)
    except ValueError:
        return False
