"""From a study to questions: which cases it asks for, what is expected of each, and where the largest batch is looked for."""
