"""Attention weights, gates and recurrence matrices of trained models."""
