"""How drafts are verified beside the coupled walk of `speculation.verify`, and what comes of a step."""
