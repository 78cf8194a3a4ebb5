# SPDX-License-Identifier: BSD-3-Clause
"""The page of features names tests that exist, and names every test of compatibility."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def names_of_tests(pattern: str) -> set[str]:
    texts = [path.read_text() for path in (ROOT / "tests").glob(pattern)]
    return {name for text in texts for name in re.findall(r"^def (test_\w+)", text, re.MULTILINE)}


def test_every_test_and_case_that_the_page_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) > 50
    assert named <= names_of_tests("**/test_*.py")
    cases = set(re.findall(r'^@case\("(\w+)"', (ROOT / "tests/cases/cases.py").read_text(), re.M))
    assert set(re.findall(r"\b[CG]\d\d\b", PAGE)) <= cases


def test_every_row_names_a_test_or_says_why_none_runs() -> None:
    rows = [line.split(" | ") for line in PAGE.splitlines() if line.startswith("| ")]
    rows = [row for row in rows if row[0] != "| feature"]
    assert len(rows) > 50
    unshown = [row[0] for row in rows if not re.search(r"`test_\w+`|\bC\d\d\b", row[-1])]
    assert unshown == ["| CUDA streams, graphs, cuDNN's reserve space"]


def test_every_test_of_compatibility_is_on_the_page() -> None:
    assert not {
        name for name in names_of_tests("python/test_compat_*.py") if f"`{name}`" not in PAGE
    }
