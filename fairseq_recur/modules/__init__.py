"""The parts as `torch.nn.Module`: parameters, initialisation, masks, incremental state."""
