"""What drafters share: search for likely trees, rows and KV of draft programs, tables of successors."""
