"""``python -m scantling``."""

from scantling.cli import main

if __name__ == "__main__":
    main()
