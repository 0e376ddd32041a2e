"""fedstill: fuse models trained where the data cannot leave."""

__version__ = "0.1.0"
