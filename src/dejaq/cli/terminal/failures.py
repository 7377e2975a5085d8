"""How the command reports a failure: what happened, to what, what to do next, and the exit code."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass

import click

from dejaq.cli.terminal.invocation import Invocation
from dejaq.errors import Code, DejaqError, NoBroker, Unavailable

REFUSED = 1
NO_BROKER = 3
# A broker answered, and cannot serve now.
UNAVAILABLE = 4
# The store behind the broker has failed or is damaged.
STORE = 5

NEXT_STEPS: dict[Code, str] = {
    Code.ALREADY_EXISTS: "nothing; the message is stored once",
    Code.INVALID_ARGUMENT: "correct the request; the message names the argument",
    Code.INVALID_ID: "choose an id of these characters",
    Code.INVALID_TIME: "give UTC milliseconds or an ISO 8601 time with a zone",
    Code.TOO_FAR: "choose an earlier time; `dejaq topic describe NAME` shows max_future_ms",
    Code.INVALID_PRIORITY: "choose a whole number from -2147483648 to 2147483647",
    Code.INVALID_HEADERS: "use fewer or shorter headers; the limits are in docs/settings.md",
    Code.INVALID_LEASE: "choose another length; `dejaq topic describe NAME` shows max_lease_ms",
    Code.INVALID_TOPIC: "choose a name of these characters",
    Code.INVALID_SETTING: "correct the setting; docs/settings.md lists the allowed values",
    Code.DUPLICATE_IN_BATCH: "give each message of the batch its own id",
    Code.BODY_TOO_LARGE: "send a smaller body; `dejaq topic describe NAME` shows max_body_bytes",
    Code.BATCH_TOO_LARGE: "send the items in several batches",
    Code.LIMIT_EXCEEDED: "close what is no longer used, or raise the limit in the broker's settings",
    Code.BODY_UNREADABLE: "read `raw_body`; then reject, delete or edit the message",
    Code.QUOTA_EXCEEDED: "delete topics or messages, or ask an operator for a larger quota (`dejaq rights quota`)",
    Code.INVALID_SCHEDULE: "test the expression with `dejaq cron next TOPIC EXPRESSION --proposed`",
    Code.ID_TAKEN: "choose another id, or change that message with `dejaq edit` or `dejaq move`",
    Code.LEASED: "try again when the lease has ended; `dejaq get TOPIC ID` shows when it ends",
    Code.LEASE_LOST: "use a longer lease, extend it during the work, or take fewer messages at a time",
    Code.NOT_OWNER: "repeat the command with --group and the owner; `dejaq get TOPIC ID` shows the owner",
    Code.VERSION_CONFLICT: "read the message again and decide again",
    Code.BATCH_NAME_TAKEN: "send the batch again in a new producer session; the SDK does so by itself",
    Code.DIFFERENT_STORES: "use topics with one bucket, or use one transaction per store",
    Code.NOT_FOUND: "list the messages with `dejaq browse TOPIC`",
    Code.TOPIC_NOT_FOUND: "create it with `dejaq topic create NAME`; `dejaq topic list` shows all topics",
    Code.TOPIC_DELETING: "wait until `dejaq topic list` no longer shows it",
    Code.TOPIC_EXISTS: "show its settings with `dejaq topic describe NAME`, or choose another name",
    Code.CLAIM_LOST: "let the member join its group again; the SDK does this by itself",
    Code.EXPIRED: "append the batch again, with a later time limit",
    Code.TOO_LATE: "append messages that correct those of the batch",
    Code.OFFSET_OUT_OF_RANGE: "read from an offset that the log still has",
    Code.BODY_MISSING: "send the body again; the SDK does this by itself",
    Code.OUT_OF_STATE: "open a new session; if the SDK is in use, report this as a defect",
    Code.VERSION_UNSUPPORTED: "use the address that the message names, or upgrade the older side",
    Code.UNAUTHENTICATED: "log in with `dejaq login`, or give a key with DEJAQ_API_KEY or a token with DEJAQ_TOKEN",
    Code.PERMISSION_DENIED: "ask an administrator of the broker for the right",
    Code.UNAVAILABLE: "find the reason with `dejaq info`, then try again",
    Code.DRAINING: "wait until the broker is back, then try again",
    Code.OVERLOADED: "try again in a moment, with fewer messages at once",
    Code.NO_BROKER: "start a broker with `dejaq serve --data DIR`, or give another address with --url or DEJAQ_URL",
    Code.KEY_UNAVAILABLE: "check `encryption_keys` of the broker; docs/encryption.md",
    Code.CUT_OFF: "use another broker; `dejaq info` at this one shows the reason",
    Code.INDEFINITE: "repeat the command with the same --id; a repeat never creates a second message",
    Code.STORE_LOCKED: "stop the broker that uses it, or choose another --data",
    Code.STORE_CORRUPT: "restore the directory from a backup; the broker changed nothing in it",
    Code.STORE_NEWER: "run the DejaQ release that wrote it, or a newer one",
    Code.STORE_FAILED: "check the disk or the database server: free space, permissions and its log",
    Code.PORT_TAKEN: "stop the process that uses it, or choose another --listen",
    Code.PIPELINE_FAILED: "correct the cause and run the command again; what was committed before remains valid",
    Code.CLUSTER_REFUSED: "change the name of the broker or of the cluster, or its storage",
    Code.SYNCHRONIZATION_FAILED: "check the addresses of etcd, and that more than half of its servers are running",
    Code.SYNCHRONIZATION_FULL: "free space in etcd as docs/operations.md describes; brokers recover by themselves",
    Code.INTERNAL: "read the broker's log, and report the defect with what it shows",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a person or a program reads it."""

    code: str
    message: str
    next: str
    exit_code: int


def explain(error: BaseException, hints: Mapping[Code, str] | None = None) -> Failure:
    """The failure that an exception represents; `hints` are next steps that replace the general ones."""
    if isinstance(error, DejaqError):
        message = error.message + (f" ({error.details})" if error.details else "")
        step = (hints or {}).get(error.code) or NEXT_STEPS.get(error.code, "")
        return Failure(
            code=error.code.name,
            message=message,
            next=step,
            exit_code=_exit_code(error),
        )
    if isinstance(error, OSError):
        return Failure(code="OS_ERROR", message=str(error), next="", exit_code=REFUSED)
    return Failure(
        code=Code.INTERNAL.name,
        message=f"{type(error).__name__}: {error}",
        next="run it again with --debug and report what it shows",
        exit_code=REFUSED,
    )


def _exit_code(error: DejaqError) -> int:
    if error.code in (Code.STORE_FAILED, Code.STORE_CORRUPT):
        return STORE
    if isinstance(error, NoBroker):
        return NO_BROKER
    return UNAVAILABLE if isinstance(error, Unavailable) else REFUSED


def report(error: BaseException, invocation: Invocation) -> int:
    """Write the failure to stderr; its exit code."""
    if invocation.debug:
        traceback.print_exception(error, file=sys.stderr)
    failure = explain(error, invocation.hints)
    if invocation.json:
        body = {"code": failure.code, "message": failure.message, "next": failure.next}
        click.echo(json.dumps({"error": body}), err=True)
        return failure.exit_code
    click.secho(f"dejaq: {failure.message} [{failure.code}]", fg="red", err=True)
    if failure.next:
        click.echo(f"  next: {failure.next}", err=True)
    return failure.exit_code
