"""What people and programs read: analyses as structs, then text, JSON and figures."""
