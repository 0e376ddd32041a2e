"""Running: configuration, presets, checkpoints, history, the loop."""
