"""The parts of the page Memory: the lines by seqlen, the longest sequences, the parts of the peak."""
