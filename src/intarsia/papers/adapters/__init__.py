"""Adapters for FL: the published experiments."""
