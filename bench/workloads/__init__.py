"""The realistic workloads: scattered times, ids chosen by the client, single calls, many clients, long runs."""
