"""An API server as drivers and judges reach it: plain requests, with nothing of pyreconcile's own client between.

So a fault or a gain of that client cannot hide in what they measure or judge.
"""

from __future__ import annotations

import base64
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import aiohttp
import anyio
import orjson
import yaml

JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"


class RefusedError(Exception):
    """The API server did not do what was asked.

    Attributes:
        code: the HTTP status of its answer.
    """

    def __init__(self, asked: str, code: int, text: bytes) -> None:
        super().__init__(f"{asked}: {code} {text[:500].decode(errors='replace')}")
        self.code = code


@dataclass(frozen=True)
class RawServer:
    """Requests to one API server."""

    url: str
    session: aiohttp.ClientSession

    @classmethod
    @asynccontextmanager
    async def connect(cls, kubeconfig: Path, *, url: str = "") -> AsyncIterator[Self]:
        """Connect with the client certificate of a kubeconfig while the block runs.

        Args:
            kubeconfig: with one cluster and one user.
            url: of the API server, if not the one in the kubeconfig.
        """
        config = yaml.safe_load(await anyio.Path(kubeconfig).read_text())
        cluster, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
        context = ssl.create_default_context(cadata=_material(cluster, "certificate-authority"))
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as pair:
            pair.write(_material(user, "client-certificate") + "\n" + _material(user, "client-key"))
            pair.flush()
            context.load_cert_chain(pair.name)
        connector = aiohttp.TCPConnector(ssl=context, limit=0)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
            yield cls(url or cluster["server"], session)

    async def call(self, method: str, path: str, body: object = None, *, content_type: str = JSON) -> Any:
        """Send a request and return the parsed answer.

        Args:
            method: the HTTP method.
            path: of the URL, from its slash on.
            body: bytes as they are; anything else as JSON.
            content_type: of the body.

        Raises:
            RefusedError: the answer is not a success.
        """
        data = body if isinstance(body, bytes | None) else orjson.dumps(body)
        headers = {"Content-Type": content_type}
        async with self.session.request(method, self.url + path, data=data, headers=headers) as answer:
            await _check(answer)
            return orjson.loads(await answer.read())

    @asynccontextmanager
    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch, and give an iterator over its lines, which ends when the server ends the answer.

        Raises:
            RefusedError: the answer is not a success.
        """
        async with self.session.get(self.url + path, params=query) as answer:
            await _check(answer)
            yield _split(answer.content)


async def _check(answer: aiohttp.ClientResponse) -> None:
    if answer.status >= 300:
        raise RefusedError(f"{answer.method} {answer.url.path}", answer.status, await answer.read())


async def _split(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line


def _material(entry: Mapping[str, str], key: str) -> str:
    if path := entry.get(key):
        return Path(path).read_text()
    return base64.b64decode(entry[f"{key}-data"]).decode()
