"""What is to be run: the tables of a configuration, TOML trees, and the shipped presets."""
