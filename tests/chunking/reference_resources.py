"""An independent simulation of a layer in chunks: second by second, with whole seconds."""

PARTS = ("planning", "out", "copies", "experts", "sums", "back")
RESOURCE = {"out": "network", "back": "network", "copies": "inside", "sums": "inside"}
RESOURCE |= {"planning": "planner", "experts": "experts"}


def simulate(chunks):
    """When each part of each chunk runs: {(part, chunk): (start, end)}, and when all is over.

    Args:
      chunks: for each chunk, a dictionary with whole seconds of each of PARTS.
    """
    start, end, ready = {}, {}, {}
    everything = [(part, chunk) for chunk in range(len(chunks)) for part in PARTS]
    now = 0
    while any(end.get(job, now + 1) > now for job in everything):
        while newly := [j for j in everything if j not in ready and _may_start(j, end, now)]:
            ready |= dict.fromkeys(newly, now)
            # What takes no time may free what takes none either, so that this goes round again.
            for job in newly:
                if not chunks[job[1]][job[0]]:
                    start[job] = end[job] = now
        for resource in set(RESOURCE.values()):
            jobs = [job for job in ready if RESOURCE[job[0]] == resource]
            waiting = [job for job in jobs if job not in start]
            if waiting and all(end[job] <= now for job in jobs if job in start):
                first = min(waiting, key=lambda job: (ready[job], job[1]))
                start[first], end[first] = now, now + chunks[first[1]][first[0]]
        now += 1
    return {job: (start[job], end[job]) for job in everything}, max(end.values(), default=0)


def _may_start(job, end, now):
    part, chunk = job
    needed = []
    if part == "planning":
        needed += [("planning", chunk - 1)] * (chunk > 0)
    else:
        needed.append((PARTS[PARTS.index(part) - 1], chunk))
    if part == "out" and chunk:
        needed.append(("out", chunk - 1))
    return all(end.get(other, now + 1) <= now for other in needed)
