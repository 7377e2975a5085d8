"""What is asked of the lake: each job is plain functions from DataFrames to DataFrames."""
