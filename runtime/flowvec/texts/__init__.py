"""Files of texts: finding them, reading them at constant memory, and what is wrong with a row."""
