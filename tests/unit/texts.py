"""The texts that people read in documentation, docstrings, comments and messages, with their line numbers."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

_FENCE = re.compile(r"\s*(```|~~~)")
_SENTENCE = re.compile(r"\w+ \w+ \w+")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


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


def python(source: str, *, messages: bool) -> Iterator[Text]:
    """Docstrings, comments and names of tests; with `messages` also literals that are sentences, such as errors."""
    yield from _comments(source)
    tree = ast.parse(source)
    docstrings = {id(node): node for node in _docstrings(tree)}
    for node in docstrings.values():
        yield _text(node.lineno, str(node.value))
    for part in ast.walk(tree):
        if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef) and part.name.startswith("test_"):
            yield Text(part.lineno, part.name.replace("_", " "))
        elif messages and id(part) not in docstrings and isinstance(part, ast.Constant) and _sentence(part.value):
            yield _text(part.lineno, str(part.value))


def _sentence(value: object) -> bool:
    return isinstance(value, str) and bool(_SENTENCE.search(value))


def _docstrings(tree: ast.Module) -> Iterator[ast.Constant]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.value


def _comments(source: str) -> Iterator[Text]:
    """Comments on lines that follow one another are one text."""
    lines: list[str] = []
    begin = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if lines and token.start[0] != last + 1:
            yield _text(begin, " ".join(lines))
            lines = []
        if not lines:
            begin = token.start[0]
        lines.append(token.string.lstrip("#: "))
        last = token.start[0]
    if lines:
        yield _text(begin, " ".join(lines))


def _text(line: int, text: str) -> Text:
    text = re.sub(r"`[^`]*`", "`code`", " ".join(text.split()))
    return Text(line, re.sub(r"\]\([^)]*\)", "]", text))
