"""Jobs that go on, and jobs that end: `make endurance` is the same for longer."""

import endurance
import enduring
import pytest


@pytest.mark.nightly
def test_steps_of_layers_on_and_on():
    run = endurance.step(steps=24, chunks=4, seed=1)  # XLA still starts threads
    assert run["refused"] == 0
    assert [sample[-1]["done"] for sample in run["samples"]] == [24] * 4


@pytest.mark.nightly
@pytest.mark.parametrize("how", enduring.ENDINGS)
def test_nobody_hangs_when_a_process_ends(how):
    with enduring.ending_job(how, processes=3) as job:
        ended = job.wait()
    said = "\n".join(map(str, ended))
    assert not any(one.hung for one in ended), said
    for process in (0, 2):
        # Told by us of the end of process 1, or by jax.distributed.
        if how == "without_waiting":
            assert ended[process].result == {}, said
        elif (
            how in enduring.WAITED_FOR
        ):  # nobody holds the result any more that would have to be waited for
            assert ended[process].result == {} or "UNAVAILABLE" in ended[process].output, said
        else:
            assert "error" in (ended[process].result or {}) or ended[process].status != 0, said
            assert "UNAVAILABLE" in ended[process].output, said
