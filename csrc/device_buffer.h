// CUDA resources as owners: device memory, pinned memory, streams, events. Failures are std::runtime_error.
#pragma once

#if POINTCODE_CUDA
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstring>
#include <utility>

#include "check.h"

namespace pointcode {

inline void check_cuda(cudaError_t error, const char* what) {
  CHECK_THAT(error == cudaSuccess, what, " failed: ", cudaGetErrorString(error));
}

// Device memory of `size` elements, zeroed before the constructor returns, whatever stream uses it next.
template <typename T>
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  explicit DeviceBuffer(size_t size) : size_(size) {
    check_cuda(cudaMalloc(reinterpret_cast<void**>(&data_), bytes()), "allocating GPU memory");
    cudaError_t error = cudaMemset(data_, 0, bytes());
    if (error == cudaSuccess) error = cudaStreamSynchronize(cudaStreamLegacy);
    if (error != cudaSuccess) cudaFree(data_);
    check_cuda(error, "zeroing GPU memory");
  }
  DeviceBuffer(DeviceBuffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~DeviceBuffer() { cudaFree(data_); }

  T* data() const { return data_; }
  size_t size() const { return size_; }
  size_t bytes() const { return size_ * sizeof(T); }

 private:
  T* data_ = nullptr;
  size_t size_ = 0;
};

// Host memory that the GPU can read and write, zeroed.
template <typename T>
class PinnedBuffer {
 public:
  explicit PinnedBuffer(size_t size) : size_(size) {
    check_cuda(
        cudaHostAlloc(reinterpret_cast<void**>(&data_), size * sizeof(T), cudaHostAllocMapped),
        "allocating pinned memory");
    std::memset(static_cast<void*>(data_), 0, size * sizeof(T));
  }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;
  ~PinnedBuffer() { cudaFreeHost(data_); }

  T* data() const { return data_; }
  T& operator[](size_t i) const { return data_[i]; }
  size_t size() const { return size_; }

 private:
  T* data_ = nullptr;
  size_t size_;
};

// A stream of the highest priority that does not wait for the default stream.
class Stream {
 public:
  Stream() {
    int least = 0, greatest = 0;
    check_cuda(cudaDeviceGetStreamPriorityRange(&least, &greatest), "asking for stream priorities");
    check_cuda(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
               "creating a stream");
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  ~Stream() { cudaStreamDestroy(stream_); }
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

// A moment on a stream.
class Event {
 public:
  Event() { check_cuda(cudaEventCreate(&event_), "creating an event"); }
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;
  ~Event() { cudaEventDestroy(event_); }
  cudaEvent_t get() const { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
};

}  // namespace pointcode
#endif
