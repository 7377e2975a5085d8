"""These tests are about logic and not about the disk."""

from tests.memory_disk import tmp_path

__all__ = ["tmp_path"]
