"""The lake's tables as Delta tables: a log beside the files that Spark wrote, for every other engine."""
