"""How much is drafted: what steps cost, how often drafts are right, and the nodes that pay."""
