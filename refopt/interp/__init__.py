"""Ways to run a rule. These modules know array libraries and number systems, never an optimizer."""
