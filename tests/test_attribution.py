"""Whose kernels these are, by their symbols."""

from __future__ import annotations

import pytest

from jitwatch.attribution import owner_of_kernel


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
