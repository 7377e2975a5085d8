"""Compares any storage with the memory model, step by step."""
