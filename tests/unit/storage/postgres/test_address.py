import pytest

from dejaq.config import BrokerConfig, load_config
from dejaq.errors import Code, DejaqError
from dejaq.storage.postgres.connection.address import Address, without_password


@pytest.mark.parametrize(
    ("dsn", "shown"),
    [
        ("postgres://u:secret@h:5432/db", "postgres://u@h:5432/db"),
        (
            "postgres://u:se%40cret@h1:1,h2:2/db?target_session_attrs=any",
            "postgres://u@h1:1,h2:2/db?target_session_attrs=any",
        ),
        ("postgresql://h/db?user=u&password=secret", "postgresql://h/db?user=u"),
        ("postgres://h/db", "postgres://h/db"),
        ("postgres://u:secret@[::1/db", "postgres://..."),
    ],
)
def test_an_address_is_shown_without_its_password(dsn: str, shown: str) -> None:
    assert without_password(dsn) == shown
    assert "secret" not in shown


def test_a_config_and_its_refusals_never_show_the_password() -> None:
    config = load_config(env={}, storage="postgres://u:secret@h/db")
    assert "secret" not in repr(config)
    assert "secret" not in repr(Address(str(config.storage), config.cluster))
    for bad in ("mysql://u:secret@h/db", "u:secret@h"):
        with pytest.raises(DejaqError) as refused:
            load_config(env={}, storage=bad)
        assert refused.value.code is Code.INVALID_ARGUMENT
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize("name", ["public", "pg_catalog", "information_schema", "x" * 64])
def test_a_cluster_must_be_able_to_name_a_schema(name: str) -> None:
    with pytest.raises(DejaqError, match="cluster"):
        BrokerConfig(storage="postgres://h/db", cluster=name).check()


def test_an_invalid_port_is_refused_in_one_sentence() -> None:
    with pytest.raises(DejaqError, match="not a number up to 65535"):
        Address("postgres://u:secret@h:99999/db", "dejaq")
