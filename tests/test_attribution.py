"""Whose kernels these are, which hook explains a load, and which requests paid."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jitwatch.attribution import charge, explain, origin_of, owner_of_kernel, root_of, union_ms
from tests.samples import MS, PID, READY_NS, TID, driver_load, event, request, step, variant


@pytest.mark.parametrize(
    ("name", "owner"),
    [
        ("nvjet_tst_64x8_64x16_4x1_v_bz_TNT", "cublas"),
        ("_ZN8cublasLt19splitKreduce_kernelILi32EEvv", "cublas"),
        ("_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_EEvNT_6ParamsE", "cublas"),
        ("ampere_sgemm_128x64_tn", "cublas"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "cudnn"),
        ("_ZN2at6native29vectorized_elementwise_kernelILi4EEEviT0_T1_", "torch"),
        ("_ZN55_GLOBAL__N__c1f3_2at6native12softmax_implEv", "torch"),
        ("_ZN14at_cuda_detail3cub17DeviceScanKernelEv", "torch"),
        ("_ZN6thrust8cuda_cub4core13_kernel_agentEv", "torch"),
        ("_ZN3cub22DeviceRadixSortKernelEv", "torch"),
        ("triton_poi_fused_add_0", "inductor"),
        ("triton_red_fused_sum_1", "inductor"),
        ("triton_per_fused_softmax_2", "inductor"),
        ("triton_tem_fused_mm_3", "inductor"),
        ("_ZN13pytorch_flash16flash_fwd_kernelIEvv", "flash-attention"),
        ("_ZN5flash16flash_fwd_kernelIEvv", "flash-attention"),
        ("_Z25ncclDevKernel_AllReduce_v", "nccl"),
        ("_ZN10flashinfer31BatchPrefillWithPagedKVCacheKernelEv", "flashinfer"),
        ("_Z17gemv2T_kernel_valIiiffffLi128ELi16EEvT6_T4_S1_", "cublas"),
        ("gemv2T_kernel_val", "cublas"),
        ("_Z13gemmk1_kernelIiLi256ELi5EEvi", "cublas"),
        ("_Z10dot_kernelIfLi128ELi0EEvT_", "cublas"),
        ("_Z20reduce_1Block_kernelIfLi128ELi7EEvT_", "cublas"),
        ("cutlass_80_tensorop_s1688gemm_128x128_nn", "cublas"),
        ("sm80_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", "cublas"),
        ("sm80_xmma_fprop_implicit_gemm_indexed_cudnn", "cudnn"),
        ("_ZN8cusparse10csrmv_v3_kernelEv", "cusparse"),
        ("_ZN8cusolver5potrfEv", "cusolver"),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80", "torch"),
        ("_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversalEEEv", "cutlass"),
        ("my_gemm_kernel", "unknown"),
        ("dot_kernel", "unknown"),
        ("my_nccl_like_kernel", "unknown"),
        ("triton_kernel", "unknown"),
        ("l2norm_kernel", "unknown"),
    ],
)
def test_a_symbol_names_its_owner(name, owner):
    assert owner_of_kernel(name) == owner


def test_the_first_known_kernel_decides_and_nothing_is_unknown():
    assert owner_of_kernel("mine,nvjet_x,triton_poi_y") == "cublas"
    assert owner_of_kernel("") == "unknown"


# -- origin ------------------------------------------------------------------------

SITE = "/repo/.venv/lib/python3.11/site-packages"


def origin(file, packages=None, repo="/repo"):
    return origin_of(event(1, "load", 1, file=file), repo, packages or {})


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("/repo/kernels.py", "in-repo"),
        ("/repo/deep/er/kernels.py", "in-repo"),
        ("/repository/kernels.py", "other"),
        ("/elsewhere/kernels.py", "other"),
        (f"{SITE}/fla/ops/norm.py", "fla"),
        ("/repo/dist-packages/fla/norm.py", "fla"),
        ("/repo/site-packages/single.py", "single"),
        ("/repo/venv/src/mine.py", "other"),
        ("/repo/.tox/py311/mine.py", "other"),
        ("/repo/.nox/tests/mine.py", "other"),
        ("/repo/node_modules/x.py", "other"),
        ("/repo/my_venv/kernels.py", "in-repo"),
        ("/usr/lib/python3/site-packages/torch/nn/k.py", "torch"),
        ("/tmp/torchinductor_me/ab/cab.py", "inductor"),
        ("/repo/torchinductor_cache/cab.py", "inductor"),
    ],
)
def test_the_origin_of_a_source_file(file, expected):
    assert origin(file) == expected


def test_a_package_under_test_is_in_the_repository_wherever_it_lies():
    packages = {"fla": [f"{SITE}/fla"]}
    assert origin(f"{SITE}/fla/ops/norm.py", packages) == "in-repo"
    assert origin(f"{SITE}/flashy/norm.py", packages) == "flashy"
    assert (
        origin("/opt/site-packages/fla/norm.py", {"fla": ["/opt/site-packages/fla/"]}) == "in-repo"
    )


def test_without_a_repository_only_packages_are_under_test():
    assert origin("/repo/kernels.py", repo=None) == "other"
    assert origin("/repo/kernels.py", repo="/repo/") == "in-repo"


def test_without_a_source_file_the_symbol_says_whose_it_is():
    assert origin_of(driver_load(1, 1, kernel="nvjet_x"), "/repo", {}) == "cublas"
    assert origin_of(driver_load(1, 1, kernel="mine"), "/repo", {}) == "unknown"


# -- which hook explains a load ------------------------------------------------------

HOOK = event(1, "load", 10, 5, stack=("f.py:1 f",), step=3)


def explained(load, *hooks):
    return explain([*(hooks or [HOOK]), load])[-1]


def test_a_driver_load_takes_what_the_hook_around_it_knows():
    found = explained(driver_load(2, 11, 1, kernel="_Zscale", nbytes=7))
    assert (found.parent, found.kernel, found.variant) == (1, "scale_kernel", variant())
    assert (found.file, found.line, found.stack, found.step) == (HOOK.file, 3, ("f.py:1 f",), 3)
    assert (found.source, found.nbytes) == ("driver", 7)


@pytest.mark.parametrize("at_ms", [10, 12, 15])
def test_inside_a_hook_both_ends_count(at_ms):
    assert explained(driver_load(2, at_ms, 1)).parent == 1


@pytest.mark.parametrize(
    "changes", [{"at_ms": 9.9}, {"at_ms": 15.1}, {"pid": 8}, {"tid": 71}, {"kind": "link"}]
)
def test_another_time_thread_process_or_kind_is_not_explained(changes):
    at_ms = changes.pop("at_ms", 11)
    load = replace(driver_load(2, at_ms, 1), **changes)
    assert explained(load) == load


def test_of_several_hooks_the_latest_begun_explains():
    later = event(5, "load", 16, 5, kernel="later_kernel")
    assert explained(driver_load(9, 17, 1), HOOK, later).kernel == "later_kernel"
    assert explained(driver_load(9, 15.5, 1), HOOK, later).parent is None


def test_a_hook_still_open_explains_what_follows():
    assert explained(driver_load(2, 99, 1), replace(HOOK, end_ns=None)).parent == 1


def test_a_compile_explains_no_load():
    compiled = event(1, "compile", 10, 5)
    assert explained(driver_load(2, 11, 1), compiled).parent is None


def test_a_load_that_names_its_parent_keeps_it():
    named = driver_load(2, 50, 1, parent=1, step=9)
    found = explained(named)
    assert (found.parent, found.kernel, found.step) == (1, "scale_kernel", 3)


# -- who waited ------------------------------------------------------------------------

STEPS = [step(64, 10), step(65, 30)]


def charged(made, steps=STEPS, until_ns=None):
    return charge([made], steps, READY_NS, until_ns)


def test_the_requests_of_its_step_waited():
    (found,) = charged(event(1, "load", 12, step=64))
    assert (found.requests, found.inferred) == (("len64",), False)
    both = [step(64, 10, requests=("a", "b"))]
    assert charged(event(1, "load", 12, step=64), both)[0].requests == ("a", "b")


def test_on_a_thread_without_a_step_the_open_one_is_inferred():
    (found,) = charged(event(1, "load", 32, tid=99))
    assert (found.requests, found.inferred) == (("len65",), True)
    still_open = [step(64, 10, None)]
    assert charged(event(1, "load", 99, tid=99), still_open)[0].requests == ("len64",)


@pytest.mark.parametrize("made", [event(1, "load", 25), event(1, "load", 12, pid=8)])
def test_without_an_open_step_in_its_process_nobody_is_charged(made):
    (found,) = charged(made)
    assert found.requests == ()


def test_the_same_step_id_of_another_process_is_another_step():
    (found,) = charged(
        event(1, "load", 12, pid=8, step=64), [step(64, 10), step(64, 10, pid=8, requests=("x",))]
    )
    assert found.requests == ("x",)


def test_late_is_from_ready_on_until_the_probes():
    assert charged(event(1, "load", -0.001)) == []
    assert len(charged(event(1, "load", 0))) == 1
    assert charged(event(1, "load", 5), until_ns=READY_NS + 5 * MS) == []
    assert len(charged(event(1, "load", 4.9), until_ns=READY_NS + 5 * MS)) == 1
    assert charge([event(1, "load", 5)], STEPS, None, None) == []


# -- enclosing events, time -----------------------------------------------------------


def test_the_nearest_enclosing_event_of_a_kind():
    outer, middle = event(1, "autotune", 1), event(2, "load", 2, parent=1)
    inner = driver_load(3, 3, parent=2)
    by_seq = {(item.pid, item.seq): item for item in (outer, middle, inner)}
    assert root_of(inner, by_seq, "autotune") == outer
    assert root_of(inner, by_seq, "load") == middle
    assert root_of(inner, by_seq, "compile") is None
    assert root_of(outer, by_seq, "autotune") is None
    assert root_of(driver_load(4, 3, parent=77), by_seq, "load") is None


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        ([], 0),
        ([(0, 4)], 4),
        ([(0, 4), (10, 11)], 5),
        ([(0, 4), (2, 6)], 6),
        ([(2, 6), (0, 4)], 6),
        ([(0, 9), (2, 3), (4, 5)], 9),
        ([(0, 4), (4, 6)], 6),
        ([(0, 4), (0, 4)], 4),
    ],
)
def test_overlapping_time_counts_once(spans, expected):
    assert union_ms([(start * MS, end * MS) for start, end in spans]) == expected


def test_without_a_step_the_requests_open_then_are_charged_its_own_process_first():
    asked = [
        request(1, 0, 10, pid=PID),
        request(2, 3, 10, pid=PID + 1),
        request(3, 5, None, pid=PID),
        request(4, 20, 10, pid=PID),
    ]
    late = event(1, "load", 4)

    def paid(found, asked=asked):
        [made] = charge([found], [], READY_NS, None, asked)
        assert made.inferred
        return made.requests

    assert paid(late) == ("len1",)
    assert paid(replace(late, pid=PID + 1)) == ("len2",)
    assert paid(replace(late, pid=99)) == ("len1", "len2")
    assert paid(event(1, "load", 19)) == ("len3",)
    assert paid(event(1, "load", 11), asked[:2]) == ("len2",)
    assert paid(event(1, "load", 14), asked[:2]) == ()


def test_a_load_that_nothing_explains_is_charged_to_all_overlapping_steps_of_its_thread():
    first, second = step(1, 0, 10), step(2, 5, 10)
    outer, elsewhere = step(3, 4, 20), step(4, 0, 10, tid=TID + 1)
    late = driver_load(9, 6, step=2)

    def paid(found, *steps):
        [made] = charge([found], steps, READY_NS, None)
        return made.requests, made.inferred

    assert paid(late, first, second) == (("len2", "len1"), True)
    assert paid(late, second, outer, elsewhere) == (("len2",), False)
    assert paid(replace(late, parent=3), first, second) == (("len2",), False)
    assert paid(event(9, "load", 6, step=2), first, second) == (("len2",), False)
    assert paid(late, step(1, 0, 5.9), second) == (("len2",), False)
    assert paid(late, step(1, 0, None), second) == (("len2",), False)


def test_a_hooks_step_beats_that_of_the_thread():
    hook = event(1, "load", 4, 4, step=1)
    assert explain([hook, driver_load(2, 5, step=2)])[1].step == 1
    bare = event(1, "load", 4, 4)
    assert explain([bare, driver_load(2, 5, step=2)])[1].step == 2
