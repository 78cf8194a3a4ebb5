# SPDX-License-Identifier: BSD-3-Clause
"""A session's disk that fails for a while: its file is put under a descriptor that may only be read, or
only be written."""

from __future__ import annotations

import contextlib
import fcntl
import os

ACCESS = {
    "write": os.O_RDONLY,
    "read": os.O_WRONLY,
}  # what fails, and how the file is open meanwhile


class DiskFault:
    """Fails the reads or the writes of all files that this process has open in a folder. Transfers that
    run when it begins or ends fail or do not."""

    def __init__(self, folder: str, what: str) -> None:
        self._folder = folder
        self._access = ACCESS[what]
        self._originals: list[tuple[int, int]] = []  # descriptor, a duplicate of what it was

    def begin(self) -> None:
        for name in os.listdir("/proc/self/fd"):
            path = f"/proc/self/fd/{name}"
            with contextlib.suppress(FileNotFoundError):  # closed since
                if os.readlink(path).startswith(self._folder):
                    self._replace(int(name), path)

    def end(self) -> None:
        for descriptor, original in self._originals:
            os.dup2(original, descriptor, inheritable=False)
            os.close(original)
        self._originals.clear()

    def _replace(self, descriptor: int, path: str) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT
        limited = os.open(path, self._access | flags | os.O_CLOEXEC)
        self._originals.append((descriptor, os.dup(descriptor)))
        os.dup2(limited, descriptor, inheritable=False)
        os.close(limited)
