"""Spark finds this package by its name: `spark.read.format("dejaq")` works without registering anything."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, DataSourceWriter
from pyspark.sql.types import StructType

from pyspark_dejaq.columns import READ_SCHEMA
from pyspark_dejaq.journal import EVENT_SCHEMA, JournalStreamReader
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.reading import FilteringReader, PendingReader
from pyspark_dejaq.rows import check_read_schema, check_schema
from pyspark_dejaq.worker import use_this_python
from pyspark_dejaq.writing import BatchWriter, StreamWriter, check_topic

use_this_python()


class DefaultSource(DataSource):
    """Format `dejaq`: reads the pending timeline of a topic, writes to topics, and streams the journal."""

    @classmethod
    def name(cls) -> str:
        """The name that `format` accepts."""
        return "dejaq"

    def _options(self) -> Options:
        return Options.parse(dict(self.options))

    def schema(self) -> str:
        """The columns of a message, or of an event when the journal is read."""
        return EVENT_SCHEMA if self._options().journal else READ_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a topic's pending timeline."""
        options = self._options()
        if options.journal:
            raise OptionError(
                "the journal is read as a stream: spark.readStream.format('dejaq').option('journal', ...), with "
                "trigger(availableNow=True) for what is there now"
            )
        check_read_schema(schema, READ_SCHEMA)
        session = SparkSession.getActiveSession()
        pushes = session is not None and session.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
        # With Spark versions that push no filters down, a reader that can take filters fails: see docs/connector.md.
        return (FilteringReader if pushes else PendingReader)(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write rows as messages, or move or cancel by id."""
        return BatchWriter(self._checked(schema, overwrite))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Stream the events of the journal."""
        options = self._options()
        options.need("journal")
        check_read_schema(schema, EVENT_SCHEMA)
        return JournalStreamReader(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802  Spark's name
        """Write the rows of a stream."""
        return StreamWriter(self._checked(schema, overwrite))

    def _checked(self, schema: StructType, overwrite: bool) -> Options:
        options = self._options()
        options.need("dejaq.url")
        options.need("topic")
        if overwrite:
            raise OptionError("format dejaq only appends: a timeline is changed by operation=move or cancel")
        if options.mode == "collect":
            options.need("badRowsPath")
        check_schema(schema, options.operation)
        check_topic(options)
        return options
