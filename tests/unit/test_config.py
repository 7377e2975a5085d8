"""The broker's configuration: its sources, and the values that it refuses."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from dejaq.config import BrokerConfig, is_loopback, load_config, split_address
from dejaq.errors import Code, DejaqError


def test_arguments_win_over_the_environment_which_wins_over_the_file(tmp_path: Path) -> None:
    file = tmp_path / "dejaq.toml"
    file.write_text('cluster = "file"\nbroker = "file"\ntopics_max = 5\ninsecure = true\n')
    env = {"DEJAQ_CLUSTER": "env", "DEJAQ_BROKER": "env", "DEJAQ_URL": "not a key", "DEJAQ_DRAIN_MS": "7"}
    config = load_config(file, env=env, cluster="argument", data=None)
    assert (config.cluster, config.broker, config.topics_max, config.insecure) == ("argument", "env", 5, True)
    assert (config.drain_ms, config.data, config.listen) == (7, None, "127.0.0.1:7400")


def test_an_empty_value_unsets_an_optional_key() -> None:
    assert load_config(env={"DEJAQ_LISTEN": ""}).listen is None
    assert load_config(env={"DEJAQ_DATA": "/x"}, data="").data is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("listen", "nowhere"),
        ("listen", "127.0.0.1:65536"),
        ("listen", ":7400"),
        ("metrics", "127.0.0.1:-1"),
        ("window_bytes", "lots"),
        ("window_bytes", 5),
        ("prefetch_ms_max", 5_001),
        ("prefetch_ms_max", -1),
        ("sessions_max", 0),
        ("connections_max", 10_001),
        ("insecure", "perhaps"),
        ("topics_max", True),
        ("cluster", 5),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_key(key: str, value: Any) -> None:
    with pytest.raises(DejaqError) as caught:
        load_config(env={}, **{key: value})
    assert caught.value.code is Code.INVALID_ARGUMENT
    assert key in caught.value.message


def test_an_invalid_value_in_the_environment_names_the_variable() -> None:
    with pytest.raises(DejaqError, match="DEJAQ_DRAIN_MS"):
        load_config(env={"DEJAQ_DRAIN_MS": "soon"})


def test_an_unknown_key_is_an_error_that_lists_the_known(tmp_path: Path) -> None:
    file = tmp_path / "dejaq.toml"
    file.write_text("lisen = '127.0.0.1:1'\n")
    with pytest.raises(DejaqError, match=r"lisen.*listen"):
        load_config(file, env={})


@pytest.mark.parametrize("text", ["not toml at all [", "\x00"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    file = tmp_path / "dejaq.toml"
    file.write_text(text)
    with pytest.raises(DejaqError, match=r"dejaq\.toml"):
        load_config(file, env={})
    with pytest.raises(DejaqError, match="missing"):
        load_config(tmp_path / "missing", env={})


@pytest.mark.parametrize("key", ["listen", "metrics"])
@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.1", "[::]", "example.org"])
def test_without_encryption_only_loopback_is_served_by_default(key: str, host: str) -> None:
    """S11: only loopback may be served without encryption."""
    with pytest.raises(DejaqError, match="insecure"):
        load_config(env={}, **{key: f"{host}:7400"})
    assert getattr(load_config(env={}, insecure=True, **{key: f"{host}:7400"}), key) == f"{host}:7400"


def test_loopback_has_several_names() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.8.8.8", "::1", "localhost")))
    assert not is_loopback("localhost.example.org")
    assert split_address("[::1]:80") == ("::1", 80)


def test_every_key_is_documented() -> None:
    for key in fields(BrokerConfig):
        assert str(key.metadata["doc"]).endswith("."), key.name
