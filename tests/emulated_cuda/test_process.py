# SPDX-License-Identifier: BSD-3-Clause
"""What ends a process on the emulated device, and what is set before one starts."""

from __future__ import annotations

import ast
import re
import subprocess

from emulation import RUN, emulate, output_of


def test_the_options_of_run_become_the_knobs_of_the_device() -> None:
    out = output_of(
        "import os; print({k[14:]: v for k, v in os.environ.items() if k.startswith('EMULATED_CUDA_')})",
        *(
            "--cap",
            "1.5GiB",
            "--pinned-cap",
            "600MiB",
            "--d2h",
            "12GB/s",
            "--h2d",
            "500MB/s",
            "--slowdown",
            "2.5",
        ),
        *("--flops", "14GFLOP/s", "--memory", "800MB/s", "--no-compute"),
        *(
            "--devices",
            "2",
            "--seed",
            "3",
            "--fail",
            "cudaMalloc:7",
            "--fail",
            "cudaHostAlloc:2+",
            "--no-race",
        ),
    )
    knobs = ast.literal_eval(out)
    assert knobs.pop("OPERATORS") and knobs.pop("LIBRARY")
    assert knobs == {
        "BYTES": str(3 << 29),
        "PINNED_BYTES": str(600 << 20),
        "D2H_BYTES_PER_S": "12000000000",
        "H2D_BYTES_PER_S": "500000000",
        "SLOWDOWN": "2.5",
        "FLOPS_PER_S": "14000000000",
        "MEMORY_BYTES_PER_S": "800000000",
        "COMPUTE": "0",
        "DEVICES": "2",
        "SEED": "3",
        "DELAY_US": "200",
        "FAIL": "cudaMalloc:7,cudaHostAlloc:2+",
        "RACE": "0",
    }
    for wrong in (["--cap", "12parsecs"], ["--no-such"], []):
        assert subprocess.run([RUN, *wrong], capture_output=True).returncode == 2


def test_several_devices_have_memory_and_streams_of_their_own() -> None:
    out = output_of(
        """
        import torch
        a = torch.ones(8 << 20, device="cuda:0")
        b = torch.full((8 << 20,), 2.0, device="cuda:1")
        print(torch.cuda.device_count(), (a.to("cuda:1") + b).sum().item(), (a + b.to("cuda:0")).device)
        """,
        "--devices",
        "2",
        "--cap",
        "160MiB",
    )
    assert out == f"2 {3.0 * (8 << 20)} cuda:0"


def test_a_real_kernel_ends_the_process_with_its_name() -> None:
    done = emulate("import torch; torch.cuda._sleep(100)")
    assert done.returncode != 0
    assert re.search(r"a real kernel was launched: .*spin_kernel", done.stderr)


def test_expandable_segments_are_refused() -> None:
    done = emulate("raise SystemExit", PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True")
    assert done.returncode == 2
    assert "expandable segments are not emulated" in done.stderr
    late = emulate(
        """
        import torch
        torch.cuda.memory._set_allocator_settings("expandable_segments:True")
        torch.ones(1, device="cuda")
        """
    )
    assert late.returncode != 0
    assert "expandable segments are not emulated" in late.stderr


def test_an_index_out_of_range_breaks_the_device_as_an_assert_does() -> None:
    done = emulate(
        """
        import torch
        x = torch.ones(3, device="cuda")[torch.tensor([7], device="cuda")]
        torch.cuda.synchronize()
        """
    )
    assert done.returncode != 0
    assert "device-side assert" in done.stderr


def test_waiting_for_a_stream_that_captures_is_an_error() -> None:
    done = emulate(
        """
        import torch
        x = torch.ones(4, device="cuda")
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            (x + 1).sum().item()
        """
    )
    assert done.returncode != 0
    assert "captur" in done.stderr


def test_a_process_that_raced_does_not_succeed() -> None:
    code = """
        import torch
        value, host = torch.ones(99, device="cuda"), torch.zeros(99, pin_memory=True)
        host.copy_(value, non_blocking=True)
        print(host[0].item())
    """
    assert emulate(code, "--race").returncode == 86
    assert emulate(code, "--no-race").returncode == 0


def test_a_model_that_does_not_fit_runs_out_of_memory() -> None:
    done = emulate(
        "import small_models; small_models.case('resnet18').gradients('cuda')", "--cap", "100MiB"
    )
    assert done.returncode != 0
    assert "OutOfMemoryError" in done.stderr
