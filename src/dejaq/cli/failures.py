"""How a failure is told: what happened, to what, what to do next, and the exit code."""

from __future__ import annotations

import json
import sys
import traceback
from dataclasses import dataclass

import click

from dejaq.cli.invocation import Invocation
from dejaq.errors import MEANINGS, Code, DejaqError, Unavailable

REFUSED = 1
NO_BROKER = 3

NEXT_STEPS: dict[Code, str] = {
    Code.NO_BROKER: "start one with `dejaq serve --data DIR`, or name another with --url or DEJAQ_URL",
    Code.UNAVAILABLE: "see what troubles it with `dejaq info`, then try again",
    Code.DRAINING: "wait until it is back, then try again",
    Code.OVERLOADED: "try again in a moment, with less at once",
    Code.TOPIC_NOT_FOUND: "make it with `dejaq topic create NAME`; `dejaq topic list` shows what is there",
    Code.TOPIC_EXISTS: "see its settings with `dejaq topic describe NAME`, or choose another name",
    Code.TOPIC_DELETING: "wait until `dejaq topic list` no longer shows it",
    Code.NOT_FOUND: "see what is there with `dejaq browse TOPIC`",
    Code.NOT_OWNER: "repeat it as its owner with --group; `dejaq get TOPIC ID` shows the owner",
    Code.LEASED: "try again when its lease has ended; `dejaq get TOPIC ID` shows when that is",
    Code.ID_TAKEN: "choose another id, or change that message with `dejaq edit` or `dejaq move`",
    Code.TOO_FAR: "choose an earlier time; `dejaq topic describe NAME` shows max_future_ms",
    Code.BODY_TOO_LARGE: "send less; `dejaq topic describe NAME` shows max_body_bytes",
    Code.INDEFINITE: "repeat it with the same --id; a repeat never makes a second message",
    Code.STORE_LOCKED: "stop the broker that holds it, or choose another --data",
    Code.CLUSTER_REFUSED: "change the name of the broker or of the cluster, or its storage",
    Code.SYNCHRONIZATION_FAILED: "check the addresses of etcd, and that more than half of its servers run",
    Code.STORE_CORRUPT: "restore the directory from a backup; nothing in it was changed",
    Code.STORE_NEWER: "run the DejaQ release that wrote it, or a newer one",
    Code.STORE_FAILED: "check the disk or the database server: free space, rights and its log",
    Code.PORT_TAKEN: "stop the process that uses it, or choose another --listen",
    Code.PIPELINE_FAILED: "put that right and run it again; what was committed before stands",
    Code.INTERNAL: "look into the broker's log, and report it with what is there",
}


@dataclass(frozen=True, slots=True)
class Failure:
    """An error as a person or a program reads it."""

    code: str
    message: str
    next: str
    exit_code: int


def explain(error: BaseException) -> Failure:
    """The failure behind any exception."""
    if isinstance(error, DejaqError):
        message = error.message + (f" ({error.details})" if error.details else "")
        step = NEXT_STEPS.get(error.code, "")
        if not step and MEANINGS.get(error.code, "") != error.message:
            step = MEANINGS.get(error.code, "")
        return Failure(
            code=error.code.name,
            message=message,
            next=step,
            exit_code=NO_BROKER if isinstance(error, Unavailable) else REFUSED,
        )
    if isinstance(error, OSError):
        return Failure(code="OS_ERROR", message=str(error), next="", exit_code=REFUSED)
    return Failure(
        code=Code.INTERNAL.name,
        message=f"{type(error).__name__}: {error}",
        next="run it again with --debug and report what it shows",
        exit_code=REFUSED,
    )


def report(error: BaseException, invocation: Invocation) -> int:
    """Write the failure to stderr; its exit code."""
    if invocation.debug:
        traceback.print_exception(error, file=sys.stderr)
    failure = explain(error)
    if invocation.json:
        body = {"code": failure.code, "message": failure.message, "next": failure.next}
        click.echo(json.dumps({"error": body}), err=True)
        return failure.exit_code
    click.secho(f"dejaq: {failure.message} [{failure.code}]", fg="red", err=True)
    if failure.next:
        click.echo(f"  next: {failure.next}", err=True)
    return failure.exit_code
