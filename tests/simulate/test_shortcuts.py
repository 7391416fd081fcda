"""The short ways give what the long ways give, and are taken where they should be alone."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import linear  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from jitwatch.simulate.memory import block_of  # noqa: E402
from jitwatch.simulate.strides import like_handlers  # noqa: E402
from jitwatch.simulate.tensors import SimulatedTensors, tensors_in  # noqa: E402
from jitwatch.simulate.transfers import transfer_handlers  # noqa: E402

pytestmark = pytest.mark.usefixtures("simulated")

SHORTENED = (torch.empty, torch.empty_like, linear)
FLOATS = [torch.bfloat16, torch.float16, torch.float32, torch.float64]


def floats(*shape, dtype=torch.bfloat16, **options):
    return torch.empty(shape, dtype=dtype, device="cuda", **options)


class Ways:
    """Runs a call the short way and the long way, and says which one the former took."""

    def __init__(self, simulated, monkeypatch):
        self.simulated = simulated
        self.monkeypatch = monkeypatch
        self.mode = simulated._mode
        self.long_calls: list[object] = []

    def watch(self, patch):
        run = SimulatedTensors.run

        def noting(mode, func, args, kwargs):
            if func in SHORTENED:
                self.long_calls.append(func)
            return run(mode, func, args, kwargs)

        patch.setattr(SimulatedTensors, "run", noting)

    def outcome(self, call):
        """All that a program can tell of what the call gave, and what the board counted for it."""
        memory = self.simulated._memory
        before, address = memory.allocated_bytes, memory._next_address
        try:
            result = call()
        except Exception as error:
            return type(error), str(error), memory.allocated_bytes - before
        with torch._C.DisableTorchFunction():
            block = block_of(result.untyped_storage()) if result.is_meta else None
        return (
            (type(result), result.dtype, tuple(result.shape), result.stride(), result.device),
            (result.layout, result.storage_offset(), result.untyped_storage().nbytes()),
            (result.requires_grad, result.is_leaf, result.is_inference(), str(result.grad_fn)[:12]),
            (memory.allocated_bytes - before, memory._next_address - address),
            block and (block.address - address, block.nbytes, block.twin, block.float_derived),
            result.data_ptr() % 512 if result.is_cuda else None,
        )

    def both(self, call):
        """(what both ways gave, was the short way taken)."""
        with self.monkeypatch.context() as patch:
            self.watch(patch)
            short = self.outcome(call)
            taken = not self.long_calls
            transfers = transfer_handlers()
            long = {
                torch.empty: transfers[torch.empty],
                torch.empty_like: like_handlers(transfers)[torch.empty_like],
                linear: lambda mode, func, args, kwargs: mode.run(func, args, kwargs),
            }
            patch.setattr(self.mode, "_handlers", self.mode._handlers | long)
            self.long_calls.clear()
            assert self.outcome(call) == short
            assert self.long_calls
            self.long_calls.clear()
        return short, taken


@pytest.fixture
def ways(simulated, monkeypatch):
    return Ways(simulated, monkeypatch)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(5, 16, 48), (1, 1, 1), (0, 16, 48), (5, 0, 48), (5, 16, 0)])
@pytest.mark.parametrize("bias", [False, True])
def test_linear(ways, dtype, shape, bias):
    rows, width, columns = shape
    x, weight = floats(rows, width, dtype=dtype), floats(columns, width, dtype=dtype)
    rest = (floats(columns, dtype=dtype),) if bias else ()
    outcome, taken = ways.both(lambda: linear(x, weight, *rest))
    assert taken
    assert outcome[0][2] == (rows, columns)


def test_linear_of_views(ways):
    x, weight = floats(5, 64)[:, 8:24], floats(32, 48)[::2, :16]
    assert ways.both(lambda: linear(x, weight))[1]
    assert ways.both(lambda: linear(floats(16, 5).t(), floats(16, 3).t()))[1]


def test_linear_without_gradients(ways):
    x, weight = floats(5, 16), torch.nn.Parameter(floats(48, 16))
    with torch.no_grad():
        assert ways.both(lambda: linear(x, weight))[1]
    with torch.inference_mode():
        assert ways.both(lambda: linear(x, weight))[1]
        fresh = floats(5, 16)
    weight.requires_grad_(False)
    assert ways.both(lambda: linear(x, weight))[1]
    assert ways.both(lambda: linear(fresh, weight))[1]
    layer = torch.nn.Linear(16, 3, device="cuda").requires_grad_(False)
    assert ways.both(lambda: layer(x.float()))[1]


def test_linear_with_a_gradient_goes_the_long_way(ways):
    x, weight, bias = floats(5, 16), floats(48, 16), floats(48)
    for leaf in (x, weight, bias):
        leaf.requires_grad_()
        outcome, taken = ways.both(lambda: linear(x, weight, bias))
        assert not taken
        assert outcome[2][0]
        leaf.requires_grad_(False)


class _Other(torch.Tensor):
    pass


LONG = {
    "widths differ": lambda: linear(floats(5, 16), floats(48, 17)),
    "dtypes differ": lambda: linear(floats(5, 16), floats(48, 16, dtype=torch.float32)),
    "a bias of another dtype": lambda: linear(
        floats(5, 16), floats(48, 16), floats(48, dtype=torch.float32)
    ),
    "a bias of another length": lambda: linear(floats(5, 16), floats(48, 16), floats(47)),
    "a bias to broadcast": lambda: linear(floats(5, 16), floats(48, 16), floats(1)),
    "a bias with two dimensions": lambda: linear(floats(5, 16), floats(48, 16), floats(5, 48)),
    "a vector": lambda: linear(floats(16), floats(48, 16)),
    "a batch": lambda: linear(floats(2, 5, 16), floats(48, 16)),
    "a weight vector": lambda: linear(floats(5, 16), floats(16)),
    "a weight with three dimensions": lambda: linear(floats(5, 16), floats(2, 48, 16)),
    "a weight on the host": lambda: linear(
        floats(5, 16), torch.zeros(48, 16, dtype=torch.bfloat16)
    ),
    "a bias on the host": lambda: linear(
        floats(5, 16), floats(48, 16), torch.zeros(48, dtype=torch.bfloat16)
    ),
    "integers": lambda: linear(floats(5, 16, dtype=torch.int64), floats(48, 16, dtype=torch.int64)),
    "complex numbers": lambda: linear(
        floats(5, 16, dtype=torch.complex64), floats(48, 16, dtype=torch.complex64)
    ),
    "float8": lambda: linear(
        floats(5, 16, dtype=torch.float8_e4m3fn), floats(48, 16, dtype=torch.float8_e4m3fn)
    ),
    "a sparse matrix": lambda: linear(
        torch.empty((5, 16), device="cuda", layout=torch.sparse_coo),
        floats(48, 16, dtype=torch.float32),
    ),
    "keywords": lambda: linear(floats(5, 16), weight=floats(48, 16), bias=floats(48)),
    "a subclass": lambda: linear(floats(5, 16).as_subclass(_Other), floats(48, 16)),
}


@pytest.mark.parametrize("call", LONG.values(), ids=LONG.keys())
def test_any_other_linear_goes_the_long_way(ways, call):
    assert not ways.both(call)[1]


def test_values_go_through_linear_of_integers():
    x = torch.tensor([[1, 2]], device="cuda")
    weight = torch.tensor([[3, 4], [5, 6]], device="cuda")
    assert linear(x, weight).tolist() == [[11, 17]]


def test_linear_out_of_memory(ways):
    x, weight = floats(1 << 20, 1), floats(1 << 20, 1)
    outcome, taken = ways.both(lambda: linear(x, weight))
    assert taken
    assert outcome[0] is torch.OutOfMemoryError
    assert "Tried to allocate 2048.00 GiB" in outcome[1]
    assert outcome[2] == 0


class _Seeing(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


class _Hearing(TorchFunctionMode):
    def __init__(self):
        super().__init__()
        self.heard = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.heard.append(getattr(func, "__name__", ""))
        return func(*args, **(kwargs or {}))


def test_what_follows_torch_sees_the_operation(simulated):
    x, weight = floats(5, 16), floats(48, 16)
    with FlopCounterMode(display=False) as counter:
        linear(x, weight)
    assert counter.get_total_flops() == 2 * 5 * 16 * 48
    with _Seeing() as dispatched:
        linear(x, weight)
    assert "mm" in dispatched.seen
    with _Hearing() as above:
        linear(x, weight)
    assert above.heard == ["linear"]
    for call in (lambda: linear(x, weight), lambda: torch.empty_like(x)):
        with _Hearing() as below, simulated._mode:
            call()
        assert below.heard[0] in ("linear", "empty_like")
        assert "empty_strided" not in below.heard


def test_a_trace_holds_the_operation():
    x, weight = floats(5, 16), floats(48, 16)
    traced = torch.jit.trace(lambda one: linear(one, weight), (x,), check_trace=False)
    assert "aten::linear" in str(traced.graph)


def test_functional_transforms_and_tangents():
    x, weight = floats(2, 5, 16, dtype=torch.float32), floats(48, 16, dtype=torch.float32)
    batched = []

    def one_of(batch):
        batched.append(torch._C._functorch.is_batchedtensor(linear(batch, weight)))
        return linear(batch, weight)

    assert torch.func.vmap(one_of)(x).shape == (2, 5, 48)
    assert batched == [True]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x[0], x[1])
        assert torch.autograd.forward_ad.unpack_dual(linear(dual, weight)).tangent is not None


EMPTY = {
    "sizes": lambda: torch.empty(2, 3, device="cuda"),
    "a tuple": lambda: torch.empty((2, 3), dtype=torch.bfloat16, device="cuda"),
    "torch's device": lambda: torch.empty((2, 3), device=torch.device("cuda", 0)),
    "an ordinal": lambda: torch.empty((4,), dtype=torch.int32, device=0),
    "bool": lambda: torch.empty((4,), dtype=torch.bool, device="cuda:0"),
    "a scalar": lambda: torch.empty((), dtype=torch.int64, device="cuda"),
    "nothing": lambda: torch.empty((0, 3), dtype=torch.int64, device="cuda"),
    "too much": lambda: torch.empty((1 << 40,), dtype=torch.int8, device="cuda"),
}
LONG_EMPTY = {
    "on the host": lambda: torch.empty((2, 3), dtype=torch.int64),
    "on the host by name": lambda: torch.empty((2, 3), dtype=torch.int64, device="cpu"),
    "pinned on the device": lambda: torch.empty(3, device="cuda", pin_memory=True),
    "a size on the device": lambda: torch.empty((torch.tensor(3, device="cuda"), 2), device="cuda"),
    "pinned": lambda: torch.empty(3, device="cpu", pin_memory=True),
    "with a gradient": lambda: torch.empty(3, device="cuda", requires_grad=True),
    "channels last": lambda: torch.empty(
        (1, 2, 3, 3), device="cuda", memory_format=torch.channels_last
    ),
    "a negative size": lambda: torch.empty((-1,), device="cuda"),
    "an overflow": lambda: torch.empty((1 << 62, 8), device="cuda"),
    "out of known values": lambda: torch.empty(
        (2,), out=torch.tensor([1, 2], device="cuda"), device="cuda"
    ),
    "out": lambda: torch.empty((2,), out=floats(2, dtype=torch.float32)),
}


@pytest.mark.parametrize("call", EMPTY.values(), ids=EMPTY.keys())
def test_empty(ways, call):
    assert ways.both(call)[1]


@pytest.mark.parametrize("call", LONG_EMPTY.values(), ids=LONG_EMPTY.keys())
def test_any_other_empty_goes_the_long_way(ways, call):
    assert not ways.both(call)[1]


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("cuda:1", "CUDA error: invalid device ordinal (simulated device)"),
        ("nowhere", "Expected one of cpu, cuda"),
    ],
)
def test_empty_on_a_device_that_is_not_there(ways, device, message):
    """The device is looked at before the way is chosen: the error is that of the long way."""
    outcome, _ = ways.both(lambda: torch.empty(3, device=device))
    assert issubclass(outcome[0], RuntimeError)
    assert outcome[1].startswith(message)
    assert outcome[2] == 0


def test_pinned_memory_stays_pinned():
    assert torch.empty(3, pin_memory=True).is_pinned()
    assert not torch.empty(3).is_pinned()


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("shape", [(2, 3), (1, 5), (5, 1), (0, 3), (), (2, 3, 4)])
def test_empty_like(ways, dtype, shape):
    assert ways.both(lambda: torch.empty_like(floats(4)))[1]
    source = floats(*shape, dtype=dtype)
    outcome, taken = ways.both(lambda: torch.empty_like(source))
    assert taken
    assert outcome[0][3] == source.stride()


def test_empty_like_keeps_the_strides_of_single_rows(ways):
    source = floats(4, 6)[:1]
    assert ways.both(lambda: torch.empty_like(source))[1]
    assert ways.both(lambda: torch.empty_like(floats(4, 1, 6).transpose(0, 1)))[1]


@pytest.mark.parametrize(
    "call",
    [
        lambda: torch.empty_like(torch.zeros(2, 3)),
        lambda: torch.empty_like(floats(2, 3).t()),
        lambda: torch.empty_like(floats(2, 6)[:, :3]),
        lambda: torch.empty_like(floats(2, 3), dtype=torch.int64),
        lambda: torch.empty_like(floats(2, 3), device="cpu"),
        lambda: torch.empty_like(floats(2, 3), requires_grad=True),
        lambda: torch.empty_like(floats(2, 3, dtype=torch.int64)),
        lambda: torch.empty_like(floats(2, 3) > 0),
        lambda: torch.empty_like(input=floats(2, 3)),
    ],
)
def test_any_other_empty_like_goes_the_long_way(ways, call):
    assert not ways.both(call)[1]


def test_empty_like_out_of_memory(ways):
    source = floats(1 << 20, 1).expand(1 << 20, 1 << 20)
    outcome, _ = ways.both(lambda: torch.empty_like(source))
    assert outcome[0] is torch.OutOfMemoryError
    source = floats(40 << 30)
    outcome, taken = ways.both(lambda: torch.empty_like(source))
    assert taken
    assert outcome[0] is torch.OutOfMemoryError


def test_a_refused_allocation_leaves_the_count_as_it_was(simulated):
    kept = floats(512)
    freed = [floats(512) for _ in range(3)]
    before = simulated.allocated_bytes
    del freed
    with pytest.raises(torch.OutOfMemoryError):
        floats(1 << 40)
    assert simulated.allocated_bytes == before - 3 * 1024
    assert simulated._memory.peak_bytes == before
    del kept


@pytest.mark.parametrize("nbytes", [0, 1, 511, 512, 513, 1024])
def test_bytes_are_rounded_up_to_512(simulated, nbytes):
    tensor = torch.empty(nbytes, dtype=torch.uint8, device="cuda")
    assert simulated.allocated_bytes == (nbytes + 511) // 512 * 512
    assert simulated._memory._next_address % 512 == 0
    del tensor


def test_tensors_are_found_among_numbers():
    a, b, c = torch.ones(3).unbind()
    found = tensors_in(([1, 2.0, True], [1, a, 2], {"x": [b, [3]], "y": (c,)}, "text", None))
    assert [id(one) for one in found] == [id(a), id(b), id(c)]
    one = torch.tensor([7], device="cuda")[0]
    assert torch.tensor([1, one, 2.0]).tolist() == [1.0, 7.0, 2.0]


def test_tensors_are_found_in_an_index():
    x = torch.arange(12, device="cuda").reshape(3, 4)
    two = torch.tensor(2, device="cuda")
    assert x[..., 1:two].tolist() == [[1], [5], [9]]
    assert x[None, two, :].tolist() == [[8, 9, 10, 11]]
    assert x[two:, ::two].tolist() == [[8, 10]]
    assert x[x[:, 0] > 0, 1].tolist() == [5, 9]
    assert x[[True, False, True], 0].tolist() == [0, 8]


def test_the_address_of_a_tensor_first_seen_at_its_address(simulated):
    with torch._C.DisableTorchFunction():
        unseen = torch.empty(600, dtype=torch.uint8, device="meta")
    before = simulated.allocated_bytes
    address = unseen.data_ptr()
    assert (address % 512, simulated.allocated_bytes - before) == (0, 1024)
    assert unseen[8:].data_ptr() == address + 8
    assert unseen[:0].data_ptr() == 0
    on_host = torch.zeros(2)
    assert on_host.data_ptr() == on_host.numpy().ctypes.data


def test_a_storage_is_counted_once(simulated):
    with torch._C.DisableTorchFunction():
        unseen = torch.empty(3, device="meta")
        assert [simulated._mode.count(one) for one in (unseen, unseen, unseen[1:])] == [
            True,
            False,
            False,
        ]
        assert not simulated._mode.count(torch.empty(3))
