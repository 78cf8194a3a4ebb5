# SPDX-License-Identifier: BSD-3-Clause
"""Processes that run fuzzed programs: a crash or a hang is the failure of one program."""

from __future__ import annotations

import collections
import faulthandler
import gc
import json
import queue
import subprocess
import sys
import threading
import traceback
import warnings
from pathlib import Path
from typing import Any

SECONDS_TO_START = 900
SECONDS_PER_REQUEST = 300
NUM_WARM_UPS = 12
REQUESTS_PER_PROCESS = 1000  # graphs that PyTorch never frees make every collection slower

Request = dict[str, Any]
"""{"seed": 3}, or {"program": "...", "settings": "..."}, both JSON texts."""


class Worker:
    """A process that answers requests one by one. Restarted at the next request after a failure,
    since what one leaves behind would fail the next, and from time to time. Not thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._num_requests = 0
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._errors: collections.deque[str] = collections.deque(maxlen=60)

    def ask(self, request: Request) -> dict[str, Any]:
        """The answer, which has a "failure": a text or None."""
        if self._process is None:
            self._start()
        assert self._process is not None and self._process.stdin is not None
        answer: dict[str, Any] | None = None
        why = "crashed"
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._answers.get(timeout=SECONDS_PER_REQUEST + 10)
            answer = json.loads(line) if line else None
        except queue.Empty:
            why = "hung"
        except OSError:
            pass
        if answer is None:
            answer = {"failure": f"the process {why}: {self.stop()}"}
        self._num_requests += 1
        if answer["failure"] is not None or self._num_requests >= REQUESTS_PER_PROCESS:
            self.stop()
        return answer

    def stop(self) -> str:
        """Ends the process; what it wrote to stderr last."""
        if self._process is None:
            return ""
        self._process.kill()
        status = self._process.wait()
        self._process = None
        return f"status {status}\n{''.join(self._errors)}"

    def _start(self) -> None:
        self._num_requests = 0
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("fuzz.py")), "--worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
        self._answers = queue.Queue()
        self._errors.clear()
        answers, errors = self._answers, self._errors

        def read_answers(stream: Any) -> None:
            for line in stream:
                if line.startswith("{"):
                    answers.put(line)
            answers.put(None)

        def read_errors(stream: Any) -> None:
            errors.extend(stream)

        for target, stream in (
            (read_answers, self._process.stdout),
            (read_errors, self._process.stderr),
        ):
            threading.Thread(target=target, args=(stream,), daemon=True).start()
        if self._answers.get(timeout=SECONDS_TO_START) is None:
            raise RuntimeError(f"a worker does not start: {self.stop()}")


def serve() -> None:
    """What a worker runs: a line of JSON for every line of JSON, until its input ends."""
    import torch

    from program import make_program

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    from execution import PlainHarness, run_program

    for seed in range(NUM_WARM_UPS):
        run_program(make_program(seed), PlainHarness())
    gc.collect()
    gc.freeze()  # the many collections need not walk what imports made
    print("{}", flush=True)
    for line in sys.stdin:
        faulthandler.dump_traceback_later(SECONDS_PER_REQUEST)
        try:
            result = answer(json.loads(line))
        except Exception:
            result = {"failure": traceback.format_exc()}
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(result), flush=True)


def answer(request: Request) -> dict[str, Any]:
    from differential import COUNTED, Settings, check, failure_of
    from program import FuzzProgram, make_program

    if "program" in request:
        program = FuzzProgram.from_json(request["program"])
        return {"failure": failure_of(program, Settings.from_json(request["settings"]))}
    program = make_program(request["seed"])
    verdict, settings = check(program, request["seed"])
    result: dict[str, Any] = {name: getattr(verdict, name) for name in COUNTED}
    return result | {
        "failure": verdict.failure,
        "leaks_plain": verdict.leaks_plain,
        "settings": settings.to_json(),
        "errors": verdict.errors,
        "steps": len(program.steps) * program.num_trainers,
    }
