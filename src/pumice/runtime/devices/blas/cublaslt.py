"""NVIDIA's cuBLASLt of CUDA 12 and 13: numbers from cublasLt.h, cublas_api.h and library_types.h
(https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api), the same in both."""

from __future__ import annotations

from types import MappingProxyType

from pumice.runtime.devices.blas.table import BlasTable

TABLE = BlasTable(
    name="cuBLASLt",
    api="cuda",
    libraries=("libcublasLt.so.13", "libcublasLt.so.12"),
    parts=("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib"),
    homes=("/usr/local/cuda",),
    packages=("nvidia/cu13/lib", "nvidia/cublas/lib"),  # wheels nvidia-cublas, nvidia-cublas-cu12
    symbols=MappingProxyType(
        {
            "version": "cublasLtGetVersion",
            "create": "cublasLtCreate",
            "destroy": "cublasLtDestroy",
            "layout_create": "cublasLtMatrixLayoutCreate",
            "layout_destroy": "cublasLtMatrixLayoutDestroy",
            "matmul_create": "cublasLtMatmulDescCreate",
            "matmul_set": "cublasLtMatmulDescSetAttribute",
            "matmul_destroy": "cublasLtMatmulDescDestroy",
            "preference_create": "cublasLtMatmulPreferenceCreate",
            "preference_set": "cublasLtMatmulPreferenceSetAttribute",
            "preference_destroy": "cublasLtMatmulPreferenceDestroy",
            "heuristic": "cublasLtMatmulAlgoGetHeuristic",
            "matmul": "cublasLtMatmul",
        }
    ),
    types=MappingProxyType({"float32": 0, "float16": 2, "bfloat16": 14}),  # CUDA_R_…
    compute=68,  # CUBLAS_COMPUTE_32F
    plain=0,
    transposed=1,
    transpose=(3, 4),  # CUBLASLT_MATMUL_DESC_TRANSA, TRANSB
    workspace=1,  # CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
    alignments=(5, 6, 7, 8),  # CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_{A,B,C,D}_BYTES
    algo_bytes=64,
    names=MappingProxyType(
        {
            0: "CUBLAS_STATUS_SUCCESS",
            1: "CUBLAS_STATUS_NOT_INITIALIZED",
            3: "CUBLAS_STATUS_ALLOC_FAILED",
            7: "CUBLAS_STATUS_INVALID_VALUE",
            8: "CUBLAS_STATUS_ARCH_MISMATCH",
            11: "CUBLAS_STATUS_MAPPING_ERROR",
            13: "CUBLAS_STATUS_EXECUTION_FAILED",
            14: "CUBLAS_STATUS_INTERNAL_ERROR",
            15: "CUBLAS_STATUS_NOT_SUPPORTED",
            16: "CUBLAS_STATUS_LICENSE_ERROR",
        }
    ),
    versions=(10000, 100),
    install="pip install nvidia-cublas, or set CUDA_HOME to the toolkit's folder",
)
