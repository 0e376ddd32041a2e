"""The audit of a run or a bundle: what left each site, and attacks on it with the user's own data."""
