"""The engine on a cluster."""
