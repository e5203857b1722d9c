"""ModFL: the published experiments."""
