"""Logs on stderr: lines for people, or one JSON object per line for programs."""

from __future__ import annotations

import json
import logging
from datetime import UTC, datetime

import click

LEVELS = click.Choice(["debug", "info", "warning", "error"])


class JsonFormatter(logging.Formatter):
    """A record as JSON: time, level, logger and the fields that it carries, or its text."""

    def format(self, record: logging.LogRecord) -> str:
        """One line."""
        at = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        told = {"at": at.replace("+00:00", "Z"), "level": record.levelname.lower(), "logger": record.name}
        told.update(getattr(record, "dejaq", None) or {"event": record.getMessage()})
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def log_to_stderr(level: str, *, as_json: bool) -> None:
    """Log records of `level` and above."""
    handler = logging.StreamHandler()
    if as_json:
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
