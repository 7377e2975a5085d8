"""Reading lines as soon as they arrive."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dejaq.cli.terminal import lines as reading
from dejaq.cli.terminal.lines import LINE_BYTES_MAX, lines_of


async def read_all(path: Path) -> list[bytes]:
    with path.open("rb") as source:
        return [line async for some in lines_of(source.fileno()) for line in some]


@pytest.mark.parametrize("text", [b"", b"\n", b"one", b"one\n", b"one\ntwo", b"one\n\ntwo\n", b"\r\n"])
async def test_lines_are_split_at_newlines(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "rows").write_bytes(text)
    expected = text.split(b"\n")
    assert await read_all(tmp_path / "rows") == (expected if expected[-1] else expected[:-1])


async def test_lines_longer_than_a_chunk_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "CHUNK_BYTES", 7)
    lines = [b"x" * n for n in range(60)]
    (tmp_path / "rows").write_bytes(b"\n".join(lines))
    assert await read_all(tmp_path / "rows") == lines


async def test_a_line_without_an_end_is_cut_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "LINE_BYTES_MAX", 100)
    monkeypatch.setattr(reading, "CHUNK_BYTES", 64)
    (tmp_path / "rows").write_bytes(b"y" * 10_000 + b"\nnext\n")
    first, second = await read_all(tmp_path / "rows")
    assert 100 < len(first) <= 100 + 1 + 64
    assert second == b"next"
    assert LINE_BYTES_MAX > 100


async def test_complete_lines_are_returned_before_the_pipe_ends() -> None:
    read, write = os.pipe()
    try:
        os.write(write, b"first\nsec")
        lines = lines_of(read)
        assert await anext(lines) == [b"first"]
        os.write(write, b"ond\n")
        assert await anext(lines) == [b"second"]
    finally:
        os.close(write)
    assert [line async for line in lines] == []
    os.close(read)


async def test_a_source_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    directory = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(IsADirectoryError):
            await anext(lines_of(directory))
    finally:
        os.close(directory)
