"""The server: HTTP in one process, the engine in another, one small typed message protocol between them."""
