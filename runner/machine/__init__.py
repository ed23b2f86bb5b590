"""The machine that is measured: devices, environment, NVML, telemetry, peaks."""
