"""Two sides beside each other: verdicts and their statistics."""
