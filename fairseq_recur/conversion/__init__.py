"""Models of Hugging Face's format as fairseq's, and back: names, rows, options, files."""
