"""The parts of a document, and how Markdown, reStructuredText and HTML write them."""
