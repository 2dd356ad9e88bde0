"""A server measured from outside: a client of its own, without torch, and the arithmetic of what its requests took."""
