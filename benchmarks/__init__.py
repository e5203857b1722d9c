"""Measurements beside the tests; commands that write the records which docs quote."""
