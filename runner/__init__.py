"""Plans sweeps, measures them in worker processes and writes each number to a run folder."""
