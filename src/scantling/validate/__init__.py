"""Be measured: predictions against public tables that nobody here wrote.

Each module reads tables of one kind and registers them by file name; ``validate(folder)`` scores
every table it finds.
"""
