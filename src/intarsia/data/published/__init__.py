"""Readers of data sets in the files that their authors publish."""
