from __future__ import annotations

from bench.harness.strace import total_calls

SUMMARY = """\
% time     seconds  usecs/call     calls    errors syscall
------ ----------- ----------- --------- --------- ----------------
 99.10    0.042110         421       100           fdatasync
  0.80    0.000340         340        11         1 fsync
  0.10    0.000040          40         7           openat
------ ----------- ----------- --------- --------- ----------------
100.00    0.042490         360       118         1 total
"""


def test_only_the_calls_that_sync_are_counted() -> None:
    assert total_calls(SUMMARY) == 111


def test_a_summary_without_calls_is_zero() -> None:
    assert total_calls("") == 0
