"""What runs at the server: the ServerApp, its engine, who takes part."""
