"""Experiments: several systems trained, decoded and scored under equal conditions."""
