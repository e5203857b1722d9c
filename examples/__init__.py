"""Programs to start from: each runs as it is, `python examples/NAME.py`."""
