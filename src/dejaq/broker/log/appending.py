"""Appends at the broker: the batches are checked, and stored as they came."""

from __future__ import annotations

from google.protobuf.message import DecodeError

from dejaq import limits
from dejaq.broker.log.topics import LogTopics
from dejaq.domain.context import CallContext
from dejaq.domain.headers import decode_headers
from dejaq.domain.topic import Topic
from dejaq.errors import Code, DejaqError, InvalidArgument, Refused, error_of
from dejaq.protocol.v1 import log_pb2
from dejaq.storage.log.base import Append, Appended, LogName

_SESSION_BYTES = 10


async def append(logs: LogTopics, context: CallContext, request: log_pb2.LogAppend) -> log_pb2.LogAppended:
    """Append the batches of a request; each is accepted or refused by itself."""
    topic = logs.catalog.live_log(request.topic)
    if request.session and len(request.session) != _SESSION_BYTES:
        raise InvalidArgument(f"a session has {_SESSION_BYTES} bytes, not {len(request.session)}")
    until = request.client_ms + request.timeout_ms if request.timeout_ms else None
    checked: list[Append | DejaqError] = []
    for place, batch in enumerate(request.batches):
        name = LogName(request.session, request.sequence + place) if request.session else None
        try:
            count = count_of(topic, batch.records)
        except Refused as refusal:
            checked.append(refusal)
            continue
        window = topic.settings.rollback_window_ms
        checked.append(Append(batch.bucket, batch.records, count, name, until, window))
    appends = [one for one in checked if isinstance(one, Append)]
    # A quota of bytes counts whole batches, as a log stores them.
    rows, records = sum(one.count for one in appends), [one.records for one in appends]
    logs.quotas.take(context, topic, rows, creates=False, bodies=records)
    answers = iter(await logs.storage.append(topic, appends, logs.clock.now_ms(), context) if appends else [])
    response = log_pb2.LogAppended()
    count = 0
    for one in checked:
        answer = next(answers) if isinstance(one, Append) else one
        if isinstance(answer, Appended):
            count += one.count if isinstance(one, Append) and not answer.repeated else 0
            response.bases.append(answer.base)
            response.ts.append(answer.ts)
            response.codes.append(int(Code.OK))
        else:
            response.bases.append(0)
            response.ts.append(0)
            response.codes.append(int(answer.code))
    logs.appended(topic, {one.bucket for one in appends}, count)
    return response


def count_of(topic: Topic, records: bytes) -> int:
    """The number of messages of a batch; raises a refusal for a batch that readers could not read."""
    if len(records) > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE)
    try:
        parsed = log_pb2.LogRecords.FromString(records)
    except DecodeError:
        raise InvalidArgument("the records of a batch cannot be read") from None
    bodies = parsed.bodies
    count = len(bodies)
    if not count:
        raise InvalidArgument("a batch has at least one message")
    if count > limits.BATCH_COUNT_MAX:
        raise error_of(Code.BATCH_TOO_LARGE)
    if len(records) > topic.settings.max_body_bytes and max(map(len, bodies)) > topic.settings.max_body_bytes:
        raise error_of(Code.BODY_TOO_LARGE)
    for column, name in ((parsed.keys, "keys"), (parsed.headers, "headers")):
        if len(column) not in (0, count):
            raise InvalidArgument(f"a batch of {count} messages has {len(column)} {name}")
    for headers in parsed.headers:
        try:
            decode_headers(headers)
        except ValueError:
            raise error_of(Code.INVALID_HEADERS) from None
        if len(headers) > limits.HEADERS_BYTES_MAX:
            raise error_of(Code.INVALID_HEADERS)
    return count
