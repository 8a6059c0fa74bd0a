"""What people do with a trained model: chat with it, sample from it, measure it. Nothing here trains."""
