"""How fast the engine is beside plain loops and other frameworks: `make bench`."""
