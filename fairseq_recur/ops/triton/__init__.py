"""Triton kernels for GPUs, where torch's operations move more memory than the result needs.

They are compiled on first use and optional: each has an equivalent in torch, which computes
whatever a kernel does not cover. Modules named ``*_kernels`` import Triton, and are imported on
first use.
"""
