"""For how many standbys a commit waits, from the settings of the server."""

from __future__ import annotations

import pytest

from dejaq.storage.postgres.reading.standbys import confirmed


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ("", 0),
        ("  ", 0),
        ("a", 1),
        ("a, b, c", 1),
        ("*", 1),
        ("2 (a, b, c)", 2),
        ("FIRST 3 (a, b, c)", 3),
        ("any 2(*)", 2),
        # A standby may have such a name.
        ('"2nd", "first"', 1),
    ],
)
def test_the_number_is_that_of_the_setting(names: str, expected: int) -> None:
    assert confirmed(names, "on") == expected
    assert confirmed(names, "remote_apply") == expected


@pytest.mark.parametrize("level", ["off", "local"])
def test_a_commit_that_does_not_wait_has_no_copies(level: str) -> None:
    assert confirmed("FIRST 3 (a, b, c)", level) == 0
