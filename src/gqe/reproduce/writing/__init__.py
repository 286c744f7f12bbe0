"""Results in files: CSV and LaTeX for tables, PNG and SVG for figures, one HTML page for all."""
