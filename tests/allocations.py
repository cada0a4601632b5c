"""What torch's allocator of a CPU gives out and takes back: every byte, a kernel's scratch too."""

import os

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # its profiler speaks on stderr otherwise

MARK = 12347
"""Bytes of a block that only says: here."""


def peaks(run):
    """The most bytes alive in each part of ``run(mark)``, between the calls of ``mark``.

    Counted from nothing, so all that is to be counted is made inside.
    """
    import torch
    from torch.profiler import ProfilerActivity, profile

    def mark():
        torch.empty(MARK, dtype=torch.uint8)

    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        run(mark)
    alive, found = 0, [0]
    for size in _sizes(seen):
        if size == MARK:
            found.append(alive)
        elif size != -MARK:
            alive += size
            found[-1] = max(found[-1], alive)
    return found


def _sizes(seen):
    """Blocks given out, and taken back as negative sizes, in order."""
    from torch._C._profiler import _EventType

    found, left = [], list(seen.profiler.kineto_results.experimental_event_tree())
    while left:
        event = left.pop()
        left += event.children
        if event.tag == _EventType.Allocation:
            found.append((event.start_time_ns, event.id, event.extra_fields.alloc_size))
    return [size for *_, size in sorted(found)]
