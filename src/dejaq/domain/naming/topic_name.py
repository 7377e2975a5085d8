"""The names of topics: global ones such as `mail`, a user's own such as `~alice/mail`, and those of the broker itself.

`~/mail` is short for the caller's own `mail`; the broker replaces it by the full name when a call arrives.
"""

from __future__ import annotations

import re

from dejaq.errors import Code, error_of

NAMESPACE_MARK = "~"
_LOCAL = r"[0-9A-Za-z._\-]{1,128}"
_USER = re.compile(r"[0-9A-Za-z._@+\-]{1,64}")
_FULL = re.compile(rf"(~{_USER.pattern}/)?{_LOCAL}")
_SHORT = re.compile(rf"~/{_LOCAL}")


def valid_topic_name(name: str) -> bool:
    """Whether `name` is the full name of a topic."""
    return _FULL.fullmatch(name) is not None


def valid_user(user: str) -> bool:
    """Whether a user of this name can have topics."""
    return _USER.fullmatch(user) is not None


def check_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC when `name` is not the full name of a topic."""
    if not valid_topic_name(name):
        raise error_of(Code.INVALID_TOPIC, _explained(name))


def check_asked_topic(name: str) -> None:
    """Raise INVALID_TOPIC when a client may not ask for `name`: neither a full name nor `~/NAME`."""
    if _SHORT.fullmatch(name) is None:
        check_topic_name(name)


def is_short(name: str) -> bool:
    """Whether the name is the caller's own topic, without the caller's name."""
    return name.startswith("~/")


def resolved(name: str, user: str) -> str:
    """The full name of a topic that `user` asks for; raises INVALID_TOPIC for `~/NAME` of a caller without a name."""
    if not is_short(name):
        return name
    if not valid_user(user):
        raise error_of(
            Code.INVALID_TOPIC,
            f"{name[:140]!r} is a topic of your own, but the broker does not know you as a user; log in, or write the "
            "full name, such as '~alice/mail'",
        )
    return f"~{user}/{name[2:]}"


def namespace_of(name: str) -> str:
    """The user to whom a topic belongs; empty for a global topic."""
    user, slash, _ = name.partition("/")
    return user[1:] if slash and user.startswith(NAMESPACE_MARK) else ""


def is_hidden(name: str) -> bool:
    """Whether the broker keeps records of its own under this name; no client can name such a topic."""
    return "/" in name and (name[0] != NAMESPACE_MARK or name.count("/") > 1)


def _explained(name: str) -> str:
    return (
        f"{name[:140]!r} is not a topic name: it has 1 to 128 characters of 0-9 A-Z a-z . _ -, and a user's own topic "
        "has ~USER/ in front"
    )
