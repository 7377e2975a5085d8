"""The texts that the rule for plain English reads, and those that it ignores."""

from __future__ import annotations

import ast

import pytest

from tests.unit import texts
from tests.unit.banned_phrases import BANNED

PAGE = """# A title
A line with `code that is told` and
a [link](docs/told.md).

```sh
told in code
```

<!-- told in a comment -->
| a | table |
"""
MODULE = '''"""About
this module."""

# One comment
# on two lines.
X = "a whole sentence"  # behind code
Y = "short"


def test_a_thing() -> None:
    """Its docstring."""
    raise ValueError(f"{X} is not valid here")
'''


def test_a_page_is_read_by_paragraphs_without_code_and_addresses() -> None:
    read = [(text.line, text.text) for text in texts.markdown(PAGE)]
    assert read == [(1, "# A title A line with `code` and a [link]."), (10, "| a | table |")]


def test_a_module_is_read_by_docstrings_comments_names_of_tests_and_messages() -> None:
    read = {(text.line, text.text) for text in texts.python(MODULE, ast.parse(MODULE), messages=True)}
    assert read == {
        (1, "About this module."),
        (4, "One comment on two lines. behind code"),
        (6, "a whole sentence"),
        (10, "test a thing"),
        (11, "Its docstring."),
        (12, "is not valid here"),
    }
    assert len(list(texts.python(MODULE, ast.parse(MODULE), messages=False))) == 4


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("one JSON object a line", True),
        ("10,000 messages a second, at most", True),
        ("about a second later", False),
        ("a repeat never creates a second message", False),
        ("it happens once a second message is there", False),
        ("the dead-letter topic", False),
        ("The dead are moved", True),
        ("a clock that is not gone by", True),
        ("Who asks for some gets them", True),
        ("a broker that asks", False),
        ("the counter tells it", True),
        ("as well as the pings can tell", False),
        ("a slow client holds others up", True),
        ("a batch holds up to 100 messages", False),
    ],
)
def test_a_banned_phrase_is_found_and_similar_phrases_are_not(text: str, found: bool) -> None:
    assert any(banned.find(text) for banned in BANNED) is found
