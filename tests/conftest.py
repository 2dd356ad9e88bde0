"""Its folder is where tests of every floor find what they share (gguf_models)."""
