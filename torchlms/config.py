# SPDX-License-Identifier: BSD-3-Clause
"""What the user asks for: the Config, and how keyword, Config, environment and default combine."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypedDict, cast

import torch
from torch.utils.checkpoint import CheckpointPolicy

from torchlms.fields import READERS
from torchlms.plan_file import PlanFile

PolicyFn = Callable[..., CheckpointPolicy | bool]
Policy = Literal["auto", "swap", "recompute", "hybrid", "off"]
PathLike = str | os.PathLike[str]


class Fields(TypedDict, total=False):
    """The keywords of `offload` and `wrap`: every field of Config, none required."""

    budget: int | float | str
    policy: Policy | PolicyFn
    device: str | torch.device | None
    host_budget: int | str | None
    pin_memory: bool
    disk_path: PathLike | None
    disk_budget: int | str | None
    link_limit: int | float | str | None
    min_offload_bytes: int | str
    verify: bool
    progress: bool | None
    plan: PathLike | PlanFile | None


@dataclasses.dataclass(frozen=True)
class Config:
    """Settings of a session. Every field is also a keyword of `offload` and `wrap`, and an
    environment variable `TORCHLMS_<FIELD>`; keyword wins over Config, Config over environment.

    A field that was not passed to the constructor leaves the choice to the environment.
    `dataclasses.replace` passes all of them.

    Raises:
        ValueError: a value that its field cannot have, quoted with the accepted forms.
        TypeError: an unknown field.
    """

    budget: int | float | str = "auto"
    """Bytes that tensors may hold on the device: an int, text ("20GiB", "20 GB"), a float fraction
    of the device in (0, 1], "auto" (what is held, and 0.9 of what is available at first use shared
    by the processes of this machine), or "min" (as little as possible). Lower: more traffic."""
    policy: Policy | PolicyFn = "auto"
    """"auto" (the best plan). Single ways to make one: "swap" (copy to the slower tier),
    "recompute" (run again, and copy only what cannot be), "hybrid" (copy, and turn to running
    again by decreasing swap volume). "off": moves nothing, only counts. Or a function as selective
    checkpointing takes it, `policy_fn(ctx, op, *args, **kwargs) -> CheckpointPolicy`, asked about
    every differentiable op of the forward pass: its MUST_* answers bind "auto" (MUST_SAVE: never
    run again; MUST_RECOMPUTE: run again; MUST_CPU_OFFLOAD: copied), its PREFER_* ones do not."""
    device: str | torch.device | None = None
    """The device whose memory is bounded: "cpu", "cuda", "cuda:1". None: that of a wrapped module's
    parameters; for `offload`, the current GPU once the process uses CUDA, else the CPU."""
    host_budget: int | str | None = None
    """Bytes of host memory that copies from a GPU may take. None: 0.8 of what is free at first use,
    shared by the processes of this machine. Lower: more goes to the disk, or stays."""
    pin_memory: bool = True
    """Page-locked host memory, which a GPU copies from and to fastest; pageable memory, with one
    warning, where the system gives no more of it."""
    disk_path: PathLike | None = None
    """Folder of the disk tier. None: $TMPDIR or /tmp, unless that is in memory, then /var/tmp; for
    a GPU: no disk tier."""
    disk_budget: int | str | None = None
    """Bytes that copies may take on the disk. None: 0.8 of what is free at first use, shared by
    the processes of this machine."""
    link_limit: int | float | str | None = None
    """Bytes per second and direction that swapping may use ("400MB/s"). None: no limit."""
    min_offload_bytes: int | str = 1 << 20
    """Smaller storages are never moved. Lower reaches smaller budgets at more overhead."""
    verify: bool = False
    """Check each storage that comes back against a checksum taken when it left. Costs time."""
    progress: bool | None = None
    """Progress line on stderr while recording and planning. None: on a terminal, on rank 0."""
    plan: PathLike | PlanFile | None = None
    """A saved plan to start from, as a path or loaded; its budget is used where none is given."""

    def __new__(cls, *args: object, **fields: object) -> Config:
        # Which fields were passed is part of the value: the environment decides about the others.
        config = super().__new__(cls)
        names = [field.name for field in dataclasses.fields(cls)]
        object.__setattr__(config, "_passed", frozenset([*names[: len(args)], *fields]))
        return config

    def __post_init__(self) -> None:
        for name in passed_fields(self):
            READERS[name](name, getattr(self, name))


def passed_fields(config: Config) -> frozenset[str]:
    """Names of the fields that the constructor was given."""
    return cast("frozenset[str]", vars(config)["_passed"])


def combine(caller: str, config: Config | None, fields: Mapping[str, Any]) -> Config:
    """The Config of `caller`'s arguments: keywords over Config; the environment not yet read."""
    if config is not None and not isinstance(config, Config):
        raise TypeError(
            f"torchlms.{caller}: expected a torchlms.Config, got {config!r}; "
            f"fields are passed by name, such as budget={config!r}"
        )
    for name in fields:
        if name not in READERS:
            raise TypeError(
                f"torchlms.{caller} got an unknown keyword {name!r}; it takes {', '.join(READERS)}"
            )
    if config is not None:
        fields = {name: getattr(config, name) for name in passed_fields(config)} | dict(fields)
    return Config(**fields)


def read_fields(config: Config) -> tuple[dict[str, Any], frozenset[str]]:
    """Each field's checked form, the environment taken in, and the names that have been chosen
    by anyone. An empty variable is no choice; "none" stands for None."""
    values, chosen = {}, set(passed_fields(config))
    for name, read in READERS.items():
        variable = f"TORCHLMS_{name.upper()}"
        text = os.environ.get(variable, "") if name not in chosen else ""
        if text:
            chosen.add(name)
            values[name] = read(variable, None if text.lower() == "none" else text)
        else:
            values[name] = read(name, getattr(config, name))
    return values, frozenset(chosen)
