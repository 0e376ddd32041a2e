"""The members of the common set of weightings, a family a file; importing a file registers its members."""
