"""What a spec costs: counts, time. Every function works on one spec and on a column alike."""
