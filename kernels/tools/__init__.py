"""Tools for those who work on the kernels: compile offline, sanitize, time the host."""
