"""Sources of events: what watches the driver and the compilers of one process."""
