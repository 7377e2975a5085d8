"""Schedules between the wire and the domain."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dejaq.domain.schedules.schedule import ScheduleProgress, ScheduleSettings
from dejaq.protocol.v1 import cron_pb2


def values_from_proto(proto: cron_pb2.Schedule) -> dict[str, Any]:
    """The fields that were given."""
    values = {field.name: value for field, value in proto.ListFields()}
    for name in ("name", "expression"):
        values.setdefault(name, "")
    if "headers" in values:
        values["headers"] = dict(proto.headers)
    return values


def schedule_to_proto(values: Mapping[str, Any]) -> cron_pb2.Schedule:
    """Plain values as a schedule of the wire; what is None is left out. Raises ValueError or TypeError."""
    return cron_pb2.Schedule(**{key: value for key, value in values.items() if value is not None})


def info_to_proto(schedule: ScheduleSettings, progress: ScheduleProgress) -> cron_pb2.ScheduleInfo:
    """A schedule and how far it has come."""
    return cron_pb2.ScheduleInfo(
        schedule=schedule_to_proto(asdict(schedule)),
        next_ms=None if progress.paused else progress.next_ms,
        paused=progress.paused,
        count=progress.count,
        last_id=progress.last_id,
        history_ms=[at for at, _ in progress.history],
        history_outcomes=[outcome for _, outcome in progress.history],
    )
