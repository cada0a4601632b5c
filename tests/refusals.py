"""What a checkpoint that cannot be read has to answer, whatever its format."""

from scantling.errors import FieldError
from scantling.formats.checkpoint import describe, load_checkpoint


def one_line(path):
    """Whether a file is refused, which takes one line."""
    try:
        describe(load_checkpoint(path))
    except FieldError as error:
        return len(str(error).splitlines()) == 1
    return False
