"""Teaching: every number of a step, every equation of a rule, pictures of both, and exercises."""
