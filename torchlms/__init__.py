# SPDX-License-Identifier: BSD-3-Clause
"""Large model support for PyTorch: a training step inside a memory budget, with equal gradients.

Example::

    lms = torchlms.offload(budget="20GiB")
    with lms:
        loss = criterion(model(x), y)
    loss.backward()
"""

import logging as _logging

from torchlms import _build

_build.check()  # before _C: a wrong torch must be told in words, not as an undefined symbol

from torchlms import _C  # noqa: E402
from torchlms._version import __version__  # noqa: E402
from torchlms.api import (  # noqa: E402
    disabled,
    keep,
    offload,
    recomputable,
    report,
    step_boundary,
    trace,
)
from torchlms.cmake import cmake_prefix_path  # noqa: E402
from torchlms.config import Config  # noqa: E402
from torchlms.dry_run import dry_run  # noqa: E402
from torchlms.errors import BudgetError, DiskError  # noqa: E402
from torchlms.wrap import unwrap, wrap  # noqa: E402

__all__ = [
    "BudgetError",
    "Config",
    "DiskError",
    "__version__",
    "cmake_prefix_path",
    "disabled",
    "dry_run",
    "keep",
    "offload",
    "recomputable",
    "report",
    "step_boundary",
    "trace",
    "unwrap",
    "wrap",
]

_logger = _logging.getLogger("torchlms")
_logger.addHandler(_logging.NullHandler())
_C.set_log(_logger.log)
_C.set_error_types(DiskError, BudgetError)
_C.install()
