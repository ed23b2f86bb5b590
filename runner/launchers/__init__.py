"""Where a sweep runs besides this process's own device: through Ray on several GPUs, of one host or of many."""
