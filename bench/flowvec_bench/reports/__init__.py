"""Shows measurements: tables for the terminal, Markdown pages with charts."""
