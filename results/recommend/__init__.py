"""What to use where: who wins each shape, the rule that follows, and advice by use case, all from stored results."""
