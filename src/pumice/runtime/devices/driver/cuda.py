"""NVIDIA's driver, libcuda: symbols with the versions that cuda.h's macros choose (CUDA 12, 13)."""

from __future__ import annotations

from types import MappingProxyType

from pumice.runtime.devices.driver.table import DriverTable

TABLE = DriverTable(
    api="cuda",
    libraries=("libcuda.so.1", "nvcuda.dll"),
    symbols=MappingProxyType(
        {
            "initialize": "cuInit",
            "driver_version": "cuDriverGetVersion",
            "device_count": "cuDeviceGetCount",
            "device_get": "cuDeviceGet",
            "device_name": "cuDeviceGetName",
            "device_memory": "cuDeviceTotalMem_v2",
            "device_pci": "cuDeviceGetPCIBusId",
            "device_attribute": "cuDeviceGetAttribute",
            "activate": "cuCtxSetCurrent",
            "context_retain": "cuDevicePrimaryCtxRetain",
            "context_release": "cuDevicePrimaryCtxRelease_v2",
            "synchronize": "cuCtxSynchronize",
            "memory_info": "cuMemGetInfo_v2",
            "allocate": "cuMemAlloc_v2",
            "free": "cuMemFree_v2",
            "host_allocate": "cuMemHostAlloc",
            "host_free": "cuMemFreeHost",
            "host_register": "cuMemHostRegister_v2",
            "host_unregister": "cuMemHostUnregister",
            "copy_to_device": "cuMemcpyHtoDAsync_v2",
            "copy_to_host": "cuMemcpyDtoHAsync_v2",
            "copy_on_device": "cuMemcpyDtoDAsync_v2",
            "fill": "cuMemsetD8Async",
            "stream_create": "cuStreamCreate",
            "stream_destroy": "cuStreamDestroy_v2",
            "stream_synchronize": "cuStreamSynchronize",
            "stream_wait": "cuStreamWaitEvent",
            "event_create": "cuEventCreate",
            "event_destroy": "cuEventDestroy_v2",
            "event_record": "cuEventRecord",
            "event_synchronize": "cuEventSynchronize",
            "event_query": "cuEventQuery",
            "event_elapsed": "cuEventElapsedTime",
            "module_load": "cuModuleLoadData",
            "module_unload": "cuModuleUnload",
            "module_function": "cuModuleGetFunction",
            "module_global": "cuModuleGetGlobal_v2",
            "function_attribute": "cuFuncGetAttribute",
            "function_shared": "cuFuncSetAttribute",
            "launch": "cuLaunchKernel",
            "launch_extended": "cuLaunchKernelEx",
            "occupancy": "cuOccupancyMaxActiveBlocksPerMultiprocessor",
            "capture_begin": "cuStreamBeginCapture_v2",
            "capture_end": "cuStreamEndCapture",
            "graph_instantiate": "cuGraphInstantiateWithFlags",
            "graph_launch": "cuGraphLaunch",
            "graph_nodes": "cuGraphGetNodes",
            "graph_destroy": "cuGraphDestroy",
            "graph_executable_destroy": "cuGraphExecDestroy",
            "error_name_into": "cuGetErrorName",
            "error_text_into": "cuGetErrorString",
        }
    ),
    optional=frozenset(),
    attributes=MappingProxyType(
        {
            "threads_per_block": 1,
            "shared_bytes": 97,  # with opt-in
            "wave": 10,
            "clock_khz": 13,
            "units": 16,
            "integrated": 18,
            "memory_clock_khz": 36,
            "memory_bus_bits": 37,
            "l2_bytes": 38,
            "major": 75,
            "minor": 76,
        }
    ),
    launch_end=0,
    errors=MappingProxyType(
        {
            "invalid_value": 1,
            "out_of_memory": 2,
            "no_device": 100,
            "invalid_device": 101,
            "invalid_image": 200,
            "other_architecture": 209,
            "not_found": 500,
            "not_ready": 600,
            "illegal_address": 700,
        }
    ),
    install="install NVIDIA's driver (nvidia-smi shows whether it works)",
)
