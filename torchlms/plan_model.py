# SPDX-License-Identifier: BSD-3-Clause
"""Keep, swap or recompute as an integer program: starts for the planner, and a bound of the step.

Every plan of the trace is a solution of the program, with its own time or less: so no plan is
faster than the best solution, nor than that of the linear relaxation. What is left out (latencies,
memory of replays between the chosen positions, copies that are whole before they free anything)
would only add to it. The planner's simulator says how good what the program chooses really is.

Positions are those of the trace: "before event t" is between events t - 1 and t. A row of the
program belongs to one of the positions that are looked at, or to the time from one to the next.
Sizes are in MiB, times in ms.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from torchlms.integer_program import ONE, ZERO, IntegerProgram, Linear, Solution

NONE = -1
_MIB = 1 << 20
# Storages, above which it is not asked, and about how many positions times storages it has.
_RELAXED = (600, 8000)
_INTEGER = (200, 2000)
_POSITIONS = (8, 192)  # at least and at most
_MAX_NODES = 1
_ROUNDED_UP = (0.25, 0.5, 0.75)  # parts of a choice from which on it is made

Start = tuple[list[int], list[int]]
"""Storages to swap, and to recompute."""


@dataclasses.dataclass(frozen=True)
class Answer:
    starts: list[Start]
    bound_us: float


def ask(
    choices: Mapping[str, Any], budget_bytes: int, out_rate: float, in_rate: float
) -> Answer | None:
    """Starts and a bound for a trace's choices, from the integer program and its relaxation; None
    where there are too many choices, or no answer. Rates are in bytes per second."""
    num_choices = len(choices["storages"])
    starts: list[Start] = []
    bounds_ms: list[float] = []
    for is_relaxed, (most_choices, size) in ((True, _RELAXED), (False, _INTEGER)):
        if not 0 < num_choices <= most_choices:
            continue
        least, most = _POSITIONS
        num_positions = min(max(size // num_choices, least), most)
        model = PlanModel(choices, budget_bytes, out_rate, in_rate, num_positions)
        program = model.program
        solution = program.solve_relaxed() if is_relaxed else program.solve(_MAX_NODES)
        if solution is None:
            continue
        bounds_ms.append(solution.bound)
        for part in _ROUNDED_UP if is_relaxed else _ROUNDED_UP[1:2]:
            start = model.start(solution, part)
            if start is not None and start not in starts:
                starts.append(start)
    return Answer(starts, max(bounds_ms) * 1e3) if bounds_ms else None


class _Storage:
    """What may be done with a storage, and the expressions that say what is done."""

    def __init__(self, record: Mapping[str, Any], region: Mapping[str, Any] | None) -> None:
        self.id: int = record["storage"]
        self.size: float = record["size_bytes"] / _MIB
        self.dead: int = record["dead"]
        self.first_unpack: int = record["first_unpack"]
        self.freed: int = record["freed"]
        self.gap_last: int = record["gap_last"]
        self.is_held_longer: bool = record["is_held_longer"]
        self.demand: str = record["demand"]
        self.may_swap = record["may_swap"] and self.demand != "recompute"
        self.may_recompute = region is not None and self.demand != "swap"
        self.replay_ms = region["replay_us"] / 1e3 if region else 0.0
        self.extra = region["extra_bytes"] / _MIB if region else 0.0
        self.readers: list[_Storage] = []  # that are rebuilt from it
        self.earliest = self.first_unpack  # at which it may be needed
        self.swapped = ZERO
        self.recomputed = ZERO
        self.dropped: dict[int, Linear] = {}  # by position: recomputed, and away before the event
        self.back: dict[int, Linear] = {}  # swapped, and needed again before the event
        self.longer: dict[int, Linear] = {}  # held past its own use

    def rebuilt(self, position: int) -> Linear:
        return self.recomputed.minus(self.dropped[position])


@dataclasses.dataclass
class _Moment:
    """What is true before one of the positions: of the link and of the clock."""

    position: int = 0
    time_ms: float = 0.0  # of the event before it, without stalls and replays
    out: Linear = ZERO  # copied so far
    back: Linear = ZERO
    reserved: Linear | None = None  # memory of what is back or comes; None: nothing can be
    dropped: Mapping[int, Linear] = dataclasses.field(default_factory=dict)


class PlanModel:
    def __init__(
        self,
        choices: Mapping[str, Any],
        budget_bytes: int,
        out_rate: float,
        in_rate: float,
        num_positions: int,
    ) -> None:
        self.program = IntegerProgram()
        self._budget = budget_bytes / _MIB
        self._out_rate, self._in_rate = out_rate / _MIB / 1e3, in_rate / _MIB / 1e3
        self._forward_end: int = choices["forward_end"]
        self._times_ms = [time_us / 1e3 for time_us in choices["times_us"]]
        self._kept = [size / _MIB for size in choices["kept_bytes"]]
        self._kept_after = [size / _MIB for size in choices["kept_after_bytes"]]
        regions = {region["storage"]: region for region in choices["regions"]}
        storages = {
            record["storage"]: _Storage(record, regions.get(record["storage"]))
            for record in choices["storages"]
        }
        self._swappable = [storage for storage in storages.values() if storage.may_swap]
        self._returning = [s for s in self._swappable if s.first_unpack != NONE]
        # Each comes after those that it is rebuilt from.
        self._rebuildable = [
            storages[name] for name in regions if name in storages and storages[name].may_recompute
        ]
        for storage in reversed(self._rebuildable):
            for leaf in (storages[name] for name in regions[storage.id]["leaves"]):
                leaf.readers.append(storage)
                first = leaf.earliest
                leaf.earliest = storage.earliest if first == NONE else min(first, storage.earliest)
        self._total = sum(storage.size for storage in self._swappable)
        self._positions = self._chosen_positions(storages.values(), num_positions)
        self._add_choices(storages.values())
        self._add_moments(storages.values())

    def start(self, solution: Solution, part: float) -> Start | None:
        """What the solution does with at least so large a part of each storage."""
        if not solution.columns:
            return None
        start: Start = ([], [])
        for storage in self._swappable:
            if storage.swapped.value(solution.columns) >= part:
                start[0].append(storage.id)
        for storage in self._rebuildable:
            swapped = storage.swapped.value(solution.columns)
            if storage.recomputed.value(solution.columns) >= max(part, swapped):
                start[1].append(storage.id)
        return start

    def _chosen_positions(self, storages: Iterable[_Storage], num_positions: int) -> list[int]:
        """Those where most is missing, and some deadlines of swap-ins."""
        cuts = {0, len(self._kept)}  # between two of which the same storages are there
        for storage in storages:
            cuts |= {storage.dead + 1, storage.gap_last + 1, storage.freed + 1}
            cuts |= {storage.first_unpack, storage.first_unpack + 1}
        worst = [
            max(range(first, end), key=lambda t: (self._kept[t], -t))
            for first, end in itertools.pairwise(sorted(cuts - {NONE}))
        ]
        missing = {t: self._kept[t] - self._budget for t in worst}
        replays = set()
        for storage in self._rebuildable:
            after = storage.first_unpack + 1
            held = self._kept_after[after - 1] + storage.extra - storage.size
            missing[after] = max(missing.get(after, 0.0), held - self._budget)
            replays.add(after)
        tight = sorted(t for t, size in missing.items() if size > 0)
        chosen = {self._forward_end}
        for bucket in _split(tight, num_positions):
            t = max(bucket, key=lambda t: (missing[t], -t))
            chosen |= {t - 1, t} if t in replays else {t}
        backward = [t for t in worst if t > self._forward_end]
        chosen |= {bucket[0] for bucket in _split(backward, num_positions // 4)}
        return sorted(t for t in chosen if 0 < t < len(self._kept))

    def _add_choices(self, storages: Iterable[_Storage]) -> None:
        for storage in storages:
            if storage.may_swap:
                storage.swapped = self.program.choice(storage.demand == "swap")
            if storage.may_recompute:
                storage.recomputed = self.program.choice(storage.demand == "recompute")
            if storage.may_swap and storage.may_recompute:
                self.program.at_most(storage.swapped.plus((1.0, storage.recomputed)), ONE)
        others = [storage for storage in storages if not storage.may_recompute]
        for storage in [*reversed(self._rebuildable), *others]:  # readers first
            for t in self._positions:
                if storage.may_recompute:
                    storage.dropped[t] = self._dropped(storage, t)
                if storage.may_swap and storage.first_unpack != NONE:
                    storage.back[t] = self._back(storage, t)
                if storage.is_held_longer and storage.freed < t:
                    storage.longer[t] = self._longer(storage, t)

    def _dropped(self, storage: _Storage, t: int) -> Linear:
        if not storage.dead < t <= storage.first_unpack:
            return ZERO
        readers = [reader for reader in storage.readers if reader.earliest < t]
        if not readers:
            return storage.recomputed
        dropped = self.program.column(upper=1.0)
        self.program.at_most(dropped, storage.recomputed)
        for reader in readers:
            self.program.at_most(dropped.plus((1.0, reader.rebuilt(t))), ONE)
        return dropped

    def _back(self, storage: _Storage, t: int) -> Linear:
        if t > storage.first_unpack:
            return storage.swapped
        readers = [reader for reader in storage.readers if reader.earliest < t]
        if not readers or t <= storage.dead:
            return ZERO
        back = self.program.column(upper=1.0)
        for reader in readers:
            self.program.at_most(
                storage.swapped.plus((1.0, reader.rebuilt(t))), back.plus((1.0, ONE))
            )
        return back

    def _longer(self, storage: _Storage, t: int) -> Linear:
        readers = [reader for reader in storage.readers if t <= reader.first_unpack]
        if not readers:
            return ZERO
        longer = self.program.column(upper=1.0)
        for reader in readers:
            held = reader.dropped[t]
            if storage.first_unpack == NONE:
                held = held.minus(storage.swapped)  # it may still be away
            self.program.at_most(held, longer)
        return longer

    def _add_moments(self, storages: Iterable[_Storage]) -> None:
        before = _Moment()
        for t in [*self._positions, len(self._kept)]:
            is_end = t == len(self._kept)
            now = _Moment(t, self._times_ms[t - 1])
            if not is_end:
                now.dropped = {s.id: s.dropped[t] for s in self._rebuildable}
            duration = self._duration(before, now)
            now.out = self._copied_out(before, now, duration)
            if t > self._forward_end:
                now.back = self._copied_back(before, now, duration)
            if not is_end:
                self._limit_memory(before, now, storages)
            before = now

    def _duration(self, before: _Moment, now: _Moment) -> Linear:
        """Of the time between two positions, which is what the program minimizes the sum of. Only
        backward replays."""
        nominal = max(0.0, now.time_ms - before.time_ms)
        duration = self.program.column(lower=nominal, cost=1.0)
        if now.position > self._forward_end:
            replayed = []
            for storage in self._rebuildable:
                is_new = storage.dead >= before.position
                was = storage.recomputed if is_new else before.dropped[storage.id]
                here = now.dropped.get(storage.id, ZERO)
                replayed += [(storage.replay_ms, was), (-storage.replay_ms, here)]
            self.program.at_most(Linear(constant=nominal).plus(*replayed), duration)
        return duration

    def _copied_out(self, before: _Moment, now: _Moment, duration: Linear) -> Linear:
        """No more than has died, no faster than the link, and all of what is not returned."""
        add, rate = self.program.at_most, self._out_rate
        out = self.program.column(upper=self._total)
        add(before.out, out)
        add(out, before.out.plus((rate, duration)))
        older = _sum(s for s in self._swappable if s.dead < before.position)
        newer = [s for s in self._swappable if before.position <= s.dead < now.position]
        add(out, older.plus((1.0, _sum(newer))))
        if newer:
            waits_ms = max(0.0, self._times_ms[min(s.dead for s in newer)] - before.time_ms)
            add(out, older.plus((rate, duration), (-rate * waits_ms, ONE)))
        add(self._ended(now.position), out)
        return out

    def _copied_back(self, before: _Moment, now: _Moment, duration: Linear) -> Linear:
        """At least what is needed, no faster than the link, and into memory that is reserved."""
        add, rate = self.program.at_most, self._in_rate
        back = self.program.column(upper=self._total)
        add(before.back, back)
        add(back, before.back.plus((rate, duration)))
        add(back.plus((1.0, self._ended(now.position))), now.out)
        needed = self._needed(now.position)
        add(needed, back)
        uses = [s.first_unpack for s in self._returning]
        due = [use for use in uses if before.position <= use < now.position]
        if due and before.position > 0:
            spare_ms = max(0.0, now.time_ms - self._times_ms[max(due)])
            add(needed, before.back.plus((rate, duration), (-rate * spare_ms, ONE)))
        if before.reserved is not None:
            # What is issued later is copied after the event.
            waits_ms = max(0.0, self._times_ms[before.position] - before.time_ms)
            add(back, before.reserved.plus((rate, duration), (-rate * waits_ms, ONE)))
        return back

    def _ended(self, t: int) -> Linear:
        """What left for good, and would not be there by now anyway."""
        return _sum(s for s in self._swappable if s.first_unpack == NONE and s.gap_last < t)

    def _needed(self, t: int) -> Linear:
        """What must be back before event t, but for what the event itself uses."""
        return ZERO.plus(*((s.size, s.back.get(t, s.swapped)) for s in self._returning))

    def _reserved(self, now: _Moment) -> Linear:
        t = now.position
        used = [storage for storage in self._returning if storage.first_unpack == t]
        needed = self._needed(t).plus(
            (1.0, _sum(used)), *((-storage.size, storage.back[t]) for storage in used)
        )
        reserved = self.program.column(upper=self._total)
        self.program.at_most(needed, reserved)
        self.program.at_most(now.back, reserved)
        return reserved

    def _limit_memory(self, before: _Moment, now: _Moment, storages: Iterable[_Storage]) -> None:
        t = now.position
        away = now.out.minus(self._ended(t))
        if t >= self._forward_end:
            now.reserved = self._reserved(now)
            away = away.minus(now.reserved)
        away = away.plus(
            *((storage.size, now.dropped[storage.id]) for storage in self._rebuildable),
            *((-storage.size, storage.longer[t]) for storage in storages if t in storage.longer),
        )
        self.program.at_most(Linear(constant=self._kept[t] - self._budget), away)
        for storage in self._rebuildable:
            if storage.first_unpack + 1 == t == before.position + 1:
                held = Linear(constant=self._kept_after[t - 1] - self._budget)
                replayed = before.dropped[storage.id]
                more = storage.extra - storage.size
                self.program.at_most(held.plus((more, replayed)), away)


def _sum(storages: Iterable[_Storage]) -> Linear:
    return ZERO.plus(*((storage.size, storage.swapped) for storage in storages))


def _split(positions: list[int], num_parts: int) -> Iterator[list[int]]:
    size = max(1, -(-len(positions) // num_parts))
    for first in range(0, len(positions), size):
        yield positions[first : first + size]
