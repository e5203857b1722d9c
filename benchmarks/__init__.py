"""Measurements that are not tests: each a command. A package of its own, so that none of that name stands before it."""
