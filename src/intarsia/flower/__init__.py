"""The same federation on Flower: SuperLink, SuperNodes, TLS, authentication; the only room that imports flwr."""
