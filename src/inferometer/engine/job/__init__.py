"""Batch jobs: a file of prompts becomes a file of results, over as many starts as it takes."""
