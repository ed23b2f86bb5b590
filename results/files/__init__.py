"""Run folders: the journal, the library of runs, durable writing."""
