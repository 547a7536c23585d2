// Memory for vector loads.
#pragma once

#include <cstddef>
#include <memory>
#include <new>

namespace pointcode {

// 64-byte aligned array; zeroed when made.
template <typename T>
class AlignedArray {
 public:
  AlignedArray() = default;
  explicit AlignedArray(size_t size) : size_(size), data_(new (std::align_val_t(64)) T[size]()) {}
  T* data() const { return data_.get(); }
  size_t size() const { return size_; }
  T& operator[](size_t i) const { return data_[static_cast<ptrdiff_t>(i)]; }

 private:
  struct Free {
    void operator()(T* p) const { ::operator delete[](p, std::align_val_t(64)); }
  };
  size_t size_ = 0;
  std::unique_ptr<T[], Free> data_;
};

}  // namespace pointcode
