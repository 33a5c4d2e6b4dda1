"""AMD's hipBLASLt of ROCm 6 and 7: numbers from hipblaslt.h, hipblas-common.h and library_types.h
(https://rocm.docs.amd.com/projects/hipBLASLt), the same in both."""

from __future__ import annotations

from types import MappingProxyType

from pumice.runtime.devices.blas.table import BlasTable

TABLE = BlasTable(
    name="hipBLASLt",
    api="rocm",
    libraries=("libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so"),
    parts=("lib", "lib64"),
    homes=("/opt/rocm",),
    packages=(),
    symbols=MappingProxyType(
        {
            "version_into": "hipblasLtGetVersion",
            "create": "hipblasLtCreate",
            "destroy": "hipblasLtDestroy",
            "layout_create": "hipblasLtMatrixLayoutCreate",
            "layout_destroy": "hipblasLtMatrixLayoutDestroy",
            "matmul_create": "hipblasLtMatmulDescCreate",
            "matmul_set": "hipblasLtMatmulDescSetAttribute",
            "matmul_destroy": "hipblasLtMatmulDescDestroy",
            "preference_create": "hipblasLtMatmulPreferenceCreate",
            "preference_set": "hipblasLtMatmulPreferenceSetAttribute",
            "preference_destroy": "hipblasLtMatmulPreferenceDestroy",
            "heuristic": "hipblasLtMatmulAlgoGetHeuristic",
            "matmul": "hipblasLtMatmul",
        }
    ),
    types=MappingProxyType({"float32": 0, "float16": 2, "bfloat16": 14}),  # HIP_R_…
    compute=2,  # HIPBLAS_COMPUTE_32F
    plain=111,
    transposed=112,
    transpose=(0, 1),  # HIPBLASLT_MATMUL_DESC_TRANSA, TRANSB
    workspace=1,  # HIPBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES
    alignments=(),
    algo_bytes=24,
    names=MappingProxyType(
        {
            0: "HIPBLAS_STATUS_SUCCESS",
            1: "HIPBLAS_STATUS_NOT_INITIALIZED",
            2: "HIPBLAS_STATUS_ALLOC_FAILED",
            3: "HIPBLAS_STATUS_INVALID_VALUE",
            4: "HIPBLAS_STATUS_MAPPING_ERROR",
            5: "HIPBLAS_STATUS_EXECUTION_FAILED",
            6: "HIPBLAS_STATUS_INTERNAL_ERROR",
            7: "HIPBLAS_STATUS_NOT_SUPPORTED",
            8: "HIPBLAS_STATUS_ARCH_MISMATCH",
            9: "HIPBLAS_STATUS_HANDLE_IS_NULLPTR",
            10: "HIPBLAS_STATUS_INVALID_ENUM",
            11: "HIPBLAS_STATUS_UNKNOWN",
        }
    ),
    versions=(100000, 100),
    install="install ROCm's hipblaslt, or set ROCM_PATH to ROCm's folder",
)
