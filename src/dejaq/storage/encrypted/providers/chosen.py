"""The key provider that a setting names."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from dejaq.errors import Code, error_of
from dejaq.storage.encrypted.providers.base import KeyProvider
from dejaq.storage.encrypted.providers.listed import environment_keys, file_keys
from dejaq.storage.encrypted.providers.vault import VaultKeys

FORMS = "file:PATH, env:VARIABLE or vault:https://HOST:PORT/MOUNT/KEY"


def key_provider(setting: str) -> KeyProvider:
    """The provider of `file:PATH`, `env:VARIABLE` or `vault:URL`; raises INVALID_ARGUMENT for another form."""
    if find_spec("cryptography") is None:
        raise error_of(
            Code.INVALID_ARGUMENT, "encryption needs the package cryptography, which dejaq-mq[security] installs"
        )
    kind, _, where = setting.partition(":")
    if not where:
        kind = ""
    match kind:
        case "file":
            return file_keys(Path(where))
        case "env":
            return environment_keys(where)
        case "vault":
            return VaultKeys(where)
        case _:
            raise error_of(Code.INVALID_ARGUMENT, f"encryption_keys is {FORMS}")
