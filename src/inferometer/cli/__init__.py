"""The command line: one small file a command, which parses, calls one function and prints."""
