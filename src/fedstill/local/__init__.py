"""The client's side: the training loop, the terms of its objective, what it reports besides weights."""
