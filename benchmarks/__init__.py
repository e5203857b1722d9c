"""What is measured, and attacked, at length; commands, each with its record."""
