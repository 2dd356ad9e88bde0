"""The measuring of in-process backends: rounds of runs in turns, the check before a speed is printed, energy, peaks of memory."""
