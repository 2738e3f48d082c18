"""Connection settings that need no helper program, read without kubernetes_asyncio.

Importing kubernetes_asyncio takes 0.3 s and 35 MiB, since it loads a class for every API type. What most processes
have is a certificate, a token, or a pod's service account; that much is read here. Exec plugins and auth providers are
its business, see `_config`.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import os
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from inspect import isawaitable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from pyreconcile._files import HeldFile

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_BEARER = "BearerToken"


class PlainSettings:
    """Where the server is, and who we are; it has the attributes of kubernetes_asyncio's ``Configuration`` in use."""

    def __init__(self, host: str) -> None:
        self.host: str | None = host
        self.ssl_ca_cert: str | None = None
        self.cert_file: str | None = None
        self.key_file: str | None = None
        self.verify_ssl = True
        self.disable_strict_ssl_verification = False
        self.tls_server_name: str | None = None
        self.proxy: str | None = None
        self.proxy_headers: dict[str, str] | None = None
        self.api_key: dict[str, str] = {}
        self.refresh_api_key_hook: Callable[[Any], Awaitable[None] | None] | None = None

    async def get_api_key_with_prefix(self, identifier: str) -> str | None:
        """Return the token to send, after renewing it when it is due."""
        if self.refresh_api_key_hook is not None and isawaitable(renewing := self.refresh_api_key_hook(self)):
            await renewing
        return self.api_key.get(identifier)

    def for_kubernetes_asyncio(self) -> Configuration:
        """Return the same settings for that library's own API classes."""
        from kubernetes_asyncio.client import Configuration

        configuration: Any = Configuration()
        for name, value in vars(self).items():
            setattr(configuration, name, value)
        configuration.api_key = self.api_key  # the same table, so that renewed tokens are seen
        return configuration  # type: ignore[no-any-return]


class TokenFile:
    """Takes the token from a file; one that changes is read again by `Credentials`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def load_and_set(self, configuration: Any) -> None:
        """Put the token into the settings.

        Raises:
            OSError, ValueError: there is none.
        """
        self.load(configuration)

    def load(self, configuration: Any) -> None:
        """As `load_and_set`."""
        token = self._path.read_text().strip()
        if not token:
            raise ValueError(f"{self._path} is empty")
        configuration.api_key[_BEARER] = f"Bearer {token}"


def account_settings(folder: Path, environ: Mapping[str, str]) -> tuple[PlainSettings, TokenFile]:
    """Return the settings of the pod that this process runs in.

    Raises:
        OSError, ValueError: something is missing; the message names it.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not (host and port):
        raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT must both be set")
    settings = PlainSettings(f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")
    authority = folder / "ca.crt"
    if not authority.read_text().strip():
        raise ValueError(f"{authority} is empty")
    settings.ssl_ca_cert = str(authority)
    token = TokenFile(folder / "token")
    token.load(settings)
    return settings, token


class KubeConfig:
    """Kubeconfig files as kubectl merges them: the first that has a name, or names a context, decides.

    Raises:
        ValueError: a file is no YAML or no kubeconfig, or no context is chosen.
        OSError: a file cannot be read.
    """

    def __init__(self, paths: Sequence[Path], context: str | None) -> None:
        self._entries: dict[str, dict[str, tuple[Any, Path]]] = {"contexts": {}, "clusters": {}, "users": {}}
        current = ""
        for path in paths:
            content = _yaml(path)
            if not isinstance(content, dict):
                raise ValueError(f"{path} is no kubeconfig: its top level must be a mapping")
            current = current or str(content.get("current-context") or "")
            for section, known in self._entries.items():
                for item in content.get(section) or ():
                    known.setdefault(str(item["name"]), (item.get(section[:-1]) or {}, path.parent))
        self.context = context or current
        if not self.context:
            raise ValueError("no current-context is set: set one, or pass context=")
        self._chosen, _ = self._entry("contexts", self.context)

    @property
    def user(self) -> Mapping[str, Any]:
        """The entry of the user, empty when the context names none.

        Raises:
            ValueError: the context names one that there is not.
        """
        return self._user()[0]

    def _user(self) -> tuple[Mapping[str, Any], Path]:
        name = self._chosen.get("user")
        return self._entry("users", name) if name else ({}, Path())

    def settings(self) -> tuple[PlainSettings, TokenFile | None]:
        """Return the settings, for a user without exec plugin and auth provider, and the file of its token.

        Raises:
            OSError, ValueError: a file is missing, or a value is not what it should be; the message says which.
        """
        cluster, folder = self._entry("clusters", self._chosen.get("cluster") or "")
        server = cluster.get("server")
        if not server:
            raise ValueError(f"cluster with name {self._chosen.get('cluster')} has no server")
        settings = PlainSettings(str(server).rstrip("/"))
        settings.verify_ssl = not cluster.get("insecure-skip-tls-verify")
        settings.tls_server_name = cluster.get("tls-server-name")
        settings.proxy = cluster.get("proxy-url")
        settings.ssl_ca_cert = _file(cluster, "certificate-authority", folder)
        user, folder = self._user()
        settings.cert_file = _file(user, "client-certificate", folder)
        settings.key_file = _file(user, "client-key", folder)
        token = None
        if user.get("tokenFile"):  # before the token, as in client-go
            token = TokenFile(folder / user["tokenFile"])
            token.load(settings)
        elif user.get("token"):
            settings.api_key[_BEARER] = f"Bearer {user['token']}"
        elif user.get("username") and user.get("password"):
            login = f"{user['username']}:{user['password']}".encode()
            settings.api_key[_BEARER] = f"Basic {base64.b64encode(login).decode()}"
        return settings, token

    def _entry(self, section: str, name: str) -> tuple[Any, Path]:
        found = self._entries[section].get(name)
        if found is None:
            known = ", ".join(sorted(self._entries[section])) or "none"
            raise ValueError(f"there is no {section[:-1]} with name {name} (known: {known})")
        return found


def _yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text())
    except yaml.MarkedYAMLError as error:
        # The error's own text quotes the file, which holds tokens and keys.
        mark = error.problem_mark
        where = "" if mark is None else f" in line {mark.line + 1}, column {mark.column + 1}"
        raise ValueError(f"{path} is no YAML: {error.problem}{where}") from None


def _file(entry: Mapping[str, Any], name: str, folder: Path) -> str | None:
    """Return the path of what an entry names as a file, or holds itself as base64."""
    data = entry.get(f"{name}-data")
    if data:
        try:
            return _held(base64.b64decode(str(data), validate=True))
        except binascii.Error as error:
            raise ValueError(f"{name}-data is no base64: {error}") from None
    if not entry.get(name):
        return None
    path = folder / str(entry[name])
    if not path.is_file():
        raise ValueError(f"{name}: there is no file {path}")
    return str(path)


_HELD: dict[bytes, HeldFile] = {}
_HELD_LOCK = threading.Lock()  # the elector reads settings on a thread of its own


def _held(content: bytes) -> str:
    # Python's ssl takes certificates and keys from files only. They are this user's alone, and go with the process.
    with _HELD_LOCK:
        file = _HELD.get(content)
        if file is None or not os.path.exists(file.path):
            if not _HELD:
                atexit.register(_release_held)
            file = _HELD[content] = HeldFile(content)
        return file.path


def _release_held() -> None:
    with _HELD_LOCK:
        for file in _HELD.values():
            file.close()
        _HELD.clear()
