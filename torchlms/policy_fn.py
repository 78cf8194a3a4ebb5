# SPDX-License-Identifier: BSD-3-Clause
"""What a user's policy function says of an op, in the form that the planner is bound by.

The functions are those of `torch.utils.checkpoint`'s selective checkpointing: called after each
differentiable op of the forward pass, with what `__torch_dispatch__` would get.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy, SelectiveCheckpointContext

from torchlms.config import PolicyFn
from torchlms.fields import bad_value

_DEMANDS = {
    CheckpointPolicy.MUST_SAVE: "save",
    CheckpointPolicy.MUST_RECOMPUTE: "recompute",
    CheckpointPolicy.MUST_CPU_OFFLOAD: "swap",
}
_HAS_OUTPUT = "op_output" in inspect.signature(SelectiveCheckpointContext).parameters
_FORMS = "a torch.utils.checkpoint.CheckpointPolicy, or a bool (True: MUST_SAVE)"


@functools.cache
def _operator(name: str, overload: str) -> Any:
    namespace, _, base = name.partition("::")
    packet = getattr(getattr(torch.ops, namespace), base)
    return getattr(packet, overload or "default")


def ask(
    policy_fn: PolicyFn,
    name: str,
    overload: str,
    args: tuple[Any],
    kwargs: dict[str, Any],
    output: Any,
) -> str:
    """The demand for what `output` holds: "none", "save", "recompute" or "swap".

    Raises:
        ValueError: the answer is no CheckpointPolicy; it is quoted.
    """
    operator = _operator(name, overload)
    known = {"op_output": output} if _HAS_OUTPUT else {}
    context = SelectiveCheckpointContext(is_recompute=False, **known)
    with torch.no_grad():
        answer = policy_fn(context, operator, *args, **kwargs)
    if isinstance(answer, bool):
        return "save" if answer else "none"
    if not isinstance(answer, CheckpointPolicy):
        why = f"is what policy_fn returned for {operator}"
        raise bad_value("policy", answer, why, _FORMS)
    return _DEMANDS.get(answer, "none")
