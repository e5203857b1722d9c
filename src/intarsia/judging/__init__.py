"""Whether models are any good: what clients count, metrics, intervals, baselines and warnings; over plain data."""

JUDGE = "judge"
"""The value of a task that asks a client, in an evaluation, to count what its own model says."""
FACTS = "facts"
"""The value of the answer in which the client tells of its training data."""
