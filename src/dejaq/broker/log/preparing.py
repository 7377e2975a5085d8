"""Prepared transactions at the broker."""

from __future__ import annotations

from dejaq import limits
from dejaq.broker.log.topics import LogTopics
from dejaq.broker.log.transacting import log_step_of, log_steps_done
from dejaq.domain.context import CallContext
from dejaq.errors import Code, InvalidArgument, error_of
from dejaq.protocol.v1 import log_pb2


async def prepare(
    logs: LogTopics, context: CallContext, request: log_pb2.LogPrepareRequest
) -> log_pb2.LogPrepareResponse:
    """Store the steps of a client under a name."""
    topic, most = logs.catalog.live_log(request.topic), limits.TRANSACTION_NAME_CHARS_MAX
    if not 1 <= len(request.name) <= most or not request.name.isprintable():
        raise InvalidArgument(f"a transaction has a name of 1 to {most} printable characters")
    if not 1 <= len(request.steps) <= limits.TRANSACTION_STEPS_MAX:
        raise InvalidArgument(f"a transaction has 1 to {limits.TRANSACTION_STEPS_MAX} steps, not {len(request.steps)}")
    if not 1 <= request.timeout_ms <= limits.LOG_IN_DOUBT_MS_MAX:
        raise InvalidArgument(f"a transaction is in doubt for 1 to {limits.LOG_IN_DOUBT_MS_MAX} ms")
    if sum(len(step.append.records) for step in request.steps) > limits.BATCH_BYTES_MAX:
        raise error_of(Code.BATCH_TOO_LARGE)
    steps = [log_step_of(logs, step) for step in request.steps]
    now = logs.clock.now_ms()
    verdict = await logs.storage.prepare(topic, request.name, steps, now + request.timeout_ms, now, context)
    if verdict.code is Code.OK:
        log_steps_done(logs, steps)
    return log_pb2.LogPrepareResponse(code=verdict.code.name, step=verdict.step, row=verdict.row)


async def resolve(
    logs: LogTopics, context: CallContext, request: log_pb2.LogResolveRequest
) -> log_pb2.LogResolveResponse:
    """Commit or abort a prepared transaction."""
    topic = logs.catalog.live_log(request.topic)
    found = await logs.storage.resolve(
        topic, request.name, commit=request.commit, now=logs.clock.now_ms(), context=context
    )
    logs.resolved(found)
    return log_pb2.LogResolveResponse()


async def in_doubt(
    logs: LogTopics, context: CallContext, request: log_pb2.LogInDoubtRequest
) -> log_pb2.LogInDoubtResponse:
    """The transactions of a log that are not resolved."""
    found = await logs.storage.in_doubt(logs.catalog.live_log(request.topic))
    return log_pb2.LogInDoubtResponse(
        transactions=[
            log_pb2.LogPrepared(
                name=one.name,
                prepared_ms=one.prepared_ms,
                deadline_ms=one.deadline_ms,
                messages=one.count,
                offsets=len(one.commits),
            )
            for one in found
        ]
    )
