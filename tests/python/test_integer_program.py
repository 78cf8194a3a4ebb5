# SPDX-License-Identifier: BSD-3-Clause
"""Small programs whose solutions are known."""

from __future__ import annotations

import pytest

from torchlms.integer_program import ONE, ZERO, IntegerProgram, Linear

pytest.importorskip("highspy")


def knapsack() -> tuple[IntegerProgram, list[Linear], Linear]:
    """Weights 3, 4 and 5 of which 7 must be had, at costs of 3, 5 and 8."""
    program = IntegerProgram()
    taken = [program.choice(is_forced=False) for _ in range(3)]
    cost = program.column(cost=1.0)
    program.at_most(Linear(constant=7.0), ZERO.plus(*zip((3.0, 4.0, 5.0), taken, strict=True)))
    program.at_most(ZERO.plus(*zip((3.0, 5.0, 8.0), taken, strict=True)), cost)
    return program, taken, cost


def test_the_best_choice_is_found() -> None:
    program, taken, cost = knapsack()
    solution = program.solve(max_nodes=100)
    assert solution is not None
    assert [round(each.value(solution.columns)) for each in taken] == [1, 1, 0]
    assert cost.value(solution.columns) == pytest.approx(8.0)
    assert solution.bound == pytest.approx(8.0, rel=1e-4)
    assert solution.bound < 8.0


def test_the_relaxation_may_take_parts_and_bounds_the_best_choice() -> None:
    program, taken, _ = knapsack()
    program.at_most(taken[1], Linear(constant=0.5))
    relaxed = program.solve_relaxed()
    assert relaxed is not None
    # All of the first, half of the second, two fifths of the third.
    assert relaxed.bound == pytest.approx(3.0 + 2.5 + 8.0 * 0.4, rel=1e-4)
    assert taken[2].value(relaxed.columns) == pytest.approx(0.4, abs=1e-4)


def test_what_is_forced_is_chosen() -> None:
    program = IntegerProgram()
    forced, free = program.choice(is_forced=True), program.choice(is_forced=False)
    cost = program.column(cost=1.0)
    program.at_most(forced.plus((2.0, free)), cost)
    solution = program.solve(max_nodes=1)
    assert solution is not None
    assert forced.value(solution.columns) == pytest.approx(1.0)
    assert free.value(solution.columns) == pytest.approx(0.0, abs=1e-6)


def test_a_program_without_a_solution_has_none() -> None:
    program = IntegerProgram()
    choice = program.choice(is_forced=False)
    program.at_most(ONE.plus((1.0, ONE)), choice)
    assert program.solve_relaxed() is None
    assert program.solve(max_nodes=1) is None


def test_sums_leave_their_parts_alone() -> None:
    program = IntegerProgram()
    x = program.column()
    total = x.plus((2.0, x), (3.0, ONE))
    assert total.value([5.0]) == 18.0
    assert x.value([5.0]) == 5.0
    assert total.minus(x).value([5.0]) == 13.0
    assert ZERO.value([5.0]) == 0.0
