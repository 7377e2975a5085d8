"""The SQL of the store is read from files, with the fragments that several queries share."""

from __future__ import annotations

import pytest

from dejaq.storage.postgres.queries import SQL


@pytest.mark.parametrize(
    ("fragment", "names"),
    [
        ("begun AS (\n    INSERT INTO session", ("create_all", "continue_sessions")),
        ("unnest(counts) AS count\n    FROM count_list", ("minutes", "counts_by_step")),
    ],
)
def test_queries_contain_the_fragments_that_they_include(fragment: str, names: tuple[str, ...]) -> None:
    assert [name for name in SQL if fragment in SQL[name]] == list(names)


def test_no_query_has_a_line_that_includes_something() -> None:
    assert not [name for name, text in SQL.items() if "include:" in text]
    assert "sessions" not in SQL, "a fragment is no query"
