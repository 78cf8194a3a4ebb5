# SPDX-License-Identifier: BSD-3-Clause
"""The disk tier: no file is ever seen or left, and a disk that fails is an error that loses nothing."""

from __future__ import annotations

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
from training import SMALLEST, has_hooks, held_bytes, left_bytes, scopes


def open_files(pid: int, folder: Path) -> list[os.stat_result]:
    """Files in the folder that the process holds open."""
    files = []
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        try:
            target = os.readlink(descriptor)
        except FileNotFoundError:  # the descriptor of this very listing
            continue
        if target.startswith(str(folder)):
            files.append(descriptor.stat())
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


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "torchlms-test", str(tmp_path)]
    try:
        mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if mounted.returncode != 0:
        pytest.skip(f"cannot mount a small file system: {mounted.stderr.strip()}")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def assert_fails_then_works(lms: torchlms.offload, expected: object) -> None:
    before = held_bytes()
    with pytest.raises(OSError) as caught:
        losses_and_gradients(lms)
    assert caught.value.errno == errno.ENOSPC
    assert not has_hooks()
    del caught
    assert left_bytes(before) == 0
    assert losses_and_gradients(torchlms.offload(**SMALLEST)) == expected


def test_files_that_may_not_grow_are_an_error_and_the_next_step_is_exact(tmp_path: Path) -> None:
    limits = [0, 4 << 10, 100 << 10, 500 << 10, 64 * MIB]
    outcomes = children.call(children.fill_files_to_limits, str(tmp_path), limits)
    assert outcomes[0] in (errno.EFBIG, errno.ENOSPC)
    assert outcomes[-1] == 0
    assert set(outcomes) <= {0, errno.EFBIG, errno.ENOSPC}


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
