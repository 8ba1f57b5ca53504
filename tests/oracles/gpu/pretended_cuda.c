// The library of a driver whose device does nothing, for Triton's launcher to call: it takes what a device of compute capability 9.0 takes.
#include <cuda.h>
#include <string.h>

CUresult cuGetErrorString(CUresult error, const char **text) {
  *text = error == CUDA_ERROR_INVALID_VALUE ? "invalid argument" : "error";
  return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
  switch (attribute) {
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = 227 << 10; break;
  case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 228 << 10; break;
  case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: *value = 65536; break;
  case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
  case CU_DEVICE_ATTRIBUTE_WARP_SIZE: *value = 32; break;
  default: *value = 1;
  }
  return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024 : 0;
  return CUDA_SUCCESS;
}

// Memory of the host passes for the device's.
CUresult cuPointerGetAttribute(void *value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  memcpy(value, &pointer, sizeof pointer);
  return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *launch, CUfunction function, void **arguments, void **extra) {
  unsigned threads = launch->blockDimX * launch->blockDimY * launch->blockDimZ;
  if (launch->gridDimX >= 1u << 31 || launch->gridDimY > 65535 || launch->gridDimZ > 65535 || threads > 1024 ||
      launch->sharedMemBytes > 227 << 10)
    return CUDA_ERROR_INVALID_VALUE;
  return CUDA_SUCCESS;
}

CUresult cuPointerGetAttributes(unsigned count, CUpointer_attribute *attributes, void **values, CUdeviceptr pointer) {
  for (unsigned i = 0; i < count; i++)
    if (attributes[i] == CU_POINTER_ATTRIBUTE_DEVICE_POINTER) memcpy(values[i], &pointer, sizeof pointer);
  return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
  *status = CU_STREAM_CAPTURE_STATUS_NONE;
  return CUDA_SUCCESS;
}

#define FINE(name, ...) \
  CUresult name(__VA_ARGS__) { return CUDA_SUCCESS; }

FINE(cuDriverGetVersion, int *version)
FINE(cuDeviceGet, CUdevice *device, int ordinal)
FINE(cuCtxGetCurrent, CUcontext *context)
FINE(cuCtxGetDevice, CUdevice *device)
FINE(cuModuleUnload, CUmodule module)
FINE(cuCtxSetCurrent, CUcontext context)
FINE(cuCtxGetLimit, size_t *value, CUlimit limit)
FINE(cuCtxSetLimit, CUlimit limit, size_t value)
FINE(cuDevicePrimaryCtxRetain, CUcontext *context, CUdevice device)
FINE(cuModuleLoadData, CUmodule *module, const void *image)
FINE(cuModuleGetFunction, CUfunction *function, CUmodule module, const char *name)
FINE(cuFuncSetAttribute, CUfunction function, CUfunction_attribute attribute, int value)
FINE(cuFuncSetCacheConfig, CUfunction function, CUfunc_cache config)
