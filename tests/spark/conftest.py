"""One Spark session for all tests of a process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("pyspark", reason="the pipeline is not installed")
pytest.register_assert_rewrite("tests.spark.comparing")

from dejaq.pipeline.lake.lake import Lake  # noqa: E402
from dejaq.pipeline.spark.session import start  # noqa: E402
from tests.chaos.sizes import FULL, size  # noqa: E402
from tests.spark.standalone import Cluster, standalone  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            # The first test waits until Spark has started, perhaps on a busy machine.
            item.add_marker(pytest.mark.timeout(7_200 if FULL else 1_200))


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    # Several workers have a session each, so each leaves memory to the others; the usual share is a quarter.
    memory = {} if FULL else {"spark.driver.memory": "3g"}
    # Tasks are tried four times, as on a cluster.
    session = start("local[2,4]", settings={"spark.sql.shuffle.partitions": "2", **memory}, brief=True)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers, for the tests that need a Spark cluster."""
    with standalone(tmp_path_factory.mktemp("cluster"), memory_mb=size("R18_MEMORY_MB", ci=512, full=3_072)) as found:
        yield found


@pytest.fixture
def lake(spark: SparkSession, tmp_path: Path) -> Lake:
    return Lake(spark, str(tmp_path / "lake"))


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    return tmp_path / "journal"
