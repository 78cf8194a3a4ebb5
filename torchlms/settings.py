# SPDX-License-Identifier: BSD-3-Clause
"""What a Config means on this machine: every default filled in, every quantity in bytes."""

from __future__ import annotations

import dataclasses
import functools
import logging
import os
import shutil
import warnings

from torchlms import _C, devices
from torchlms.config import Config, PolicyFn, read_fields
from torchlms.errors import DiskError
from torchlms.fields import BUDGET_FORMS, bad_value
from torchlms.plan_file import PlanFile
from torchlms.units import format_bytes, format_rate

AUTO_SHARE = 0.9
DISK_SHARE = 0.8
HOST_SHARE = 0.8
_MEMORY_FILE_SYSTEMS = {"tmpfs", "ramfs"}
_logger = logging.getLogger("torchlms")


@dataclasses.dataclass(frozen=True)
class Settings:
    """A resolved Config; equal settings share one session."""

    budget_bytes: int
    """0 for "min"."""
    policy: str
    policy_fn: PolicyFn | None
    """Binds the policy."""
    device: str
    host_budget: int
    """0 on a CPU."""
    pin_memory: bool
    disk_path: str
    """Empty for no disk tier."""
    disk_budget: int
    link_limit: float
    """Bytes per second and direction; 0 for no limit."""
    min_offload_bytes: int
    verify: bool
    plan: PlanFile | None

    def __str__(self) -> str:
        budget = f"{self.budget_bytes} bytes" if self.budget_bytes else "min"
        name = getattr(self.policy_fn, "__qualname__", repr(self.policy_fn))
        parts = [f"budget={budget}", f"policy={name if self.policy_fn else self.policy}"]
        if self.device != "cpu":
            parts += [f"device={self.device}", f"host_budget={format_bytes(self.host_budget)}"]
            parts += [] if self.pin_memory else ["pin_memory=False"]
        if self.link_limit:
            parts.append(f"link_limit={format_rate(self.link_limit)}")
        if self.disk_path:
            parts += [
                f"disk_path={self.disk_path}",
                f"disk_budget={format_bytes(self.disk_budget)}",
            ]
        parts += [f"min_offload_bytes={self.min_offload_bytes}"]
        parts += ["verify=True"] if self.verify else []
        parts += ["a loaded plan"] if self.plan else []
        return ", ".join(parts)


def resolve(config: Config, device: str | None = None) -> tuple[Settings, bool | None]:
    """The settings that `config` and the environment mean here, and whether to show progress.

    Args:
        device: where the tensors are, for a config that leaves it open; None: `devices.current()`.

    Raises:
        ValueError: a bad value in the environment, a budget above the device's size, a plan file
            that is damaged.
        OSError: a disk folder or plan file that cannot be used.
    """
    values, chosen = read_fields(config)
    plan = values["plan"]
    if isinstance(plan, str):
        plan = load_plan(plan)
    budget = values["budget"]
    if plan is not None and "budget" not in chosen:
        budget = plan.budget_bytes or "min"
    chosen_device = values["device"]
    device = devices.named(chosen_device) if chosen_device else device or devices.current()
    disk_path = values["disk_path"]
    if disk_path is None:
        disk_path = default_disk_path() if device == "cpu" else ""
    elif is_in_memory(disk_path):
        _warn_disk_is_memory(disk_path)
    policy = values["policy"]
    policy_fn = policy if callable(policy) else None
    settings = Settings(
        budget_bytes=budget_bytes(budget, device),
        policy="auto" if policy_fn else policy,
        policy_fn=policy_fn,
        device=device,
        host_budget=host_budget_bytes(values["host_budget"], device),
        pin_memory=values["pin_memory"],
        disk_path=disk_path,
        disk_budget=(values["disk_budget"] or default_disk_budget(disk_path)) if disk_path else 0,
        link_limit=values["link_limit"] or 0.0,
        min_offload_bytes=values["min_offload_bytes"],
        verify=values["verify"],
        plan=plan,
    )
    return settings, values["progress"]


def host_budget_bytes(host_budget: int | None, device: str) -> int:
    """What a checked host_budget means on this machine."""
    if device == "cpu":
        return 0
    return default_host_budget() if host_budget is None else host_budget


@functools.cache
def default_host_budget() -> int:
    available = int(_C.device_memory("cpu")["available_bytes"])
    return int(HOST_SHARE * available / processes_on_this_machine())


def budget_bytes(budget: int | float | str, device: str = "cpu") -> int:
    """What a checked budget means on this machine; 0 for "min".

    Raises:
        ValueError: it is more than the device has.
    """
    if budget == "min":
        return 0
    if budget == "auto":
        return auto_budget_bytes(device)
    total = device_total_bytes(device)
    if isinstance(budget, float):
        return max(1, int(budget * total))
    size = int(budget)
    if size > total:
        why = f"is more than the device has ({total} bytes, {format_bytes(total)})"
        raise bad_value("budget", budget, why, BUDGET_FORMS)
    return size


def processes_on_this_machine() -> int:
    """LOCAL_WORLD_SIZE as the launcher set it, 1 without a launcher."""
    text = os.environ.get("LOCAL_WORLD_SIZE", "1")
    if not text.isdecimal() or int(text) < 1:
        raise bad_value("LOCAL_WORLD_SIZE", text, "is not a number of processes", "1, 2, ...")
    return int(text)


@functools.cache
def device_total_bytes(device: str = "cpu") -> int:
    return int(_C.device_memory(device)["total_bytes"])


@functools.cache
def auto_budget_bytes(device: str = "cpu") -> int:
    """ "auto": what this process holds already, and its share of what is available now. Fixed at
    first use, so that an `offload(...)` made again later has equal settings."""
    memory = _C.device_memory(device)
    sharers = processes_on_this_machine() if device == "cpu" else 1  # each process has its own GPU
    share = AUTO_SHARE * memory["available_bytes"] / sharers
    budget = min(int(memory["held_bytes"] + share), int(memory["total_bytes"]))
    _logger.info(
        "budget 'auto' is %s (held %s, available %s, processes on this machine %d)",
        format_bytes(budget),
        format_bytes(memory["held_bytes"]),
        format_bytes(memory["available_bytes"]),
        sharers,
    )
    return budget


@functools.cache
def default_disk_budget(disk_path: str) -> int:
    """This process's share of what the folder's file system has free, fixed at first use: later
    the swap file itself would shrink it."""
    try:
        free = shutil.disk_usage(disk_path).free
    except OSError as error:
        raise DiskError(
            error.errno, f"torchlms: cannot use disk_path={disk_path!r}: {error.strerror}"
        ) from error
    return int(DISK_SHARE * free / processes_on_this_machine())


def default_disk_path() -> str:
    """$TMPDIR or /tmp, unless that is in memory, then /var/tmp."""
    folder = os.environ.get("TMPDIR") or "/tmp"
    return "/var/tmp" if is_in_memory(folder) else folder


@functools.cache
def is_in_memory(folder: str) -> bool:
    """Whether the folder's file system is RAM. False for a folder that cannot be looked at."""
    try:
        device = os.stat(folder).st_dev
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
            lines = mounts.read().splitlines()
    except OSError:
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in lines:
        mount, _, source = line.partition(" - ")
        if mount.split(" ", 3)[2] == number:
            return source.split(" ", 1)[0] in _MEMORY_FILE_SYSTEMS
    return False


@functools.cache
def _warn_disk_is_memory(disk_path: str) -> None:
    warnings.warn(
        f"torchlms: disk_path={disk_path!r} is in memory (tmpfs): "
        "what is swapped there still takes RAM",
        stacklevel=2,
    )


def load_plan(path: str) -> PlanFile:
    """The plan in the file, read again only when the file has changed."""
    status = os.stat(path)
    return _load_plan(os.path.abspath(path), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=8)
def _load_plan(path: str, _modified_ns: int, _size_bytes: int) -> PlanFile:
    return PlanFile.load(path)
