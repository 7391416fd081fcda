"""What the host wrote stays readable; what only a kernel could compute is never invented."""

from __future__ import annotations

import sys

import pytest

torch = pytest.importorskip("torch")

from jitwatch.errors import SimulationError  # noqa: E402
from jitwatch.simulate.cuda import kernel_wrote  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated")


def known(*values, dtype=torch.int64):
    return torch.tensor(values, dtype=dtype, device="cuda")


def unknown(size=4, dtype=torch.int64):
    return torch.empty(size, dtype=dtype, device="cuda")


def here() -> str:
    """`file:line` of the caller's next line."""
    frame = sys._getframe(1)
    return f"{frame.f_code.co_filename}:{frame.f_lineno + 1}"


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda x: x[1:], [5, 9, 12]),
        (lambda x: x[1:] - x[:-1], [5, 4, 3]),
        (lambda x: x.diff(), [5, 4, 3]),
        (lambda x: x.cumsum(0), [0, 5, 14, 26]),
        (lambda x: x.to(torch.int32), [0, 5, 9, 12]),
        (lambda x: x.int().long() // 2, [0, 2, 4, 6]),
        (lambda x: torch.cat([x, x + 1]), [0, 5, 9, 12, 1, 6, 10, 13]),
        (lambda x: x > 5, [False, False, True, True]),
        (lambda x: x.view(2, 2).t().contiguous(), [[0, 9], [5, 12]]),
        (lambda x: x.sort(descending=True).values, [12, 9, 5, 0]),
        (lambda x: torch.searchsorted(x, known(6)), [2]),
        (lambda x: torch.where(x > 5, x, 0), [0, 0, 9, 12]),
        (lambda x: torch.add(x, 1, out=unknown()), [1, 6, 10, 13]),
        (lambda x: x[known(3, 0)], [12, 0]),
        (lambda x: torch.nn.functional.pad(x, (1, 0)), [0, 0, 5, 9, 12]),
        (lambda x: torch.ops.aten.add.Tensor(x, 1), [1, 6, 10, 13]),
        (lambda x: torch.full((2,), 3, device="cuda"), [3, 3]),
        (lambda x: torch.arange(x[1], device="cuda"), [0, 1, 2, 3, 4]),
        (lambda x: torch.tensor([x[1], 7], device="cuda"), [5, 7]),
        # Shapes that depend on values.
        (lambda x: x[x > 5], [9, 12]),
        (lambda x: x[[False, True, False, True]], [5, 12]),
        (lambda x: x.masked_select(x > 5), [9, 12]),
        (lambda x: (x > 5).nonzero(), [[2], [3]]),
        (lambda x: torch.where(x > 5)[0], [2, 3]),
        (lambda x: known(2, 1, 2).unique(), [1, 2]),
        (lambda x: known(1, 0, 2).repeat_interleave(known(1, 0, 2)), [1, 2, 2]),
        (lambda x: torch.repeat_interleave(known(1, 0, 2)), [0, 2, 2]),
        (lambda x: known(1, 3).bincount(), [0, 1, 0, 1]),
    ],
)
def test_a_known_value_follows(make, values, simulated):
    assert make(known(0, 5, 9, 12)).tolist() == values
    assert simulated.assumed == []


def test_every_way_to_read_one_number():
    x = known(0, 5)[1]
    assert (x.item(), int(x), float(x), bool(x), list(range(9))[x], f"{x:3d}") == (
        5,
        5,
        5.0,
        True,
        5,
        "  5",
    )
    assert 5 in known(0, 5)
    assert torch.equal(known(1, 2), known(1, 2))
    assert not torch.equal(known(1, 2), known(1, 3))
    assert torch.allclose(known(1, 2), known(1, 2))


def test_writes_are_seen_through_every_view():
    base = torch.zeros(4, dtype=torch.int32, device="cuda")
    view = base[1:3]
    view.fill_(7)
    assert base.tolist() == [0, 7, 7, 0]
    base[0] = 1
    base += 1
    assert view.tolist() == [8, 8]
    base.view(2, 2)[1].copy_(torch.tensor([3, 4]))
    assert base.tolist() == [2, 8, 3, 4]
    base[base > 3] = 0
    assert base.tolist() == [2, 0, 3, 0]
    base[torch.tensor([3, 1], device="cuda")] = known(6, 5, dtype=torch.int32)
    assert base.tolist() == [2, 5, 3, 6]


def test_a_tensor_filled_in_parts_is_known_when_all_parts_are(simulated):
    offsets = torch.empty(4, dtype=torch.int32, device="cuda")
    offsets[0] = 0
    assert offsets[:1].tolist() == [0]
    assert simulated.assumed == []
    assert offsets[:2].tolist() == [0, 0]
    assert len(simulated.assumed) == 1
    offsets[1:] = known(2, 3, 4).cumsum(0)
    assert offsets.tolist() == [0, 2, 5, 9]
    assert len(simulated.assumed) == 1


def test_unknown_writes_spoil_what_they_write_only(simulated):
    x = known(1, 2, 3, 4)
    x[1:3] = unknown(2)
    assert (x[0].item(), x[3].item()) == (1, 4)
    assert simulated.assumed == []
    line = here()
    assert x[1].item() == 0
    assert simulated.assumed == [f"{line}: item() taken as 0"]
    x.random_()
    line = here()
    assert x.tolist() == [0, 0, 0, 0]
    assert simulated.assumed[1:] == [f"{line}: tolist() taken as 0"]


def test_a_kernel_that_wrote_spoils_the_whole_storage(simulated):
    base = known(1, 2, 3, 4)
    view, other = base[1:], known(5)
    kernel_wrote(view)
    assert base.tolist() == [0, 0, 0, 0]
    assert view.tolist() == [0, 0, 0]
    assert other.tolist() == [5]
    assert len(simulated.assumed) == 2
    base.zero_()
    assert base.tolist() == [0, 0, 0, 0]
    assert len(simulated.assumed) == 2


def test_a_line_is_assumed_once(simulated):
    x = torch.randn(4, device="cuda").argmax()
    line = here()
    assert [x.item() for _ in range(3)] == [0, 0, 0]
    assert simulated.assumed == [f"{line}: item() taken as 0"]


def test_what_has_no_value():
    for x in (
        unknown(),
        torch.randint(0, 9, (4,), device="cuda"),
        torch.zeros(20000, device="cuda"),
    ):
        assert not x.any().cpu().item()
    big = torch.ones(8193, dtype=torch.int64, device="cuda")  # one element above 64 KiB
    assert big[0].item() == 0
    assert torch.ones(8192, dtype=torch.int64, device="cuda")[0].item() == 1


@pytest.mark.parametrize(
    ("use", "what"),
    [
        (lambda x, f: x.nonzero(), "nonzero()"),
        (lambda x, f: f[x > 0], "indexing with a mask"),
        (lambda x, f: f.masked_select(x > 0), "indexing with a mask"),
        (lambda x, f: x.unique(), "unique()"),
        (lambda x, f: f.repeat_interleave(x), "repeat_interleave() without output_size"),
        (lambda x, f: f[: x[0]], "a slice"),
        (lambda x, f: torch.empty(x[0], device="cuda"), "empty()"),
    ],
)
def test_an_unknown_shape_is_an_error(use, what):
    with pytest.raises(SimulationError) as caught:
        use(unknown(), torch.empty(4, device="cuda"))
    first, why, fix = str(caught.value).splitlines()
    assert first.startswith(__file__ + ":")
    assert first.endswith(f": {what} needs values that only a kernel could compute")
    assert why.startswith("  why: the shape of its result depends on them")
    assert "output_size=" in fix


def test_the_hints_for_an_unknown_shape_hold():
    repeats, x = torch.tensor([1, 2, 0, 1]), torch.empty(4, device="cuda")
    assert x.repeat_interleave(repeats.to("cuda")).shape == (4,)
    assert x.repeat_interleave(unknown(), output_size=9).shape == (9,)
    assert torch.where(unknown() > 0, x, 0.0).shape == (4,)


def test_a_write_through_an_unknown_mask_is_no_shape():
    x = known(1, 2, 3, 4)
    x[unknown() > 0] = 0
    x.masked_fill_(unknown() > 0, 0)
    assert x.tolist() == [0, 0, 0, 0]


def test_a_branch_on_floats_is_an_error():
    x = torch.zeros(2, device="cuda")
    for condition in (
        lambda: x.sum(),
        lambda: (x > 0).any(),
        lambda: torch.isnan(x).any(),
        lambda: ((x > 0) & (unknown(2) > 0))[0],
    ):
        value = condition()
        with pytest.raises(SimulationError, match="a branch on floating-point values") as caught:
            bool(value)
        assert str(caught.value).startswith(__file__ + ":")


def test_a_branch_on_an_unknown_token_is_assumed_not_taken(simulated):
    token = torch.empty(8, device="cuda").argmax()
    assert not bool(token == 7)
    assert len(simulated.assumed) == 1
    assert simulated.assumed[0].endswith(": bool() taken as False")
