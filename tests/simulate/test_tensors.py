"""Simulated tensors pass for CUDA tensors, in every way a program makes and moves them."""

from __future__ import annotations

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")

CUDA0 = torch.device("cuda", 0)
pytestmark = pytest.mark.usefixtures("simulated")


def test_it_says_it_is_on_cuda():
    x = torch.empty(2, 3, device="cuda")
    assert (x.device, x.is_cuda, x.is_meta, x.is_cpu, x.get_device()) == (
        CUDA0,
        True,
        False,
        False,
        0,
    )
    assert x.type() == "torch.cuda.FloatTensor"
    assert repr(x) == "tensor(..., device='cuda:0', size=(2, 3))"
    assert torch.is_tensor(x)


@pytest.mark.parametrize("device", ["cuda", "cuda:0", torch.device("cuda"), CUDA0, 0])
def test_every_spelling_of_the_device(device):
    assert torch.zeros(2, device=device).device == CUDA0
    assert torch.tensor([1, 2], device=device).tolist() == [1, 2]
    assert torch.ones(2).to(device).device == CUDA0
    assert torch.ones(2).to(device=device, dtype=torch.int8).tolist() == [1, 1]
    assert torch.ones(2, dtype=torch.int8).cuda(device).tolist() == [1, 1]


def test_a_device_the_board_has_not_is_an_error_as_in_cuda():
    kind = getattr(torch, "AcceleratorError", RuntimeError)
    for make in (
        lambda: torch.empty(1, device="cuda:1"),
        lambda: torch.empty(1).to("cuda:1"),
        lambda: torch.empty(1).cuda(1),
        lambda: torch.cuda.set_device(1),
    ):
        with pytest.raises(kind, match="CUDA error: invalid device ordinal"):
            make()


def test_like_and_new_stay_on_the_device():
    x = torch.empty(2, device="cuda")
    assert torch.zeros_like(x).device == CUDA0
    assert x.new_empty(3).device == CUDA0
    assert x.new_tensor([1, 2], dtype=torch.int32).tolist() == [1, 2]
    assert x.new_full((2,), 7, dtype=torch.int64).tolist() == [7, 7]
    assert torch.ones_like(x, dtype=torch.int8).tolist() == [1, 1]
    assert torch.empty_like(torch.empty(2), device="cuda").device == CUDA0


def test_the_device_context_and_the_default_device():
    with torch.device("cuda"):
        x = torch.arange(3)
        assert torch.nn.Linear(2, 2).weight.device == CUDA0
    assert (x.device, x.tolist()) == (CUDA0, [0, 1, 2])
    torch.set_default_device("cuda")
    try:
        assert torch.ones(2).device == CUDA0
        assert torch.get_default_device() == CUDA0
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device == torch.device("cpu")


def test_the_cpu_is_as_ever():
    x = torch.arange(4.0)
    assert x.device == torch.device("cpu")
    assert not x.is_cuda
    assert (x + 1).tolist() == [1, 2, 3, 4]
    assert x[x > 1].tolist() == [2, 3]
    assert x.numpy().sum() == 6
    assert torch.equal(x, x.clone())
    y = torch.nn.Linear(4, 1)(x)
    y.backward()
    assert torch.Generator().device == torch.device("cpu")


def test_the_address_keeps_the_alignment_of_views():
    x = torch.empty(64, dtype=torch.bfloat16, device="cuda")
    other = torch.empty(64, dtype=torch.bfloat16, device="cuda")
    assert x.data_ptr() > 0
    assert x.data_ptr() % 512 == 0
    assert x[3:].data_ptr() == x.data_ptr() + 6
    assert x.view(8, 8).data_ptr() == x.data_ptr() == x.untyped_storage().data_ptr()
    assert other.data_ptr() >= x.data_ptr() + 512
    assert torch.empty(0, device="cuda").data_ptr() == 0


def test_moving_to_the_host():
    x = torch.tensor([1, 2], device="cuda")
    assert (x.cpu().device.type, x.cpu().tolist()) == ("cpu", [1, 2])
    assert x.to("cpu").numpy().tolist() == [1, 2]
    assert x.to("cpu", torch.float32).tolist() == [1.0, 2.0]
    host = torch.zeros(2, dtype=torch.int64)
    host.copy_(x)
    assert host.tolist() == [1, 2]
    host[:1] = x[1:]
    assert host.tolist() == [2, 2]
    for read in (x.numpy, lambda: np.asarray(x)):
        with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
            read()


def test_moving_to_the_device():
    x = torch.empty(2, dtype=torch.int64, device="cuda")
    assert x.copy_(torch.tensor([3, 4])) is x
    assert x.tolist() == [3, 4]
    assert torch.as_tensor(np.array([5, 6]), device="cuda").tolist() == [5, 6]
    assert torch.from_numpy(np.array([5, 6])).cuda().tolist() == [5, 6]
    assert torch.asarray([7], device="cuda").tolist() == [7]
    assert x.to("cuda") is x
    assert x.cuda() is x


def test_the_cpu_and_the_device_do_not_mix():
    x = torch.ones(2, device="cuda")
    with pytest.raises(RuntimeError, match="device"):
        x + torch.ones(2)
    with pytest.raises(RuntimeError, match="indices should be either on cpu or on the same device"):
        torch.ones(2)[torch.tensor([0], device="cuda")]
    with pytest.raises(RuntimeError, match="same device"):
        torch.equal(x, torch.ones(2))


def test_pinned_memory_is_a_word():
    assert torch.empty(2, pin_memory=True).is_pinned()
    x = torch.arange(2)
    assert not x.is_pinned()
    assert x.pin_memory().is_pinned()
    assert x.pin_memory().to("cuda", non_blocking=True).tolist() == [0, 1]
    with pytest.raises(RuntimeError, match=r"cannot pin 'torch.cuda.FloatTensor'"):
        torch.empty(1, device="cuda").pin_memory()


def test_record_stream_is_accepted():
    assert torch.empty(1, device="cuda").record_stream(torch.cuda.current_stream()) is None


def test_generators_are_accepted_by_simulated_factories():
    generator = torch.Generator(device="cuda")
    assert generator.device == CUDA0
    assert torch.randn(2, device="cuda", generator=generator).device == CUDA0
    assert torch.empty(2, device="cuda").normal_(generator=generator).device == CUDA0


def test_modules_move_and_keep_their_parameters():
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    model[1].weight = model[0].weight
    weight = model[0].weight
    assert model.to("cuda") is model
    assert model[0].weight is weight is model[1].weight
    assert (weight.device, weight.requires_grad) == (CUDA0, True)
    assert model(torch.ones(2, 4, device="cuda")).shape == (2, 4)
    assert model.bfloat16()[0].weight.dtype == torch.bfloat16
    assert model.cuda().state_dict()["0.bias"].device == CUDA0
    assert torch.nn.Linear(2, 2, device="cuda").weight.device == CUDA0
    assert torch.nn.Parameter(torch.empty(2, device="cuda")).device == CUDA0
    assert copy.deepcopy(model)[0].weight.device == CUDA0


def test_a_parameter_takes_moved_data():
    weight = torch.nn.Parameter(torch.ones(2))
    weight.data = weight.data.to("cuda")
    assert isinstance(weight, torch.nn.Parameter)
    assert (weight.device, weight.requires_grad) == (CUDA0, True)


def test_a_state_dict_is_loaded_from_the_host():
    model = torch.nn.Embedding(4, 2, device="cuda")
    model.load_state_dict({"weight": torch.ones(4, 2)})
    assert model(torch.tensor([1, 2], device="cuda")).shape == (2, 2)


class _Double(torch.autograd.Function):
    devices: tuple[torch.device, ...] = ()

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, grad):
        _Double.devices = (grad.device, torch.empty(1, device="cuda").device)
        return torch.empty_like(grad)


def test_autograd_functions_see_the_device_both_ways():
    x = torch.ones(2, device="cuda", requires_grad=True)
    _Double.apply(x).sum().backward()
    assert (_Double.devices, x.grad.device) == ((CUDA0, CUDA0), CUDA0)
    _Double.devices = ()
    (grad,) = torch.autograd.grad(_Double.apply(x).sum(), x)
    assert (_Double.devices, grad.device) == ((CUDA0, CUDA0), CUDA0)


def test_composite_functions():
    x = torch.empty(1, 2, 8, 16, device="cuda")
    attention = torch.nn.functional.scaled_dot_product_attention
    assert attention(x, x, x, is_causal=True).shape == x.shape
    assert (x @ x.transpose(-1, -2)).shape == (1, 2, 8, 8)
    assert torch.einsum("bhsd,bhtd->bhst", x, x).device == CUDA0
    assert torch.nn.functional.pad(x, (1, 1)).shape == (1, 2, 8, 18)
    assert torch.nn.functional.layer_norm(x, (16,)).device == CUDA0
    assert [one.shape[-1] for one in x.split([4, 12], dim=-1)] == [4, 12]
    assert torch.softmax(x, -1).topk(2).indices.device == CUDA0


def test_functions_over_tensors_without_storage():
    x = torch.empty(3, 2, device="cuda")
    assert torch.vmap(lambda row: row + 1)(x).shape == (3, 2)


def test_inference_mode():
    with torch.inference_mode():
        x = torch.zeros(2, dtype=torch.int32, device="cuda")
        x += 1
    assert x.tolist() == [1, 1]


@pytest.mark.usefixtures("simulated")
def test_a_custom_operator_runs_its_cuda_implementation():
    ran = []

    @torch.library.custom_op("jitwatch_test::double", mutates_args=(), device_types="cuda")
    def double(x: torch.Tensor) -> torch.Tensor:
        ran.append(x.device)
        return torch.empty_like(x)

    @double.register_fake
    def _(x):
        ran.append("fake")
        return torch.empty_like(x)

    x = torch.empty(2, device="cuda")
    assert double(x).device == CUDA0
    assert torch.ops.jitwatch_test.double(x).device == CUDA0
    assert torch.ops.jitwatch_test.double.default(x).device == CUDA0
    assert ran == [CUDA0] * 3


def test_a_library_implementation_for_cuda_is_run():
    ran = []
    library = torch.library.Library("jitwatch_test_library", "DEF")
    library.define("triple(Tensor x) -> Tensor")
    library.impl("triple", lambda x: torch.empty_like(x), "Meta")

    def triple(x):
        ran.append(x.device)
        return torch.empty_like(x)

    library.impl("triple", triple, "CUDA")
    assert torch.ops.jitwatch_test_library.triple(torch.empty(2, device="cuda")).shape == (2,)
    assert ran == [CUDA0]


@pytest.mark.parametrize("make", [torch.empty_like, torch.zeros_like, torch.randn_like])
@pytest.mark.parametrize("batch", [1, 8])
def test_like_keeps_the_strides_that_a_real_tensor_keeps(simulated, make, batch):
    shapes = [
        make(torch.empty(batch, 12352, device=device)[:, :8192].unsqueeze(-1)).stride()
        for device in ("cuda", "cpu")
    ]
    assert shapes[0] == shapes[1]


def test_like_keeps_a_transposed_layout(simulated):
    source = torch.empty(3, 5, device="cuda").t()
    assert torch.empty_like(source).stride() == (1, 5)
    assert torch.empty_like(source, memory_format=torch.contiguous_format).stride() == (3, 1)
