"""What importing and connecting bring in."""

import subprocess
import sys

import pytest
import yaml

COUNT = "print(sorted(m for m in sys.modules if m.startswith('kubernetes')))"
CONNECT = f"""
import sys, anyio
from pyreconcile.client import connect
async def main():
    async with connect(kubeconfig=sys.argv[1]) as client:
        {COUNT}
        print(client.transport.configuration.host)
anyio.run(main)
"""


def run(code: str, *args: str) -> str:
    done = subprocess.run([sys.executable, "-c", code, *args], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_kubernetes_asyncio_is_not_imported_with_the_client():
    assert run(f"import sys, pyreconcile.client; {COUNT}") == "[]"


@pytest.mark.parametrize("user", [{"token": "t"}, {"username": "u", "password": "p"}, {}])
def test_kubernetes_asyncio_is_not_imported_to_connect_with_plain_credentials(tmp_path, user):
    path = tmp_path / "config"
    path.write_text(
        yaml.safe_dump(
            {
                "current-context": "main",
                "clusters": [{"name": "main", "cluster": {"server": "http://127.0.0.1:1"}}],
                "contexts": [{"name": "main", "context": {"cluster": "main", "user": "main"}}],
                "users": [{"name": "main", "user": user}],
            }
        )
    )
    assert run(CONNECT, str(path)).splitlines() == ["[]", "http://127.0.0.1:1"]
