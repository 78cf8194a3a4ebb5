# SPDX-License-Identifier: BSD-3-Clause
"""One reader per Config field: a value in, its checked form out, ValueError for what it cannot be.

Every error quotes the value as it was given, the name under which it was given (a field or an
environment variable) and the accepted forms.
"""

from __future__ import annotations

import math
import numbers
import os
import re
from collections.abc import Callable
from typing import Any

import torch

from torchlms.plan_file import PlanFile
from torchlms.units import BYTE_UNITS, parse_bytes, parse_rate

POLICIES = ("auto", "swap", "recompute", "hybrid", "off")
BUDGET_FORMS = (
    f'bytes as an int or as text with a unit ("20GiB", "20 GB"; {BYTE_UNITS}), '
    'a fraction of the device as a float in (0, 1], "auto", or "min"'
)
_BYTES_FORMS = f'an int of bytes, or text with a unit ("512MiB", "20 GB"; {BYTE_UNITS})'
_RATE_FORMS = 'bytes per second as a number above 0, or text such as "400MB/s"'
_WORDS = {"1": True, "true": True, "yes": True, "on": True}
_WORDS |= {"0": False, "false": False, "no": False, "off": False}


def bad_value(name: str, value: object, why: str, forms: str) -> ValueError:
    return ValueError(f"torchlms: {name}={value!r} {why}. Accepted: {forms}")


def _number(value: object) -> int | float | None:
    """The int or finite float that `value` is or spells; None for anything else, bool included."""
    if isinstance(value, bool):
        return None
    if isinstance(value, numbers.Integral):
        return int(value)
    if not isinstance(value, (str, numbers.Real)):
        return None
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def read_budget(name: str, value: object) -> int | float | str:
    """ "auto", "min", an int of bytes, or a float fraction of the device."""
    if isinstance(value, str) and value.strip() in ("auto", "min"):
        return value.strip()
    size = parse_bytes(value) if isinstance(value, str) else None
    number = _number(value) if size is None else size
    if number is None:
        raise bad_value(name, value, "is not a budget", BUDGET_FORMS)
    if number <= 0:
        raise bad_value(name, value, "is not above zero", BUDGET_FORMS)
    if isinstance(number, float) and number > 1:
        raise bad_value(name, value, "is a fraction above 1.0 of the device", BUDGET_FORMS)
    return number


def read_bytes(name: str, value: object) -> int:
    """Bytes, zero allowed."""
    size = parse_bytes(value) if isinstance(value, str) else None
    number = _number(value) if size is None else size
    if not isinstance(number, int):
        raise bad_value(name, value, "is not a number of bytes", _BYTES_FORMS)
    if number < 0:
        raise bad_value(name, value, "is negative", _BYTES_FORMS)
    return number


def read_disk_budget(name: str, value: object) -> int | None:
    """Bytes above zero; None for a share of what is free."""
    size = None if value is None else read_bytes(name, value)
    if size == 0:
        raise bad_value(name, value, "leaves no room on the disk", _BYTES_FORMS)
    return size


def read_rate(name: str, value: object) -> float | None:
    """Bytes per second above zero; None for no limit."""
    if value is None:
        return None
    rate = parse_rate(value) if isinstance(value, str) else None
    number = _number(value) if rate is None else rate
    if number is None:
        raise bad_value(name, value, "is not a rate", _RATE_FORMS)
    if number <= 0:
        raise bad_value(name, value, "is not above zero", _RATE_FORMS)
    return float(number)


def read_policy_name(name: str, value: object) -> str:
    if value not in POLICIES:
        raise bad_value(name, value, "is not a policy", ", ".join(map(repr, POLICIES)))
    return str(value)


def read_policy(name: str, value: object) -> str | Callable[..., object]:
    if callable(value) and not isinstance(value, type):
        return value
    try:
        return read_policy_name(name, value)
    except ValueError:
        forms = f"{', '.join(map(repr, POLICIES))}, or a function (ctx, op, *args, **kwargs)"
        raise bad_value(name, value, "is not a policy", forms) from None


def read_bool(name: str, value: object) -> bool:
    word = _WORDS.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(word, bool):
        raise bad_value(name, value, "is neither true nor false", "True, False")
    return word


def read_optional_bool(name: str, value: object) -> bool | None:
    return None if value is None else read_bool(name, value)


def read_path(name: str, value: object) -> str | None:
    if value is None:
        return None
    path = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise bad_value(name, value, "is not a path", "a folder's path as str or os.PathLike")
    return path


def read_plan(name: str, value: object) -> str | PlanFile | None:
    """A loaded plan, or the path of one; the file is opened later, where it is needed."""
    if isinstance(value, PlanFile):
        return value
    try:
        return read_path(name, value)
    except ValueError:
        forms = "the path of a saved plan, or a torchlms.plan_file.PlanFile"
        raise bad_value(name, value, "is not a plan", forms) from None


def read_device(name: str, value: object) -> str | None:
    """ "cpu", "cuda" or "cuda:1"; None for wherever the program's tensors are."""
    if value is None:
        return None
    text = str(value) if isinstance(value, (str, torch.device)) else ""
    if not re.fullmatch(r"cpu|cuda(:\d+)?", text):
        forms = '"cpu", "cuda", "cuda:1", a torch.device, or None for where the tensors are'
        raise bad_value(name, value, "is not a device that torchlms knows", forms)
    return text


def read_host_budget(name: str, value: object) -> int | None:
    """Bytes, zero for no host tier; None for a share of what is free."""
    return None if value is None else read_bytes(name, value)


READERS: dict[str, Callable[[str, object], Any]] = {
    "budget": read_budget,
    "policy": read_policy,
    "device": read_device,
    "host_budget": read_host_budget,
    "pin_memory": read_bool,
    "disk_path": read_path,
    "disk_budget": read_disk_budget,
    "link_limit": read_rate,
    "min_offload_bytes": read_bytes,
    "verify": read_bool,
    "progress": read_optional_bool,
    "plan": read_plan,
}
