"""What a rule can allow or deny."""

from __future__ import annotations

from enum import StrEnum


class Operation(StrEnum):
    """One kind of thing that a caller can do; every call and every frame of a session needs one or more of them."""

    # Create a topic of this name.
    CREATE = "create"
    # See the times, counts, headers and owners of messages, and the topic's settings; no bodies.
    INSPECT = "inspect"
    # Look at messages with their bodies, without taking them.
    READ = "read"
    # Create messages as a producer group.
    PRODUCE = "produce"
    # Move, edit and cancel messages as a producer group.
    CHANGE = "change"
    # Lease messages and settle them.
    CONSUME = "consume"
    # Put, pause, run and remove the schedules of a cron topic.
    SCHEDULE = "schedule"
    # Change the topic's settings, delete it, and move or remove its dead letters; with everything above.
    ADMIN = "admin"
    # Manage rules, quotas, backups and the audit log: it is about the cluster, not about a topic.
    OPERATE = "operate"


MEANINGS: dict[Operation, str] = {
    Operation.CREATE: "create a topic of this name",
    Operation.INSPECT: "see settings, counts, and the times, headers and owners of messages, without bodies",
    Operation.READ: "look at messages with their bodies; includes `inspect`",
    Operation.PRODUCE: "create messages as a producer group",
    Operation.CHANGE: "move, edit and cancel messages as a producer group",
    Operation.CONSUME: "lease and settle messages",
    Operation.SCHEDULE: "put, pause, run and remove schedules",
    Operation.ADMIN: "change settings, delete the topic, redrive and purge; includes all of the above",
    Operation.OPERATE: "manage rules, quotas, backups and the audit log of the cluster; its topic is `*`",
}

# What is about a topic, and so belongs to the administrator of the topic.
OF_TOPICS = frozenset(Operation) - {Operation.OPERATE}
# What an allowed operation allows besides itself. A denied one denies nothing else.
_IMPLIED: dict[Operation, frozenset[Operation]] = {
    Operation.READ: frozenset({Operation.INSPECT}),
    Operation.ADMIN: OF_TOPICS,
}


def with_implied(operations: frozenset[Operation]) -> frozenset[Operation]:
    """The operations that are allowed where these are."""
    return operations.union(*(_IMPLIED.get(operation, frozenset()) for operation in operations))
