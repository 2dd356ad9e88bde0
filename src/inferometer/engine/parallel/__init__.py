"""Ranks: the processes that share one model, their start, what they are told and what becomes of them."""
