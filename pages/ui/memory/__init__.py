"""What the page Memory is made of: the lines by seqlen, what fits, what the peak consists of."""
