"""Files for libraries that read from files only, such as `ssl`."""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from types import TracebackType
from typing import Self


class HeldFile:
    """Content under a path, for this user alone, until it is closed.

    On Linux it is in memory: nothing is left on a disk when the process is killed, and all disks may be read-only.
    Elsewhere it is a temporary file. The path holds in this process and those forked from it.

    Args:
        content: what the file has in it.

    Raises:
        OSError: there is neither memory for it nor a folder for temporary files.
    """

    __slots__ = ("_descriptor", "path")

    def __init__(self, content: bytes) -> None:
        self._descriptor = -1
        if hasattr(os, "memfd_create"):
            with suppress(OSError):  # an old kernel, or one that forbids it
                self._descriptor = os.memfd_create("pyreconcile")
        self.path = f"/proc/self/fd/{self._descriptor}"
        descriptor = self._descriptor
        if descriptor < 0 or not os.path.exists(self.path):
            self.close()
            descriptor, self.path = tempfile.mkstemp(prefix="pyreconcile-")
        try:
            with open(descriptor, "wb", closefd=self._descriptor < 0) as file:
                file.write(content)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the memory free, or remove the temporary file; the path is good for nothing then."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
        elif not self.path.startswith("/proc/self/fd/"):
            with suppress(OSError):
                os.remove(self.path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
