# SPDX-License-Identifier: BSD-3-Clause
"""Recorded traces and plans as JSON files: never pickle, so loading one cannot run code."""

from __future__ import annotations

import abc
import json
import os
import pathlib
import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Self

if TYPE_CHECKING:
    from torchlms.planning import Costs, Forecast

MAX_FILE_BYTES = 1 << 30
VERSION = 1


def _refuse_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a number that a plan can hold")


def _parse(text: str, where: str) -> dict[str, Any]:
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"torchlms: {where}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(
            f"torchlms: {where}: expected a JSON object, found a {type(document).__name__}"
        )
    return document


def _read(path: str | os.PathLike[str]) -> str:
    where = os.fspath(path)
    size = os.stat(path).st_size
    if size > MAX_FILE_BYTES:
        raise ValueError(f"torchlms: {where}: {size} bytes; at most {MAX_FILE_BYTES} are read")
    try:
        return pathlib.Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"torchlms: {where}: not UTF-8 text: {error}") from error


def _part(document: Mapping[str, Any], name: str, kind: type, where: str) -> Any:
    if name not in document:
        raise ValueError(f"torchlms: {where}: {name!r} is missing")
    if not isinstance(document[name], kind):
        raise ValueError(
            f"torchlms: {where}: {name!r} should be a {kind.__name__}, "
            f"found a {type(document[name]).__name__}"
        )
    return document[name]


def _check_header(document: Mapping[str, Any], form: str, where: str) -> None:
    for name, expected in (("format", form), ("version", VERSION)):
        found = _part(document, name, object, where)
        if found != expected:
            raise ValueError(
                f"torchlms: {where}: {name} is {found!r}; this torchlms reads {expected!r}"
            )


def _check_trace(trace: Mapping[str, Any], where: str) -> None:
    _check_header(trace, TraceFile.FORMAT, where)
    for name in ("ops", "values", "storages", "events"):
        _part(trace, name, list, where)


def _check_plan(plan: Mapping[str, Any], num_storages: int, where: str) -> None:
    _check_header(plan, "torchlms.plan", where)
    if _part(plan, "budget_bytes", int, where) < 0:
        raise ValueError(f"torchlms: {where}: budget_bytes is {plan['budget_bytes']!r}, negative")
    num_actions = len(_part(plan, "actions", list, where))
    if num_actions != num_storages:
        raise ValueError(
            f"torchlms: {where}: {num_actions} actions for the {num_storages} storages of the trace"
        )
    for position, storage in enumerate(_part(plan, "swap_in_order", list, where)):
        if not isinstance(storage, int) or not 0 <= storage < num_storages:
            raise ValueError(
                f"torchlms: {where}: swap_in_order[{position}] is {storage!r}, "
                f"not one of the {num_storages} storages"
            )


class _JsonFile(abc.ABC):
    """A JSON document with its format and version, kept as its canonical text.

    Equal and hashed by content. Thread-safety: immutable.
    """

    FORMAT: ClassVar[str]

    def __init__(self, text: str, where: str) -> None:
        document = _parse(text, where)
        self._check(document, where)
        self._text = json.dumps(document, sort_keys=True, separators=(",", ":"))
        self._where = where

    @abc.abstractmethod
    def _check(self, document: Mapping[str, Any], where: str) -> None:
        """Raises ValueError for a document that is damaged."""

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads and checks a file.

        Raises:
            OSError: it cannot be read.
            ValueError: it is damaged, too large, or of another format or version; says what is
                wrong and where.
        """
        return cls(_read(path), os.fspath(path))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the file whole or not at all: a reader never sees a part of it.

        Raises:
            OSError: the folder cannot be written.
        """
        target = pathlib.Path(path)
        unfinished = target.with_name(f".{target.name}.{os.getpid()}-{threading.get_ident()}")
        try:
            with open(unfinished, "w", encoding="utf-8") as file:
                file.write(self._text)
                file.flush()
                os.fsync(file.fileno())  # the name must not appear before the bytes
            os.replace(unfinished, target)
        except BaseException:
            unfinished.unlink(missing_ok=True)
            raise

    @property
    def where(self) -> str:
        """Where it comes from, for messages: the file's path, where there is one."""
        return self._where

    def to_dict(self) -> dict[str, Any]:
        """The whole document, as a new dict of JSON types."""
        return _parse(self._text, type(self).__name__)

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other._text == self._text

    def __hash__(self) -> int:
        return hash((type(self), self._text))


class TraceFile(_JsonFile):
    """One recorded step: ops, values, storages and events. `to_dict()` is the trace."""

    FORMAT = "torchlms.trace"

    @classmethod
    def load_any(cls, path: str | os.PathLike[str]) -> TraceFile:
        """The trace in a file: one that was saved as such, or that of a saved plan. Raises what
        `load` raises."""
        text, where = _read(path), os.fspath(path)
        document = _parse(text, where)
        if document.get("format") == PlanFile.FORMAT:
            return cls(json.dumps(PlanFile(text, where).trace), where)
        return cls(text, where)

    def plan(
        self,
        budget: int | float | str,
        *,
        policy: str = "auto",
        costs: Costs | None = None,
        disk_path: str | None = None,
    ) -> Forecast:
        """What the step would do within `budget`, without running it: see
        `torchlms.planning.forecast`."""
        from torchlms.planning import forecast  # which reads trace files

        return forecast(self, budget, policy=policy, costs=costs, disk_path=disk_path)

    def _check(self, document: Mapping[str, Any], where: str) -> None:
        _check_trace(document, where)


class PlanFile(_JsonFile):
    """What to do with each storage of a recorded step, together with that step's trace."""

    FORMAT = "torchlms.plan_file"

    def _check(self, document: Mapping[str, Any], where: str) -> None:
        _check_header(document, self.FORMAT, where)
        trace = _part(document, "trace", dict, where)
        _check_trace(trace, f"{where}: trace")
        plan = _part(document, "plan", dict, where)
        _check_plan(plan, len(trace["storages"]), f"{where}: plan")

    @property
    def plan(self) -> dict[str, Any]:
        plan: dict[str, Any] = self.to_dict()["plan"]
        return plan

    @property
    def trace(self) -> dict[str, Any]:
        trace: dict[str, Any] = self.to_dict()["trace"]
        return trace

    @property
    def budget_bytes(self) -> int:
        """The budget the plan was made for; 0 for "min"."""
        return int(self.plan["budget_bytes"])
