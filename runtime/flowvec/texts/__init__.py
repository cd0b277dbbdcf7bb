"""Files of texts: finding them, reading them at constant memory, and checking rows."""
