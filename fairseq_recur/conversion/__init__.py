"""Conversion of models between Hugging Face's format and fairseq's."""
