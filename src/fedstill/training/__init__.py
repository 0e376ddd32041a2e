"""The training loop that clients and server share: batches, optimisers, schedules, fit."""
