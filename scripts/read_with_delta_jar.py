"""Read a lake with Delta's own jar for Spark, and compare every table and kept version with what deltalake reads.

There is no jar for the version of Spark that DejaQ pins, so this runs in an environment of its own, with the newest
Spark for which Maven Central has a jar:

    python3 -m venv delta && delta/bin/pip install pyspark==4.2.* deltalake==1.6.0 pyarrow
    delta/bin/python scripts/read_with_delta_jar.py LAKE

Ends with exit code 0 if all rows are equal and the jar refuses to write.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

PACKAGE = "io.delta:delta-spark_4.2_2.13:4.4.0"


def main() -> int:
    """Compare every table; returns 0 when nothing differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lake", type=Path)
    parser.add_argument("--package", default=PACKAGE, help="the jar's coordinates on Maven Central")
    arguments = parser.parse_args()
    spark = _session(arguments.package)
    try:
        logs = sorted(arguments.lake.glob("*/_delta_log"))
        # A list, so that every table is compared and shown, also after one that differs.
        alike = [_compare(spark, log.parent) for log in logs]
    finally:
        spark.stop()
    return 0 if logs and all(alike) else 1


def _session(package: str) -> Any:
    from pyspark.sql import SparkSession

    return (
        SparkSession.builder.master("local[2]")
        .config("spark.jars.packages", package)
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config("spark.sql.catalog.spark_catalog", "org.apache.spark.sql.delta.catalog.DeltaCatalog")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.ui.enabled", "false")
        .getOrCreate()
    )


def _compare(spark: Any, table: Path) -> bool:
    """Whether the kept versions of a table are the same to both readers, and the jar refuses to write it."""
    from deltalake import DeltaTable
    from deltalake.exceptions import DeltaError

    newest = DeltaTable(table).version()
    alike = True
    for version in range(max(0, newest - 4), newest + 1):
        try:
            expected = DeltaTable(table, version=version).to_pyarrow_table()
        except (DeltaError, OSError) as error:
            print(f"{table.name} version {version}: not kept ({type(error).__name__})")
            continue
        found = spark.read.format("delta").option("versionAsOf", version).load(str(table)).toArrow()
        equal = _rows(found, expected.column_names) == _rows(expected, expected.column_names)
        print(f"{table.name} version {version}: {found.num_rows} rows, {'equal' if equal else 'DIFFERENT'}")
        alike = alike and equal
    refusal = _refusal(spark, table)
    print(f"{table.name}: {refusal or 'the jar WROTE to it'}")
    return alike and refusal is not None


def _rows(rows: Any, columns: list[str]) -> list[str]:
    return sorted(repr([row[name] for name in columns]) for row in rows.to_pylist())


def _refusal(spark: Any, table: Path) -> str | None:
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import PySparkException

    frame = spark.read.format("delta").load(str(table))
    try:
        frame.limit(0).write.format("delta").mode("append").save(str(table))
    except (PySparkException, Py4JJavaError) as error:
        lines = [line for line in str(error).splitlines() if "DELTA_" in line] or [str(error)]
        return f"refuses to write: {lines[0][:160]}"
    return None


if __name__ == "__main__":
    raise SystemExit(main())
