"""Records as tables: of one benchmark, of a server, of everything at once."""
