# SPDX-License-Identifier: BSD-3-Clause
"""Config: forms of values, precedence, defaults of the machine, errors."""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import pickle
import re
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import torchlms
from torchlms import settings
from torchlms.config import passed_fields
from torchlms.settings import resolve

GIB = 1 << 30
TOTAL_BYTES = 64 * GIB
FIXED_AT_FIRST_USE = (
    settings.device_total_bytes,
    settings.auto_budget_bytes,
    settings.default_disk_budget,
    settings.is_in_memory,
    settings._warn_disk_is_memory,
)


@pytest.fixture(autouse=True)
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A device of 64 GiB with 40 available and 1 held, and an environment without our variables."""
    for name in list(os.environ):
        if name.startswith("TORCHLMS_") or name in ("LOCAL_WORLD_SIZE", "TMPDIR"):
            monkeypatch.delenv(name)
    memory = {"total_bytes": TOTAL_BYTES, "available_bytes": 40 * GIB, "held_bytes": GIB}
    monkeypatch.setattr(settings._C, "device_memory", lambda device: memory)
    forget()
    yield
    forget()


def forget() -> None:
    for cached in FIXED_AT_FIRST_USE:
        cached.cache_clear()


def resolved(**fields: object) -> settings.Settings:
    return resolve(torchlms.Config(**fields))[0]


@pytest.mark.parametrize(
    ("budget", "size"),
    [
        ("20GiB", 20 * GIB),
        ("20 GB", 20 * 10**9),
        ("1.5gib", 3 * GIB // 2),
        (" 512 MiB ", 512 << 20),
        ("800kb", 800_000),
        (123_456_789, 123_456_789),
        ("123456789", 123_456_789),
        (0.5, TOTAL_BYTES // 2),
        ("0.5", TOTAL_BYTES // 2),
        (1.0, TOTAL_BYTES),
        (TOTAL_BYTES, TOTAL_BYTES),
        ("min", 0),
    ],
)
def test_each_form_of_a_budget_means_its_bytes(budget: object, size: int) -> None:
    assert resolved(budget=budget).budget_bytes == size


@pytest.mark.parametrize(
    "budget",
    [
        *("20 gigs", "20G", "20GiB/s", "", "auto!", "-20GiB", "0GiB", "1.01", b"20GiB"),
        *(-1, 0, 0.0, 1.5, -0.5, float("nan"), float("inf"), True, None, [20]),
    ],
)
def test_a_bad_budget_is_quoted_with_the_accepted_forms(budget: object) -> None:
    with pytest.raises(ValueError, match="fraction of the device") as error:
        torchlms.Config(budget=budget)
    assert f"budget={budget!r}" in str(error.value)
    assert '"auto"' in str(error.value)


def test_a_budget_above_the_device_is_refused_with_the_device_size() -> None:
    with pytest.raises(ValueError, match=f"more than the device has .{TOTAL_BYTES} bytes"):
        resolved(budget="65GiB")


def test_auto_is_what_is_held_and_a_share_of_what_is_available() -> None:
    assert resolved().budget_bytes == GIB + 36 * GIB


def test_auto_is_shared_by_the_processes_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert resolved(budget="auto").budget_bytes == GIB + 9 * GIB


def test_auto_is_fixed_at_first_use_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="torchlms"):
        first = resolved().budget_bytes
        later = {"total_bytes": TOTAL_BYTES, "available_bytes": GIB, "held_bytes": 0}
        monkeypatch.setattr(settings._C, "device_memory", lambda device: later)
        assert resolved().budget_bytes == first
    assert [record.message for record in caplog.records if "37.00 GiB" in record.message]


def test_a_bad_world_size_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "none")
    with pytest.raises(ValueError, match="LOCAL_WORLD_SIZE='none'"):
        resolved()


@pytest.mark.parametrize(
    ("field", "value", "meaning"),
    [
        ("link_limit", "400MB/s", 400e6),
        ("link_limit", "1 GiB / s", float(GIB)),
        ("link_limit", 2.5e8, 2.5e8),
        ("link_limit", None, 0.0),
        ("min_offload_bytes", 0, 0),
        ("min_offload_bytes", "64KiB", 65536),
        ("disk_budget", "10GB", 10**10),
        ("policy", "swap", "swap"),
        ("verify", True, True),
    ],
)
def test_each_other_field_reads_its_forms(field: str, value: object, meaning: object) -> None:
    assert getattr(resolved(**{field: value}), field) == meaning


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("policy", "fastest"),
        ("policy", None),
        ("link_limit", "400MB"),
        ("link_limit", "400Mbit/s"),
        ("link_limit", 0),
        ("link_limit", -5.0),
        ("min_offload_bytes", -1),
        ("min_offload_bytes", 0.5),
        ("min_offload_bytes", "small"),
        ("disk_budget", 0),
        ("disk_budget", "-1GB"),
        ("disk_path", ""),
        ("disk_path", 7),
        ("verify", "maybe"),
        ("verify", 2),
        ("progress", "sometimes"),
        ("plan", 7),
    ],
)
def test_a_bad_value_of_any_field_is_quoted(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")) as error:
        torchlms.Config(**{field: value})
    assert "Accepted:" in str(error.value)


@pytest.mark.parametrize("field", ["compression", "tier", "compress", "buget"])
def test_an_unknown_field_is_a_type_error(field: str) -> None:
    with pytest.raises(TypeError, match=field):
        torchlms.Config(**{field: 1})
    with pytest.raises(TypeError, match=field):
        torchlms.offload(**{field: 1})
    with pytest.raises(TypeError, match=field):
        torchlms.wrap(torch.nn.Linear(1, 1), **{field: 1})


def test_a_budget_passed_by_position_is_a_type_error_that_names_the_keyword() -> None:
    with pytest.raises(TypeError, match="budget='20GiB'"):
        torchlms.offload("20GiB")


def test_keyword_wins_over_config_and_config_over_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def minimum(config: torchlms.Config | None, **fields: object) -> int:
        scope = torchlms.offload(config, budget="min", **fields)
        return resolve(scope.config)[0].min_offload_bytes

    assert minimum(None) == 1 << 20
    monkeypatch.setenv("TORCHLMS_MIN_OFFLOAD_BYTES", "3KiB")
    assert minimum(None) == 3072
    assert minimum(torchlms.Config(verify=True)) == 3072
    assert minimum(torchlms.Config(min_offload_bytes=2)) == 2
    assert minimum(torchlms.Config(min_offload_bytes=1 << 20)) == 1 << 20
    assert minimum(torchlms.Config(min_offload_bytes=2), min_offload_bytes=1) == 1


@pytest.mark.parametrize(
    ("field", "text", "meaning"),
    [
        ("budget", "0.25", TOTAL_BYTES // 4),
        ("policy", "off", "off"),
        ("disk_budget", "1GB", 10**9),
        ("link_limit", "100MB/s", 1e8),
        ("link_limit", "none", 0.0),
        ("verify", "1", True),
        ("verify", "off", False),
    ],
)
def test_each_field_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, field: str, text: str, meaning: object
) -> None:
    monkeypatch.setenv(f"TORCHLMS_{field.upper()}", text)
    name = "budget_bytes" if field == "budget" else field
    assert getattr(resolved(), name) == meaning


def test_a_bad_value_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLMS_BUDGET", "20 gigs")
    with pytest.raises(ValueError, match="TORCHLMS_BUDGET='20 gigs'"):
        torchlms.offload()


def test_an_empty_variable_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHLMS_POLICY", "")
    assert resolved().policy == "auto"


def test_a_config_is_frozen_and_copies_keep_what_was_passed() -> None:
    config = torchlms.Config(budget="20GiB", policy="auto")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.budget = 1
    for twin in (copy.deepcopy(config), pickle.loads(pickle.dumps(config))):
        assert twin == config
        assert passed_fields(twin) == {"budget", "policy"}


def test_the_default_folder_is_tmpdir_unless_it_is_in_memory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(settings, "is_in_memory", lambda folder: False)
    assert resolved().disk_path == str(tmp_path)
    monkeypatch.setattr(settings, "is_in_memory", lambda folder: folder == str(tmp_path))
    assert resolved().disk_path == "/var/tmp"


def test_an_explicit_folder_in_memory_warns_once(tmp_path: Path) -> None:
    if not settings.is_in_memory("/dev/shm"):
        pytest.skip("this machine has no tmpfs at /dev/shm")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        resolved(disk_path="/dev/shm")
        resolved(disk_path="/dev/shm")
    assert len(caught) == 1
    assert "'/dev/shm' is in memory" in str(caught[0].message)


def test_the_default_disk_budget_is_a_share_of_what_is_free_fixed_at_first_use(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    free = {"bytes": 100 * GIB}
    usage = type("Usage", (), {"free": property(lambda self: free["bytes"])})()
    monkeypatch.setattr(settings.shutil, "disk_usage", lambda path: usage)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert resolved(disk_path=tmp_path).disk_budget == 40 * GIB
    free["bytes"] = 10 * GIB
    assert resolved(disk_path=tmp_path).disk_budget == 40 * GIB
    assert resolved(disk_path=tmp_path, disk_budget=7).disk_budget == 7
