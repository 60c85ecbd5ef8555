"""Figures of trainings and trained models; they need matplotlib, an optional dependency."""
