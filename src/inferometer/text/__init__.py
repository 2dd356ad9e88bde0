"""Text in, text out: tokenizers, incremental detokenisation, stop strings, chat templates. Nothing here needs torch."""
