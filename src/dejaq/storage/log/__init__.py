"""The contract of a storage for log topics."""
