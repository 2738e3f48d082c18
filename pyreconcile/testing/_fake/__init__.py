"""An API server in memory, and its client (rules TE-8 to TE-10)."""

from pyreconcile.testing._fake._client import FakeClient, fake_client
from pyreconcile.testing._fake._kinds import UntypedKind
from pyreconcile.testing._fake._server import FakeServer

__all__ = ["FakeClient", "FakeServer", "UntypedKind", "fake_client"]
