"""Records -> statistics, verdicts, tables, figures. Knows records, pandas and matplotlib, no torch."""
