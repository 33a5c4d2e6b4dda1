"""AMD's driver, libamdhip64 (ROCm 5.2 to 7): numbers from hip_runtime_api.h, the same over all of
them but for hipDeviceProp_t, which grew in ROCm 6.
"""

from __future__ import annotations

from types import MappingProxyType

from pumice.runtime.devices.driver.table import DriverTable

# (bytes of hipDeviceProp_t, offset of gcnArchName in it): ROCm 6 and later, earlier.
PROPERTIES_R0600 = (1472, 1160)
PROPERTIES_R0000 = (792, 396)

TABLE = DriverTable(
    api="rocm",
    libraries=(
        "libamdhip64.so",
        "libamdhip64.so.7",
        "libamdhip64.so.6",
        "libamdhip64.so.5",
        "amdhip64_7.dll",
        "amdhip64_6.dll",
    ),
    symbols=MappingProxyType(
        {
            "initialize": "hipInit",
            "driver_version": "hipDriverGetVersion",
            "device_count": "hipGetDeviceCount",
            "device_get": "hipDeviceGet",
            "device_name": "hipDeviceGetName",
            "device_memory": "hipDeviceTotalMem",
            "device_pci": "hipDeviceGetPCIBusId",
            "device_attribute": "hipDeviceGetAttribute",
            "activate_ordinal": "hipSetDevice",
            "properties": "hipGetDevicePropertiesR0600",
            "properties_old": "hipGetDeviceProperties",
            "synchronize": "hipDeviceSynchronize",
            "memory_info": "hipMemGetInfo",
            "allocate": "hipMalloc",
            "free": "hipFree",
            "host_allocate": "hipHostMalloc",
            "host_free": "hipHostFree",
            "host_register": "hipHostRegister",
            "host_unregister": "hipHostUnregister",
            "copy_to_device": "hipMemcpyHtoDAsync",
            "copy_to_host": "hipMemcpyDtoHAsync",
            "copy_on_device": "hipMemcpyDtoDAsync",
            "fill": "hipMemsetD8Async",
            "stream_create": "hipStreamCreateWithFlags",
            "stream_destroy": "hipStreamDestroy",
            "stream_synchronize": "hipStreamSynchronize",
            "stream_wait": "hipStreamWaitEvent",
            "event_create": "hipEventCreateWithFlags",
            "event_destroy": "hipEventDestroy",
            "event_record": "hipEventRecord",
            "event_synchronize": "hipEventSynchronize",
            "event_query": "hipEventQuery",
            "event_elapsed": "hipEventElapsedTime",
            "module_load": "hipModuleLoadData",
            "module_unload": "hipModuleUnload",
            "module_function": "hipModuleGetFunction",
            "module_global": "hipModuleGetGlobal",
            "function_attribute": "hipFuncGetAttribute",
            "launch": "hipModuleLaunchKernel",
            "launch_cooperative": "hipModuleLaunchCooperativeKernel",
            "occupancy": "hipModuleOccupancyMaxActiveBlocksPerMultiprocessor",
            "capture_begin": "hipStreamBeginCapture",
            "capture_end": "hipStreamEndCapture",
            "graph_instantiate": "hipGraphInstantiateWithFlags",
            "graph_launch": "hipGraphLaunch",
            "graph_nodes": "hipGraphGetNodes",
            "graph_destroy": "hipGraphDestroy",
            "graph_executable_destroy": "hipGraphExecDestroy",
            "error_name": "hipGetErrorName",
            "error_text": "hipGetErrorString",
        }
    ),
    optional=frozenset({"properties", "launch_cooperative"}),
    attributes=MappingProxyType(
        {
            "threads_per_block": 56,
            "shared_bytes": 74,
            "wave": 87,
            "clock_khz": 5,
            "units": 63,
            "integrated": 16,
            "memory_clock_khz": 60,
            "memory_bus_bits": 59,
            "l2_bytes": 19,
            "major": 23,
            "minor": 61,
        }
    ),
    launch_end=3,
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
    install="install ROCm's runtime (package rocm-hip-runtime, hip-runtime-amd or libamdhip64) and "
    "join the groups render and video (rocminfo shows whether it works)",
)
