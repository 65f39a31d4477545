"""Records -> statistics, verdicts, tables and figures: pandas and matplotlib, never torch."""
