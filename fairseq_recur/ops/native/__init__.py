"""C code for operations that need fewer passes over memory than torch's operations allow.

It is compiled on first use and optional: each function has an equivalent in torch.
"""
