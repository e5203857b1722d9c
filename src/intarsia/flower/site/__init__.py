"""What runs at a site: node, relay, agent, and what it keeps."""
