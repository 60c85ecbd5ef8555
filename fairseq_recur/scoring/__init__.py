"""Scoring translations; needs neither torch nor fairseq."""
