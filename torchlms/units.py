# SPDX-License-Identifier: BSD-3-Clause
"""Quantities as people write and read them: MB = 10^6 bytes, MiB = 2^20 bytes."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([a-z]+)\s*", re.IGNORECASE)
_BYTES_OF: dict[str, int] = {
    "b": 1,
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", start=1)},
}
BYTE_UNITS = "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB"


def parse_bytes(text: str) -> int | None:
    """Bytes of "20GiB" or "1.5 MB" (units in any case); None for anything else."""
    match = _QUANTITY.fullmatch(text)
    if match is None or match[2].lower() not in _BYTES_OF:
        return None
    return round(float(match[1]) * _BYTES_OF[match[2].lower()])


def parse_rate(text: str) -> int | None:
    """Bytes per second of "400MB/s"; None for anything else."""
    quantity, slash, second = text.rpartition("/")
    return parse_bytes(quantity) if slash and second.strip().lower() == "s" else None


def format_bytes(size: float) -> str:
    """ "1.50 GiB": the largest binary unit that leaves a number of at least 1."""
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB"), (1, "KiB")):
        if abs(size) >= 1024**power:
            return f"{size / 1024**power:.2f} {unit}"
    return f"{size:.0f} B"


def format_rate(bytes_per_s: float) -> str:
    """ "400.0 MB/s": decimal units, as disks and networks are sold."""
    for power, unit in ((3, "GB/s"), (2, "MB/s"), (1, "KB/s")):
        if abs(bytes_per_s) >= 1000**power:
            return f"{bytes_per_s / 1000**power:.2f} {unit}"
    return f"{bytes_per_s:.0f} B/s"


def format_us(microseconds: float) -> str:
    """ "12.3 ms": seconds, milliseconds or microseconds."""
    if abs(microseconds) >= 1e6:
        return f"{microseconds / 1e6:.2f} s"
    if abs(microseconds) >= 1e3:
        return f"{microseconds / 1e3:.1f} ms"
    return f"{microseconds:.0f} us"
