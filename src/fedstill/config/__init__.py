"""The configuration of a run: its tables, TOML trees, and the shipped presets."""
