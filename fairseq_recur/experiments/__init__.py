"""A table of a paper: several systems, trained, decoded and scored alike."""
