# SPDX-License-Identifier: BSD-3-Clause
"""Every kind of tensor that autograd may save: planned, swapped or passed through, and never another bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.autograd import Function
from torch.testing._internal.two_tensor import TwoTensor

from training import ScopeMaker, assert_exact, moved_bytes, seeded

pytestmark = pytest.mark.parametrize("policy", ["swap", "recompute"])


def steps(forward: Callable[[], Tensor], leaves: Sequence[Tensor]) -> Callable[[ScopeMaker], Any]:
    """A program of three steps: the first is recorded, the others follow plans."""

    def program(scope: ScopeMaker) -> Any:
        results = []
        for _ in range(3):
            for leaf in leaves:
                leaf.grad = None
            with scope():
                loss = forward()
            loss.backward()
            results.append([loss.detach(), [leaf.grad for leaf in leaves]])
        return results

    return program


class Probe(Function):
    """Saves what it is given beside its input, and multiplies the gradient by what `weight_of` makes of it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, saved: Tensor, weight_of: Any) -> Tensor:
        ctx.save_for_backward(saved)
        ctx.weight_of = weight_of
        return inputs * 2

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (saved,) = ctx.saved_tensors
        return gradient * ctx.weight_of(saved), None, None


def probed(make: Callable[[Tensor], Tensor], weight_of: Any) -> tuple[Any, list[Tensor]]:
    """A forward pass that saves `make(values)` of a tensor made in it."""
    leaf = seeded(8, 8).requires_grad_()

    def forward() -> Tensor:
        hidden = leaf.sin()
        return Probe.apply(hidden.exp(), make(hidden.detach().abs()), weight_of).sum()

    return forward, [leaf]


class Marked(torch.Tensor):
    """A subclass that adds nothing but its type."""


def test_a_subclass_without_data_of_its_own_keeps_its_type(policy: str) -> None:
    kinds = set()

    def weight_of(saved: Tensor) -> Tensor:
        kinds.add(type(saved))
        return saved.as_subclass(torch.Tensor)

    forward, leaves = probed(lambda values: (values + 1).as_subclass(Marked), weight_of)
    assert_exact(steps(forward, leaves), policy=policy)
    assert kinds == {Marked}


def test_a_subclass_that_wraps_two_tensors_trains_exactly(policy: str) -> None:
    weight = TwoTensor(seeded(8, 8), seeded(8, 8, seed=1)).requires_grad_()

    def program(scope: ScopeMaker) -> Any:
        results = []
        for _ in range(3):
            weight.grad = None
            inputs = TwoTensor(seeded(4, 8, seed=2), seeded(4, 8, seed=3))
            with scope():
                loss = (inputs @ weight).sin().tanh().sum()
            loss.backward()
            results += [loss.detach().a, loss.detach().b, weight.grad.a, weight.grad.b]
        return results

    assert_exact(program, policy=policy)


@pytest.mark.parametrize("layout", [torch.jagged, torch.strided])
def test_nested_tensors_train_exactly(policy: str, layout: torch.layout) -> None:
    parts = [seeded(length, 8, seed=length) for length in (3, 5, 2)]
    weight = seeded(8, 8).requires_grad_()

    def forward() -> Tensor:
        nested = torch.nested.as_nested_tensor(parts, layout=layout)
        hidden = F.gelu(F.linear(nested, weight))
        return sum(part.sin().sum() for part in F.linear(hidden, weight).unbind())

    assert_exact(steps(forward, [weight]), policy=policy)


SPARSE = {
    "coo": lambda dense: dense.to_sparse(),
    "csr": lambda dense: dense.to_sparse_csr(),
    "csc": lambda dense: dense.to_sparse_csc(),
    "bsr": lambda dense: dense.to_sparse_bsr((2, 2)),
}


@pytest.mark.parametrize("layout", SPARSE)
def test_sparse_tensors_that_are_saved_come_back(policy: str, layout: str) -> None:
    forward, leaves = probed(lambda values: SPARSE[layout](values), lambda saved: saved.to_dense())
    assert_exact(steps(forward, leaves), policy=policy)


@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_products_with_sparse_matrices_train_exactly(policy: str, layout: str) -> None:
    matrix = SPARSE[layout](torch.eye(8) * 3 + torch.diag(torch.ones(7), 1))
    dense = seeded(8, 4).requires_grad_()

    def forward() -> Tensor:
        return torch.sparse.mm(matrix, dense.sin().exp()).tanh().sum()

    assert moved_bytes(assert_exact(steps(forward, [dense]), policy=policy)) > 0


def test_sparse_gradients_of_an_embedding_are_exact(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        table = seeded(20, 8).requires_grad_()
        gradients = []
        for step in range(3):
            table.grad = None
            with scope():
                loss = F.embedding(torch.tensor([1, 4, 4, step]), table, sparse=True).sin().sum()
            loss.backward()
            gradients += [table.grad.coalesce().indices(), table.grad.coalesce().values()]
        return gradients

    assert_exact(program, policy=policy)


def test_quantised_tensors_that_are_saved_come_back(policy: str) -> None:
    for make in (
        lambda values: torch.quantize_per_tensor(values, 0.1, 3, torch.qint8),
        lambda values: torch.quantize_per_channel(
            values, torch.rand(8) + 0.1, torch.zeros(8), 0, torch.quint8
        ),
    ):
        forward, leaves = probed(make, lambda saved: saved.dequantize() + saved.int_repr())
        assert_exact(steps(forward, leaves), policy=policy)


def test_training_with_fake_quantisation_is_exact(policy: str) -> None:
    weight = seeded(8, 8).requires_grad_()

    def forward() -> Tensor:
        hidden = torch.fake_quantize_per_tensor_affine(weight.sin(), 0.05, 0, -128, 127)
        scales, zeros = torch.full((8,), 0.1), torch.zeros(8, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(hidden.exp(), scales, zeros, 0, 0, 255).sum()

    assert_exact(steps(forward, [weight]), policy=policy)


def test_complex_tensors_and_their_conjugate_and_negative_views_train_exactly(policy: str) -> None:
    weight = seeded(8, 8, dtype=torch.complex64).requires_grad_()

    def forward() -> Tensor:
        hidden = weight.sin() @ weight
        conjugate, negative = hidden.conj(), hidden.conj().imag  # of the bits, not the bytes
        assert conjugate.is_conj()
        assert negative.is_neg()
        product = (conjugate * hidden.exp()) @ conjugate.T
        spectrum = torch.fft.fft2(product) * torch.view_as_complex(torch.view_as_real(hidden) * 2)
        return spectrum.abs().sum() + (negative * negative.cos()).sum()

    assert moved_bytes(assert_exact(steps(forward, [weight]), policy=policy)) > 0


@pytest.mark.parametrize("view", [Tensor.conj, lambda values: values.conj().imag])
def test_saved_views_keep_their_conjugate_and_negative_bits(policy: str, view: Any) -> None:
    seen = set()

    def weight_of(saved: Tensor) -> Tensor:
        seen.add((saved.is_conj(), saved.is_neg()))
        return saved.real * 1

    forward, leaves = probed(
        lambda values: view(torch.complex(values.sin(), values.cos())), weight_of
    )
    assert_exact(steps(forward, leaves), policy=policy)
    assert len(seen) == 1
    assert any(seen.pop())


def test_integers_and_masks_that_are_saved_are_exact(policy: str) -> None:
    weight = seeded(16, 16).requires_grad_()

    def forward() -> Tensor:
        hidden = weight.sin()
        order = hidden.argsort(1)
        mask = (order % 3 == 0) & (hidden > 0)
        chosen = torch.gather(hidden, 1, order).masked_fill(mask, -1.0)
        pooled = F.max_pool2d(torch.where(mask, hidden, chosen)[None, None], 2)
        rows = pooled.flatten(1)[:, torch.arange(0, 64, 3)]
        shifted = hidden[order[:, 0]] * (order << 1).to(torch.int16).float()
        return rows.exp().sum() + shifted.tanh().sum() + hidden[mask].sum()

    report = assert_exact(steps(forward, [weight]), policy=policy)
    assert moved_bytes(report) > report["kept_bytes"]


@pytest.mark.parametrize("shape", [(), (0,), (0, 4), (1,), (1, 1, 1)])
def test_tensors_of_no_dimension_no_element_or_one_are_exact(
    policy: str, shape: tuple[int, ...]
) -> None:
    leaf = seeded(*shape).requires_grad_() if shape else torch.tensor(0.7, requires_grad=True)

    def forward() -> Tensor:
        return (leaf.sin() * leaf.exp()).tanh().sum() * torch.tensor(3.0)

    assert_exact(steps(forward, [leaf]), policy=policy)


def test_meta_tensors_pass_through(policy: str) -> None:
    def program(scope: ScopeMaker) -> Any:
        weight = torch.empty(8, 8, device="meta", requires_grad=True)
        for _ in range(3):
            with scope():
                loss = (weight.sin() @ weight).exp().sum()
            loss.backward()
        return [weight.grad.is_meta, tuple(weight.grad.shape)]

    assert moved_bytes(assert_exact(program, policy=policy)) == 0


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_other_floating_types_train_exactly(policy: str, dtype: torch.dtype) -> None:
    weight = seeded(16, 16).to(dtype).requires_grad_()

    def forward() -> Tensor:
        hidden = F.layer_norm(F.gelu(weight @ weight.T), (16,))
        return torch.softmax(hidden, 1).square().sum()

    assert moved_bytes(assert_exact(steps(forward, [weight]), policy=policy)) > 0


def test_eight_bit_floats_that_are_saved_come_back(policy: str) -> None:
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        forward, leaves = probed(lambda values, dtype=dtype: values.to(dtype), Tensor.float)
        assert moved_bytes(assert_exact(steps(forward, leaves), policy=policy)) > 0


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "offset": lambda values: values[2:5, 1:],
    "transposed": lambda values: values.T,
    "every second": lambda values: values[::2, ::3],
    "expanded": lambda values: values[:1].expand(8, 8),
    "overlapping": lambda values: values.as_strided((8, 8), (3, 1), 4),
    "of another type": lambda values: values.view(torch.int32) & 0xFF,
    "squared twice": lambda values: values.unfold(0, 3, 1),
    "diagonal": lambda values: values.diagonal()[:, None].expand(8, 8),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views_come_back_with_their_strides(policy: str, view: str) -> None:
    strides = set()

    def weight_of(saved: Tensor) -> Tensor:
        strides.add((saved.stride(), saved.storage_offset()))
        return saved.float().sum()

    forward, leaves = probed(lambda values: VIEWS[view](values + 1), weight_of)
    assert_exact(steps(forward, leaves), policy=policy)
    assert len(strides) == 1


def test_memory_that_pytorch_did_not_allocate_is_exact(policy: str, tmp_path: Path) -> None:
    import numpy as np

    path = tmp_path / "values.bin"
    path.write_bytes(np.linspace(0, 1, 64, dtype=np.float32).tobytes())
    leaf = seeded(64).requires_grad_()

    def forward() -> Tensor:
        array = torch.from_numpy(np.linspace(-1, 1, 64, dtype=np.float32))
        file = torch.from_file(str(path), size=64, dtype=torch.float32)
        shared = torch.linspace(0, 2, 64).share_memory_()
        return (leaf.sin() * array).sum() + (leaf.exp() * file * shared).sum()

    assert moved_bytes(assert_exact(steps(forward, [leaf]), policy=policy)) > 0


def test_weights_freed_after_forward_and_filled_again_before_backward_are_exact(
    policy: str,
) -> None:
    def program(scope: ScopeMaker) -> Any:
        weight, inputs = seeded(16, 16).requires_grad_(), seeded(4, 16, seed=1).requires_grad_()
        values, results = weight.detach().clone(), []
        for _ in range(3):
            with scope():
                loss = ((inputs.sin() @ weight) @ weight.T).tanh().sum()
            weight.untyped_storage().resize_(0)
            other = torch.full((16, 16), float("nan"))  # what may get the address
            weight.untyped_storage().resize_(values.nbytes)
            with torch.no_grad(), torch.autograd._unsafe_preserve_version_counter(weight):
                weight.copy_(values)
            loss.backward()
            results += [inputs.grad.clone(), weight.grad.clone(), other.isnan().all()]
        return results

    assert_exact(program, policy=policy)
