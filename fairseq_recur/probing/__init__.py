"""Probing tasks: what the sentence representations of an encoder contain (Conneau et al. 2018)."""
