# SPDX-License-Identifier: BSD-3-Clause
"""A mixed-integer linear program, solved by HiGHS (the package highspy)."""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import math
from typing import Any

_FEASIBLE = 1e-6  # what the solver's tolerances may lift a bound by, of itself


def is_available() -> bool:
    return importlib.util.find_spec("highspy") is not None


class Linear:
    """A sum of columns times coefficients, and a constant. Immutable."""

    __slots__ = ("constant", "terms")

    def __init__(self, terms: dict[int, float] | None = None, constant: float = 0.0) -> None:
        self.terms = terms or {}
        self.constant = constant

    def plus(self, *others: tuple[float, Linear]) -> Linear:
        """The sum of this and of others, each times its factor."""
        terms, constant = dict(self.terms), self.constant
        for factor, other in others:
            constant += factor * other.constant
            for column, coefficient in other.terms.items():
                terms[column] = terms.get(column, 0.0) + factor * coefficient
        return Linear(terms, constant)

    def minus(self, other: Linear) -> Linear:
        return self.plus((-1.0, other))

    def value(self, solution: list[float]) -> float:
        return self.constant + sum(c * solution[column] for column, c in self.terms.items())


ZERO = Linear()
ONE = Linear(constant=1.0)


@dataclasses.dataclass(frozen=True)
class Solution:
    """`columns` is empty where none was found. No solution costs less than `bound`."""

    columns: list[float]
    bound: float


class IntegerProgram:
    """Columns of a cost each, to be chosen such that the rows hold and the costs are least."""

    def __init__(self) -> None:
        self._costs: list[float] = []
        self._lowers: list[float] = []
        self._uppers: list[float] = []
        self._integers: list[int] = []
        self._row_uppers: list[float] = []
        self._row_starts: list[int] = [0]
        self._columns: list[int] = []
        self._coefficients: list[float] = []

    def column(self, lower: float = 0.0, upper: float = math.inf, cost: float = 0.0) -> Linear:
        self._costs.append(cost)
        self._lowers.append(lower)
        self._uppers.append(upper)
        return Linear({len(self._costs) - 1: 1.0})

    def choice(self, is_forced: bool) -> Linear:
        """A column that is 0 or 1."""
        self._integers.append(len(self._costs))
        return self.column(float(is_forced), 1.0)

    def at_most(self, low: Linear, high: Linear) -> None:
        """A row: `low` is at most `high`."""
        row = low.minus(high)
        self._columns += row.terms.keys()
        self._coefficients += row.terms.values()
        self._row_starts.append(len(self._columns))
        self._row_uppers.append(-row.constant)

    def solve_relaxed(self) -> Solution | None:
        """With parts of a choice allowed; None where the solver gives up."""
        highspy: Any = importlib.import_module("highspy")  # optional

        solver = self._solver(is_relaxed=True)
        solver.setOptionValue("solver", "ipm")  # the simplex method takes minutes for some
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return None
        bound = solver.getInfo().objective_function_value
        return Solution(list(solver.getSolution().col_value), bound * (1 - _FEASIBLE))

    def solve(self, max_nodes: int) -> Solution | None:
        """The best that is found by looking at so many nodes of the search; None where the solver
        gives up. Equal programs have equal solutions: there is no limit of time."""
        solver = self._solver(is_relaxed=False)
        solver.setOptionValue("mip_max_nodes", max_nodes)
        solver.run()
        info = solver.getInfo()
        if not math.isfinite(info.mip_dual_bound):
            return None
        is_found = math.isfinite(info.objective_function_value) and info.primal_solution_status > 1
        columns = list(solver.getSolution().col_value) if is_found else []
        return Solution(columns, info.mip_dual_bound * (1 - _FEASIBLE))

    def _solver(self, *, is_relaxed: bool) -> Any:
        import numpy as np  # comes with highspy

        highspy: Any = importlib.import_module("highspy")

        program = highspy.HighsLp()
        program.num_col_ = len(self._costs)
        program.num_row_ = len(self._row_uppers)
        program.col_cost_ = np.array(self._costs)
        program.col_lower_ = np.array(self._lowers)
        program.col_upper_ = np.array(self._uppers)
        program.row_lower_ = np.full(len(self._row_uppers), -math.inf)
        program.row_upper_ = np.array(self._row_uppers)
        program.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        program.a_matrix_.start_ = np.array(self._row_starts)
        program.a_matrix_.index_ = np.array(self._columns)
        program.a_matrix_.value_ = np.array(self._coefficients)
        if not is_relaxed:
            kinds = [highspy.HighsVarType.kContinuous] * len(self._costs)
            for column in self._integers:
                kinds[column] = highspy.HighsVarType.kInteger
            program.integrality_ = kinds

        class Silent(highspy.Highs):  # type: ignore[misc]
            def enableCallbacks(self) -> Any:  # noqa: N802 - the first to print, in __init__
                self.setOptionValue("output_flag", False)
                return super().enableCallbacks()

        solver = Silent()
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("random_seed", 0)
        solver.passModel(program)
        return solver
