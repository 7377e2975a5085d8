"""Findings, plots and the report."""
