"""The client's side: training, the terms of its objective, and what it reports besides weights."""
