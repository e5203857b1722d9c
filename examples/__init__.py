"""Examples: each runs by itself. A package of its own, so that none of that name stands before it."""
