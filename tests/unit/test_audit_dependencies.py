"""S10: the audit of the pinned packages counts what it audited, and fails for what nobody has accepted."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from datetime import date
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
from audit_dependencies import CANARY, Answer, audit, installed

TODAY = date(2026, 11, 19)
WANTED = {"a": "1", "b": "2"}


class Database:
    """An answer to every question."""

    def __init__(self, found: Mapping[str, list[str]], *, reachable: bool = True) -> None:
        self.found = found
        self.reachable = reachable

    def look_up(self, wanted: Mapping[str, str]) -> Answer:
        if not self.reachable:
            return Answer({}, list(wanted))
        if CANARY[0] in wanted:
            return Answer({CANARY[0]: ["CVE-1"]}, [])
        return Answer(self.found, [name for name in wanted if name not in self.found])


def test_every_package_is_counted() -> None:
    code, lines = audit(WANTED, Database({"a": [], "b": []}).look_up, TODAY, {}, required=True)
    assert (code, lines) == (0, ["pip-audit: 2 of 2 packages were audited"])


def test_a_vulnerability_fails_until_it_is_accepted_and_after_that_day() -> None:
    look_up = Database({"a": ["CVE-7"], "b": []}).look_up
    assert audit(WANTED, look_up, TODAY, {}, required=False)[0] == 1
    assert audit(WANTED, look_up, TODAY, {"CVE-7": (TODAY, "not used")}, required=False)[0] == 0
    assert audit(WANTED, look_up, TODAY, {"CVE-7": (date(2026, 11, 18), "not used")}, required=False)[0] == 1


def test_a_package_that_was_not_audited_fails() -> None:
    code, lines = audit(WANTED, Database({"a": []}).look_up, TODAY, {}, required=False)
    assert code == 1
    assert "pip-audit: not audited: b" in lines


def test_a_database_that_does_not_answer_is_reported_and_fails_where_it_is_required() -> None:
    look_up = Database({}, reachable=False).look_up
    code, lines = audit(WANTED, look_up, TODAY, {}, required=False)
    assert (code, lines) == (
        0,
        ["pip-audit: the database of vulnerabilities cannot be reached: 0 of 2 packages were audited"],
    )
    assert audit(WANTED, look_up, TODAY, {}, required=True)[0] == 1


def test_every_installed_package_is_audited() -> None:
    assert {"cryptography", "joserfc", "pip-audit"} <= set(installed())
    assert "dejaq-mq" not in installed()
