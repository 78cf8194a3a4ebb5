# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: no file is ever seen or left, and a disk that fails is an error that loses nothing."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import children
import torchlms
from children import MIB, Child, losses_and_gradients
from training import SMALLEST, has_hooks, held_bytes, left_bytes, scopes, settle


def open_files(pid: int, folder: Path) -> list[os.stat_result]:
    """Files in the folder that the process holds open."""
    files = []
    for descriptor in os.listdir(f"/proc/{pid}/fd"):
        path = Path(f"/proc/{pid}/fd/{descriptor}")
        with contextlib.suppress(FileNotFoundError):  # closed since
            if os.readlink(path).startswith(str(folder)):
                files.append(path.stat())
    return files


def test_files_are_private_and_have_no_name(tmp_path: Path) -> None:
    _, scope = scopes(disk_path=tmp_path)
    model = torch.nn.Linear(256, 256)
    with scope():
        loss = model(torch.ones(512, 256)).exp().sin().sum()
    files = open_files(os.getpid(), tmp_path)
    assert [(file.st_nlink, file.st_mode & 0o777) for file in files] == [(0, 0o600)] * len(files)
    assert sum(file.st_blocks for file in files) > 0
    assert os.listdir(tmp_path) == []
    loss.backward()


def test_a_process_killed_in_the_middle_of_a_step_leaves_nothing(tmp_path: Path) -> None:
    with Child(children.wait_in_step, str(tmp_path)) as child:
        child.receive()
        assert child.process.pid is not None
        files = open_files(child.process.pid, tmp_path)
        assert sum(file.st_blocks for file in files) * 512 > MIB
        # Without a name their space goes with the process.
        assert all(file.st_nlink == 0 for file in files)
        child.kill(signal.SIGKILL)
        assert child.join() == -signal.SIGKILL
    assert os.listdir(tmp_path) == []


SMALL_BYTES = 64 * MIB


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of SMALL_BYTES."""
    options = ["-t", "tmpfs", "-o", f"size={SMALL_BYTES}", "torchlms-test", str(tmp_path)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield tmp_path
    # Lazily: the session, which is kept for an offload with equal settings, still has its file open.
    subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def free_bytes(folder: Path) -> int:
    return os.statvfs(folder).f_bavail * os.statvfs(folder).f_frsize


def test_a_killed_process_gives_its_space_back(small_disk: Path) -> None:
    free = free_bytes(small_disk)
    with Child(children.wait_in_step, str(small_disk)) as child:
        child.receive()
        assert free_bytes(small_disk) < free
        child.kill(signal.SIGKILL)
        child.join()
    assert free_bytes(small_disk) == free


def test_a_full_file_system_is_an_error_and_the_next_step_is_exact(small_disk: Path) -> None:
    expected = losses_and_gradients(torchlms.disabled())
    before = held_bytes()
    lms, _ = scopes(disk_path=small_disk, disk_budget=SMALL_BYTES)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(SMALL_BYTES - (256 << 10)))
    with pytest.raises(OSError) as caught:
        losses_and_gradients(lms)
    assert caught.value.errno == errno.ENOSPC
    del caught
    assert not has_hooks()
    assert left_bytes(before) == 0
    ballast.unlink()
    assert losses_and_gradients(lms) == expected


def test_a_disk_budget_used_up_at_any_write_is_an_error_and_the_next_step_is_exact(
    tmp_path: Path,
) -> None:
    expected = losses_and_gradients(torchlms.disabled())
    failures = []
    for budget in range(16 << 10, 2 * MIB, 112 << 10):
        lms, _ = scopes(disk_path=tmp_path, disk_budget=budget)
        try:
            assert losses_and_gradients(lms) == expected
            failures.append(0)
        except OSError as error:
            assert str(tmp_path) in str(error)
            failures.append(error.errno)
        settle()
        assert not has_hooks()
        again = torchlms.offload(**SMALLEST, disk_path=tmp_path)
        assert losses_and_gradients(again) == expected
    assert failures[:3] == [errno.ENOSPC] * 3
    assert failures[-1] == 0
    assert failures == sorted(failures, reverse=True)


def test_the_session_of_a_failed_step_works_again(tmp_path: Path) -> None:
    _, scope = scopes(disk_path=tmp_path, disk_budget=MIB)
    with pytest.raises(OSError, match=r"is full: 4\.0 MiB needed, 1\.0 MiB free"), scope():
        hidden = torch.ones(MIB, requires_grad=True).exp()
        for _ in range(8):
            hidden = hidden.sin()
    settle()
    values = torch.linspace(0, 1, 1000).requires_grad_()
    with scope():
        loss = (values.exp() * values.sin()).sum()
    loss.backward()
    plain = (values.exp() * values.sin()).sum()
    assert torch.equal(values.grad, torch.autograd.grad(plain, values)[0])


def test_files_that_may_not_grow_are_an_error_and_the_next_step_is_exact(tmp_path: Path) -> None:
    limits = [0, 4 << 10, 100 << 10, 500 << 10, 64 * MIB]
    outcomes = children.call(children.fill_files_to_limits, str(tmp_path), limits)
    assert outcomes[0] in (errno.EFBIG, errno.ENOSPC)
    assert outcomes[-1] == 0
    assert set(outcomes) <= {0, errno.EFBIG, errno.ENOSPC}


def test_a_missing_folder_is_an_error_at_construction(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="missing") as caught:
        torchlms.offload(disk_path=tmp_path / "missing")
    assert caught.value.errno == errno.ENOENT


def test_a_file_in_place_of_the_folder_is_an_error_at_construction(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError) as caught:
        torchlms.offload(disk_path=tmp_path / "file")
    assert caught.value.errno == errno.ENOTDIR


def test_a_folder_that_cannot_be_written_is_an_error_at_construction(tmp_path: Path) -> None:
    # Permissions do not hold the superuser back, but nobody makes files in /proc.
    folder = Path("/proc") if os.geteuid() == 0 else tmp_path
    tmp_path.chmod(0o500)
    with pytest.raises(OSError) as caught:
        torchlms.offload(disk_path=folder)
    assert caught.value.errno is not None
    assert str(folder) in str(caught.value)


def test_two_processes_share_a_folder(tmp_path: Path) -> None:
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = losses_and_gradients(torchlms.disabled())
    torch.set_num_threads(num_threads)
    arguments = (children.train_side_by_side, str(tmp_path))
    with Child(*arguments) as first, Child(*arguments) as second:
        for _ in range(3):
            first.send(True)
            second.send(True)
            assert first.receive() == second.receive() == expected
    assert os.listdir(tmp_path) == []
