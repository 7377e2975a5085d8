"""The commands of docs/encryption.md: a key file, an encrypted topic, and another key while the broker serves."""

from __future__ import annotations

import stat
from pathlib import Path

from tests.acceptance.process import dejaq, serve


def test_a_key_is_replaced_while_the_broker_serves(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    assert dejaq("storage", "make-key", str(file)).code == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with serve(tmp_path / "data", "--encryption-keys", f"file:{file}") as broker:
        url = broker.url
        assert dejaq("topic", "create", "secret", "--encryption", "bodies", url=url).code == 0
        sent = dejaq("produce", "secret", "--id", "a", "--delay", "1h", "--body", "words", url=url)
        assert sent.code == 0, sent.err
        again = dejaq("produce", "secret", "--id", "a", "--delay", "1h", "--body", "words", url=url)
        assert again.code == 0, again.err
        assert "ID_TAKEN" in dejaq("produce", "secret", "--id", "a", "--delay", "1h", "--body", "other", url=url).err
        assert dejaq("storage", "make-key", str(file)).code == 0
        rekeyed = dejaq("storage", "rekey", "--json", url=url)
        assert rekeyed.objects == [{"topic": "secret", "key": "k2"}]
        # The first line is the new key; without the old one everything is still readable.
        file.write_text(file.read_text().splitlines()[0] + "\n")
        assert "words" in dejaq("get", "secret", "a", url=url).out
    with serve(tmp_path / "data", "--encryption-keys", f"file:{file}") as broker:
        assert "words" in dejaq("get", "secret", "a", url=broker.url).out
        refused = dejaq("topic", "edit", "secret", "--encryption", "none", url=broker.url)
        assert "INVALID_SETTING" in refused.err


def test_a_topic_without_encryption_is_not_rekeyed(tmp_path: Path) -> None:
    with serve(tmp_path / "data") as broker:
        assert dejaq("topic", "create", "plain", url=broker.url).code == 0
        assert "no topic is encrypted" in dejaq("storage", "rekey", url=broker.url).out
        assert "is not encrypted" in dejaq("storage", "rekey", "plain", url=broker.url).err
        assert "--encryption-keys" in dejaq("topic", "create", "x", "--encryption", "bodies", url=broker.url).err
