"""The texts that people read in documentation, docstrings, comments and messages, with their line numbers."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

_FENCE = re.compile(r"\s*(```|~~~)")
_SENTENCE = re.compile(r"\w+ \w+ \w+")
# A string that is skipped, or a comment. The tokenizer of the standard library takes several times as long.
_TOKEN = re.compile(
    r"""(?P<quotes>\"{3}|'{3})(?:\\.|(?!(?P=quotes)).)*(?P=quotes)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|(?P<comment>\#[^\n]*)""",
    re.DOTALL,
)
_DOCUMENTED: TypeAlias = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Text:
    """A piece of text and the line on which it begins."""

    line: int
    text: str


def markdown(source: str) -> Iterator[Text]:
    """The paragraphs of a page, without code, link addresses and comments."""
    fenced = False
    lines: list[str] = []
    begin = 1
    for number, line in enumerate([*source.splitlines(), ""], start=1):
        fence = bool(_FENCE.match(line))
        if fence or fenced or not line.strip() or line.startswith("<!--"):
            if lines:
                yield _text(begin, " ".join(lines))
            lines = []
            fenced = fenced != fence
            continue
        if not lines:
            begin = number
        lines.append(line)


def python(source: str, tree: ast.Module, *, messages: bool) -> Iterator[Text]:
    """Docstrings, comments and names of tests; with `messages` also literals that are sentences, such as errors."""
    yield from _comments(source)
    docstrings: set[int] = set()
    for node in statements(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
            yield Text(node.lineno, node.name.replace("_", " "))
        if isinstance(node, _DOCUMENTED) and (docstring := _docstring(node)) is not None:
            docstrings.add(id(docstring))
            yield _text(docstring.lineno, str(docstring.value))
    for part in _constants(tree) if messages else ():
        if id(part) not in docstrings and _sentence(part.value):
            yield _text(part.lineno, str(part.value))


def statements(tree: ast.AST) -> Iterator[ast.AST]:
    """A tree and all statements in it, without their expressions, of which there are many more."""
    yield tree
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(tree, field, ())
        if isinstance(below, list):
            for child in below:
                yield from statements(child)


def _constants(tree: ast.AST) -> Iterator[ast.Constant]:
    """All literals, in half the time that `ast.walk` takes."""
    waiting = [tree]
    while waiting:
        for value in vars(waiting.pop()).values():
            for part in value if isinstance(value, list) else (value,):
                if isinstance(part, ast.Constant):
                    yield part
                elif isinstance(part, ast.AST):
                    waiting.append(part)


def _sentence(value: object) -> bool:
    return isinstance(value, str) and bool(_SENTENCE.search(value))


def _docstring(node: _DOCUMENTED) -> ast.Constant | None:
    first = node.body[0] if node.body else None
    found = first.value if isinstance(first, ast.Expr) else None
    return found if isinstance(found, ast.Constant) else None


def _comments(source: str) -> Iterator[Text]:
    """Comments on lines that follow one another are one text."""
    lines: list[str] = []
    begin = last = counted = 0
    number = 1
    for match in _TOKEN.finditer(source):
        number += source.count("\n", counted, match.start())
        counted = match.start()
        if match["comment"] is None:
            continue
        if lines and number != last + 1:
            yield _text(begin, " ".join(lines))
            lines = []
        if not lines:
            begin = number
        lines.append(match["comment"].lstrip("#: "))
        last = number
    if lines:
        yield _text(begin, " ".join(lines))


def _text(line: int, text: str) -> Text:
    text = re.sub(r"`[^`]*`", "`code`", " ".join(text.split()))
    return Text(line, re.sub(r"\]\([^)]*\)", "]", text))
