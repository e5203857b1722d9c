"""ModFL: two halves of a model, federated with different peers."""
