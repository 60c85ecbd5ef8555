"""What a training costs: FLOPs, bytes and hours, from the real model computed without numbers."""
