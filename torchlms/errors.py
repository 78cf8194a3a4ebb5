# SPDX-License-Identifier: BSD-3-Clause
"""The exceptions that torchlms adds to PyTorch's."""

from __future__ import annotations

import re

import torch

_ERRNO_TEXT = re.compile(r"\[Errno (\d+)\] (.*)", re.DOTALL)


class BudgetError(torch.OutOfMemoryError):
    """The budget is too small for what the program asks; the text names the smallest that works.

    The text contains "out of memory." and, on a CPU, "DefaultCPUAllocator: can't allocate memory",
    which batch-size finders look for.
    """


class DiskError(OSError):
    """The disk tier failed; the text names the path, the bytes needed and the bytes free.

    Arguments are those of `OSError`, or one text "[Errno 28] No space left ...", from which
    `errno` and `strerror` are filled: C++ can raise with a text only.
    """

    def __init__(self, *args: object) -> None:
        text = args[0] if len(args) == 1 else None
        match = _ERRNO_TEXT.fullmatch(text) if isinstance(text, str) else None
        if match is None:
            super().__init__(*args)
        else:
            super().__init__(int(match[1]), match[2])
