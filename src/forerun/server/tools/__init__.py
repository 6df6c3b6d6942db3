"""Tool calls: how models write them, what forces them, and how their text is read."""
