"""Tables, charts and pages of measurements."""
