"""What must be adapted in the installed fairseq and torch, and nowhere else."""


def apply() -> None:
    """Adapt the installed fairseq and torch; calling it again changes nothing."""
