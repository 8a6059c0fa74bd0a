"""What people do with a trained model: chat with it, sample from it, measure it. Nothing here trains."""

TEMPERATURE, TOP_K, TOKENS = 0.8, 40, 200  # how replies are drawn when nobody says otherwise
