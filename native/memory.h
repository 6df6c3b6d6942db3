// HugeBuffer: zeroed memory from the operating system, 2 MiB aligned, backed by huge pages where they can be had.
//
// Streaming weights through 4 KiB pages costs a quarter of the read bandwidth. Transparent huge pages are commonly
// "madvise": only memory that asks gets them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace forerun {

class HugeBuffer {
  public:
    // Throws std::bad_alloc when the system refuses.
    explicit HugeBuffer(size_t bytes);
    ~HugeBuffer();
    HugeBuffer(const HugeBuffer&) = delete;
    HugeBuffer& operator=(const HugeBuffer&) = delete;

    char* data() const { return data_; }
    size_t bytes() const { return bytes_; }

  private:
    void* mapping_ = nullptr;
    size_t mapping_bytes_ = 0;
    char* data_ = nullptr;
    size_t bytes_ = 0;
};

// Arena: hands out consecutive, cache-line aligned pieces of one HugeBuffer, so that small matrices share huge pages.
class Arena {
  public:
    static constexpr size_t kAlignment = 64;

    explicit Arena(size_t bytes);

    // Zeroed bytes that live as long as the arena. Throws std::length_error when the arena is full.
    char* take(size_t bytes);
    size_t used() const { return used_; }
    size_t bytes() const { return buffer_.bytes(); }

  private:
    HugeBuffer buffer_;
    size_t used_ = 0;
};

}  // namespace forerun
