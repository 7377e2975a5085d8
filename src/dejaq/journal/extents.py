"""What the signed statements in a journal's directory say of each origin: where it begins, what is kept, where it ends.

Signatures are not checked here; `dejaq audit verify` does that.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from dejaq.errors import PipelineError
from dejaq.journal.names import HEAD_SUFFIX, RETENTION_SUFFIX


@dataclass(frozen=True, slots=True)
class OriginExtent:
    """What the statements in a journal's directory say of one origin."""

    # The first record of the origin's history; 1 unless the journal says otherwise.
    begin: int = 1
    # Retention has dropped the records before this one.
    kept_from: int = 1
    # The last record in a segment; 0 where the journal does not say.
    last: int = 0


def journal_extents(directory: Path) -> dict[str, OriginExtent]:
    """What a journal says of its origins; its folders are those of `found_segments`."""
    try:
        folders = [directory, *(path for path in directory.iterdir() if path.is_dir())]
        files = [path for folder in folders for path in folder.iterdir() if path.suffix in _STATEMENTS]
    except OSError as error:
        raise PipelineError(f"the journal {directory} cannot be read: {error.strerror}") from None
    found: dict[str, OriginExtent] = {}
    for path in files:
        before = found.get(path.stem, OriginExtent())
        values = _statement(path)
        if path.suffix == HEAD_SUFFIX:
            found[path.stem] = OriginExtent(before.begin, before.kept_from, max(before.last, values["last"]))
        elif values["dropped_events"]:
            found[path.stem] = OriginExtent(before.begin, values["first"], before.last)
        else:
            # Nothing was dropped: a new origin of an older store, whose numbers go on.
            found[path.stem] = OriginExtent(values["first"], before.kept_from, before.last)
    return found


_STATEMENTS = {HEAD_SUFFIX: ("last",), RETENTION_SUFFIX: ("first", "dropped_events")}


def _statement(path: Path) -> dict[str, int]:
    try:
        values = json.loads(path.read_bytes())
        return {name: int(values[name]) for name in _STATEMENTS[path.suffix]}
    except (OSError, ValueError, KeyError, TypeError):
        raise PipelineError(f"{path} is not a statement of a journal; run `dejaq audit verify {path.parent}`") from None
