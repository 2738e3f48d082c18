"""What importing the client brings in."""

import subprocess
import sys


def test_kubernetes_asyncio_is_imported_only_to_connect():
    code = "import sys, pyreconcile.client; print(sorted(m for m in sys.modules if m.startswith('kubernetes')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
