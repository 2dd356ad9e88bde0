"""What was asked and what came of it: cases, records with their statistics, the journal that they are kept in."""
