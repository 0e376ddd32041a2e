"""From model files to one model, without a federation: sites pack bundles, the centre fuses them."""
