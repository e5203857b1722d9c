"""Populations by name."""
