"""Networks by name: what settings can ask for."""
