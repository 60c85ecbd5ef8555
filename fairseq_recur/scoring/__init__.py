"""Scores of translations and summaries, without torch or fairseq."""
