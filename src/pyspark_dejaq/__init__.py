"""Spark finds this package by its name: `spark.read.format("dejaq")` works without registering anything."""

from __future__ import annotations

from pyspark.sql import SparkSession
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from dejaq.domain.topic import TopicKind
from pyspark_dejaq.asking import topic_of
from pyspark_dejaq.columns import READ_SCHEMA
from pyspark_dejaq.journal import EVENT_SCHEMA, SEGMENT_SCHEMA, JournalStreamReader, SegmentStreamReader
from pyspark_dejaq.logs.columns import LOG_SCHEMA, check_log_schema
from pyspark_dejaq.logs.reading import LogBatchReader, LogStreamReader
from pyspark_dejaq.logs.writing import LogBatchWriter, LogStreamWriter
from pyspark_dejaq.options import OptionError, Options
from pyspark_dejaq.reading import FilteringReader, PendingReader
from pyspark_dejaq.rows import check_read_schema, check_schema
from pyspark_dejaq.worker import use_this_python
from pyspark_dejaq.writing import BatchWriter, StreamWriter, check_topic

use_this_python()


class DefaultSource(DataSource):
    """Format `dejaq`: reads the pending timeline of a topic, reads logs, writes to both, and streams the journal."""

    _is_log: bool | None = None

    @classmethod
    def name(cls) -> str:
        """The name that `format` accepts."""
        return "dejaq"

    def _options(self) -> Options:
        return Options.parse(dict(self.options))

    def schema(self) -> str:
        """The columns of a message of a timeline or of a log, or of an event when the journal is read."""
        options = self._options()
        if options.journal:
            return EVENT_SCHEMA if options.content == "events" else SEGMENT_SCHEMA
        return LOG_SCHEMA if options.subscribe and self._names_log(options, options.subscribe) else READ_SCHEMA

    def _names_log(self, options: Options, topic: str) -> bool:
        """Whether a topic is a log. The broker is asked once for a query."""
        if self._is_log is None:
            options.need("dejaq.url")
            self._is_log = topic_of(options, topic).settings.kind == TopicKind.LOG
        return self._is_log

    def reader(self, schema: StructType) -> DataSourceReader:
        """Read a topic's pending timeline, or a log."""
        options = self._options()
        if options.journal:
            raise OptionError(
                "the journal is read as a stream: spark.readStream.format('dejaq').option('journal', ...), with "
                "trigger(availableNow=True) for what is there now"
            )
        if self._names_log(options, options.need("subscribe")):
            check_read_schema(schema, LOG_SCHEMA)
            return LogBatchReader(options)
        check_read_schema(schema, READ_SCHEMA)
        session = SparkSession.getActiveSession()
        pushes = session is not None and session.conf.get("spark.sql.python.filterPushdown.enabled", "false") == "true"
        # With Spark versions that push no filters down, a reader that can take filters fails: see docs/connector.md.
        return (FilteringReader if pushes else PendingReader)(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Write rows as messages, move or cancel by id, or append to a log."""
        options = self._checked(schema, overwrite)
        return LogBatchWriter(options) if self._is_log else BatchWriter(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802  Spark's name
        """Stream the events of the journal, or a log."""
        options = self._options()
        if options.subscribe and not options.journal:
            if not self._names_log(options, options.subscribe):
                raise OptionError(
                    f"topic {options.subscribe!r} is a timeline, which is read as a batch: spark.read. A stream reads "
                    "a log, or the journal with .option('journal', ...)"
                )
            check_read_schema(schema, LOG_SCHEMA)
            return LogStreamReader(options)
        options.need("journal")
        events = options.content == "events"
        check_read_schema(schema, EVENT_SCHEMA if events else SEGMENT_SCHEMA)
        return (JournalStreamReader if events else SegmentStreamReader)(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802  Spark's name
        """Write the rows of a stream."""
        options = self._checked(schema, overwrite)
        return LogStreamWriter(options) if self._is_log else StreamWriter(options)

    def _checked(self, schema: StructType, overwrite: bool) -> Options:
        options = self._options()
        options.need("dejaq.url")
        options.need("topic")
        if overwrite:
            raise OptionError("format dejaq only appends: a timeline is changed by operation=move or cancel")
        if options.mode == "collect":
            options.need("badRowsPath")
        if self._names_log(options, options.topic):
            if options.operation != "create" or options.mode != "failfast":
                raise OptionError("a log only takes appends: leave operation and mode out")
            check_log_schema(schema)
            return options
        check_schema(schema, options.operation)
        check_topic(options)
        return options
