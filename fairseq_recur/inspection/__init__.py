"""What a trained model looks at: attention weights and gates of one sentence."""
