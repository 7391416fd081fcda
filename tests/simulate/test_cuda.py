"""torch.cuda answers for the simulated board, and is itself again afterwards."""

from __future__ import annotations

import sys
import threading

import pytest

torch = pytest.importorskip("torch")

from jitwatch.errors import SimulationError  # noqa: E402
from jitwatch.simulate.boards import get_board  # noqa: E402
from jitwatch.simulate.cuda import install  # noqa: E402

MIB = 1 << 20


def test_the_device_is_there(simulated):
    cuda = torch.cuda
    assert (cuda.is_available(), cuda.device_count()) == (True, 1)
    assert (cuda.current_device(), cuda.get_device_name()) == (0, "NVIDIA H200")
    assert cuda.get_device_capability("cuda:0") == (9, 0)
    assert cuda.get_arch_list() == ["sm_90"]
    assert cuda.is_bf16_supported()
    assert torch.version.cuda
    assert torch.backends.cuda.is_built()
    cuda.init()
    cuda.set_device(0)
    cuda.synchronize()
    cuda.empty_cache()
    cuda.ipc_collect()


def test_cuda_is_initialized_by_its_first_use_as_on_a_gpu(simulated):
    assert torch.cuda.is_available()
    assert not torch.cuda.is_initialized()
    torch.empty(1, device="cuda")
    assert torch.cuda.is_initialized()


def test_a_call_that_makes_a_context_initializes_cuda(simulated):
    torch.cuda.manual_seed(1)
    assert not torch.cuda.is_initialized()
    torch.cuda.synchronize()
    assert torch.cuda.is_initialized()


def test_the_properties_are_the_boards(simulated):
    board, properties = get_board("h200"), torch.cuda.get_device_properties(0)
    assert properties.name == "NVIDIA H200"
    assert (properties.major, properties.minor) == (9, 0)
    assert properties.total_memory == board.memory_bytes
    assert properties.multi_processor_count == 132
    assert properties.shared_memory_per_block == 49152
    assert properties.shared_memory_per_block_optin == 232448
    assert properties.shared_memory_per_multiprocessor == 233472
    assert properties.regs_per_multiprocessor == 65536
    assert properties.max_threads_per_multi_processor == 2048
    assert (properties.warp_size, properties.L2_cache_size) == (32, 60 * MIB)
    assert not properties.is_integrated
    assert properties.gcnArchName == "NVIDIA H200"  # as torch fills it where there is no ROCm


def test_memory_is_counted_by_storage(simulated):
    total = get_board("h200").memory_bytes
    assert torch.cuda.mem_get_info() == (total, total)
    x = torch.empty(MIB, dtype=torch.uint8, device="cuda")
    view = x[5:]
    small = torch.empty(3, device="cuda")
    assert torch.cuda.memory_allocated() == MIB + 512 == simulated.allocated_bytes
    assert torch.cuda.mem_get_info() == (total - MIB - 512, total)
    del x
    assert torch.cuda.memory_reserved() == MIB + 512
    del view
    assert torch.cuda.memory_allocated() == 512
    assert torch.cuda.max_memory_allocated() == MIB + 512
    assert torch.cuda.memory_stats()["allocated_bytes.all.peak"] == MIB + 512
    torch.cuda.reset_peak_memory_stats()
    assert torch.cuda.max_memory_allocated() == 512
    del small
    assert torch.cuda.memory_allocated() == 0


def test_more_than_the_board_has_is_out_of_memory(simulated):
    x = torch.empty(100 << 30, dtype=torch.uint8, device="cuda")
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(50 << 30, dtype=torch.uint8, device="cuda")
    assert str(caught.value).startswith(
        "CUDA out of memory. Tried to allocate 50.00 GiB. GPU 0 has a total capacity of "
        "139.80 GiB of which 39.80 GiB is free."
    )
    assert simulated.allocated_bytes == x.numel()


def test_streams_and_events(simulated):
    stream, default = torch.cuda.Stream(), torch.cuda.default_stream()
    assert torch.cuda.current_stream() == default
    assert (default.cuda_stream, torch._C._cuda_getCurrentRawStream(0)) == (0, 0)
    with torch.cuda.stream(stream):
        assert torch.cuda.current_stream() is stream
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream != 0
        with torch.cuda.stream(None):
            assert torch.cuda.current_stream() is stream
    assert torch.cuda.current_stream() == default
    with stream:
        assert torch.cuda.current_stream() is stream
    stream.wait_stream(default)
    stream.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with pytest.raises(ValueError, match="must be recorded"):
        begin.elapsed_time(end)
    begin.record()
    stream.record_event(end)
    assert begin.elapsed_time(end) > 0
    assert (end.query(), stream.query()) == (True, True)
    assert torch.cuda.ExternalStream(64).cuda_stream == 64


def test_device_contexts(simulated):
    x = torch.empty(1, device="cuda")
    with torch.cuda.device(x.device), torch.cuda.device_of(x), torch.cuda.device(None):
        assert torch.cuda.current_device() == 0
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.cuda.device(1)


def test_a_graph_runs_its_body_once(simulated):
    graph, ran = torch.cuda.CUDAGraph(), []
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()
    with torch.cuda.graph(graph, pool=torch.cuda.graph_pool_handle()):
        ran.append((torch.cuda.is_current_stream_capturing(), simulated.capturing))
        assert torch.cuda.current_stream() != torch.cuda.default_stream()
    graph.replay()
    assert ran == [(True, True)]
    assert not torch.cuda.is_current_stream_capturing()
    assert isinstance(graph.pool(), tuple)
    graph.reset()


def test_a_read_back_while_capturing_fails_as_on_a_gpu(simulated):
    x = torch.tensor([1], device="cuda")
    with (
        torch.cuda.graph(torch.cuda.CUDAGraph()),
        pytest.raises(RuntimeError, match="operation not permitted when stream is capturing"),
    ):
        x.item()


def test_strict_values_name_the_line(strict):
    assert torch.tensor([1], device="cuda").item() == 1
    x = torch.empty(1, dtype=torch.int64, device="cuda")
    with pytest.raises(SimulationError) as caught:
        x.item()
    assert str(caught.value) == (
        f"{__file__}:{caught.tb.tb_lineno}: item() reads a value that only a kernel could compute\n"
        "  why: a simulated device runs no kernel, and --strict-values allows no stand-in\n"
        "  fix: keep the value off the host, or drop --strict-values to go on with 0"
    )
    assert strict.assumed == []


def test_seeds(simulated):
    torch.manual_seed(5)
    assert torch.cuda.initial_seed() == 5
    state = torch.cuda.get_rng_state()
    torch.cuda.manual_seed_all(6)
    torch.cuda.set_rng_state(state)
    assert torch.cuda.initial_seed() == 5
    with torch.random.fork_rng():
        torch.cuda.manual_seed(7)
    assert torch.cuda.initial_seed() == 5
    generator = torch.Generator(device="cuda").manual_seed(9)
    assert (generator.initial_seed(), generator.device) == (9, torch.device("cuda", 0))
    assert torch.Generator(device="cuda").set_state(generator.get_state()).initial_seed() == 9
    assert isinstance(generator, torch.Generator)
    assert isinstance(torch.Generator(), torch.Generator)
    assert torch.cuda.default_generators[0].initial_seed() == 5


def test_the_accelerator_is_the_same_device(simulated):
    accelerator = pytest.importorskip("torch.accelerator")
    assert (accelerator.is_available(), accelerator.device_count()) == (True, 1)
    assert accelerator.current_accelerator() == torch.device("cuda")
    assert accelerator.current_stream() == torch.cuda.current_stream()
    accelerator.synchronize()


def test_annotations_are_ignored(simulated):
    torch.cuda.nvtx.range_push("step")
    torch.cuda.nvtx.mark("here")
    torch.cuda.nvtx.range_pop()
    with torch.cuda.nvtx.range("step"):
        pass


def test_what_has_no_stand_in_says_so(simulated):
    with pytest.raises(SimulationError) as caught:
        torch.cuda.memory_snapshot()
    assert str(caught.value).startswith(__file__ + ":")
    assert "torch.cuda.memory_snapshot on the simulated device" in str(caught.value)
    with pytest.raises(SimulationError, match="autocast on the simulated device"):
        torch.autocast("cuda", dtype=torch.bfloat16).__enter__()
    with torch.autocast("cuda", enabled=False):
        pass


def test_compiled_functions_run_uncompiled(simulated):
    line = sys._getframe().f_lineno + 1
    double = torch.compile(lambda x: x * 2)
    assert double(torch.ones(2, dtype=torch.int8, device="cuda")).tolist() == [2, 2]
    assert torch.compile(dynamic=True)(len)([1]) == 1
    assert simulated.assumed[0] == (
        f"{__file__}:{line}: torch.compile() left out, its argument runs uncompiled"
    )


def test_a_custom_operator_made_before_install_runs_its_cuda_implementation(request):
    ran = []

    @torch.library.custom_op("jitwatch_test::before", mutates_args=(), device_types="cuda")
    def before(x: torch.Tensor) -> torch.Tensor:
        ran.append(str(x.device))
        return torch.empty_like(x)

    before.register_fake(torch.empty_like)
    request.getfixturevalue("simulated")
    before(torch.empty(2, device="cuda"))
    assert ran == ["cuda:0"]


def test_nothing_reaches_the_real_device(simulated):
    with (
        torch._C.DisableTorchFunction(),
        pytest.raises(SimulationError, match="reached for"),
    ):
        torch.empty(1, device="cuda")


class _Overridden(threading.Thread):
    def run(self):
        self.seen = torch.zeros(2, dtype=torch.int8, device="cuda").tolist()


def test_new_threads_are_inside(simulated):
    thread = _Overridden()
    thread.start()
    thread.join()
    assert thread.seen == [0, 0]
    seen = []
    other = threading.Thread(
        target=lambda: seen.append((torch.ones(1).cuda().device, torch.cuda.current_stream()))
    )
    with torch.cuda.stream(torch.cuda.Stream()):
        other.start()
        other.join()
    assert seen == [(torch.device("cuda", 0), torch.cuda.default_stream())]


def _state():
    owners = (torch, torch.cuda, torch.cuda.memory, torch.cuda.streams, torch.cuda.graphs)
    more = (torch.cuda.random, torch.cuda.nvtx, torch.accelerator, torch._C, torch.version)
    classes = (torch.Tensor, torch.UntypedStorage, torch.autocast, threading.Thread)
    rest = (torch.backends.cuda, torch.library.Library, torch.utils._device.DeviceContext)
    return [dict(vars(owner)) for owner in (*owners, *more, *classes, *rest)]


def test_uninstall_leaves_everything_as_it_was():
    stack = torch.overrides._get_current_function_mode_stack
    before, modes = _state(), list(stack())
    simulated = install(get_board("l4"))
    assert torch.cuda.get_device_name() == "NVIDIA L4"
    x = torch.ones(2, device="cuda")
    simulated.uninstall()
    simulated.uninstall()
    assert list(stack()) == modes
    for was, now in zip(before, _state(), strict=True):
        assert {name for name in was if was[name] is not now.get(name)} == set()
        assert now.keys() == was.keys()
    assert x.is_meta


def test_one_board_at_a_time(simulated):
    with pytest.raises(SimulationError, match="a simulated h200 is installed already"):
        install(get_board("l4"))
    simulated.uninstall()
    again = install(get_board("l4"))  # the hint, applied
    again.uninstall()
