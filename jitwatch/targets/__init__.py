"""What can be swept, and the child process that serves it."""
