"""FedMN: the published experiments."""
