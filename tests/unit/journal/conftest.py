"""A journal of five segments."""

from __future__ import annotations

from pathlib import Path

import pytest

from dejaq.journal.keys import SigningKey
from dejaq.journal.ledger import Ledger
from tests.unit.journal.records import created, deleted

ORIGIN = "store-1"


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return SigningKey.of(tmp_path / "journal.key")


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "journal"


@pytest.fixture
def ledger(directory: Path, key: SigningKey) -> Ledger:
    ledger = Ledger.open(directory, origin=ORIGIN, key=key)
    for number in range(5):
        first = 2 * number + 1
        ledger.append([created(first, [f"m-{number}"]), deleted(first + 1, 3)], 1_000 * number)
    return ledger
