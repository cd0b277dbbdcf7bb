"""The page in a browser: its files, and the routes that only it uses."""
