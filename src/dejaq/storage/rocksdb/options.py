"""The options with which RocksDB is opened and read."""

from __future__ import annotations

from rocksdict import BlockBasedOptions, Cache, DBCompressionType, DBRecoveryMode, Options, ReadOptions

_CACHE_BYTES = 64 * 1024 * 1024
# The default of RocksDB.
_LEVELS = 7


def scan_options() -> ReadOptions:
    """What a scan reads is hardly ever read again: with it the cache would grow for days."""
    options = ReadOptions()
    options.fill_cache(False)  # type: ignore[call-arg]
    return options


def database_options() -> Options:
    """Those of the database; its own log is switched off at each write."""
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_paranoid_checks(True)
    # A torn last record is what a power cut leaves of an unacknowledged write. Anything else is damage, and is
    # refused; the watermark finds a log that ends too early.
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    # Most of what leaves the memtable is gone before it reaches the second level, and is not worth packing.
    lz4 = DBCompressionType.lz4()
    options.set_compression_per_level([DBCompressionType.none(), *[lz4] * (_LEVELS - 1)])
    options.set_write_buffer_size(64 * 1024 * 1024)
    options.set_max_write_buffer_number(3)
    options.set_max_background_jobs(2)
    options.set_level_compaction_dynamic_level_bytes(True)
    # Runs are short-lived; files dense with deletions are compacted early so that scans need not step over them.
    options.add_compact_on_deletion_collector_factory(10_000, 5_000, 0.5)
    # Most ids that are looked for are not there; filters say so for half the cost (1.7 to 0.8 us an id).
    tables = BlockBasedOptions()
    tables.set_bloom_filter(10, False)
    tables.set_block_cache(Cache(_CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    options.set_memtable_whole_key_filtering(True)
    options.set_memtable_prefix_bloom_ratio(0.05)
    options.set_max_open_files(512)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * 1024 * 1024)
    options.set_stats_dump_period_sec(0)
    return options
