"""What the full-size recipes share: fetching, steps that survive a kill, reading and cleaning."""
