"""What an encoder's sentence representations tell: probing tasks (Conneau et al. 2018)."""
