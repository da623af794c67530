"""Which algorithm, with which arguments: names, checks and presets."""
