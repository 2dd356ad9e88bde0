"""What a case runs on: its environment, the memory that it may take, how a process lives and dies there, what a device really reaches."""
