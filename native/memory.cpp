#include "memory.h"

#include <sys/mman.h>

#include <new>
#include <stdexcept>
#include <string>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace forerun {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

// AddressSanitizer knows the ends of what malloc gives, not of what lies in a mapping: it is told here.
#ifdef __SANITIZE_ADDRESS__
void forbid(const void* start, size_t bytes) {
    __asan_poison_memory_region(start, bytes);
}
void allow(const void* start, size_t bytes) {
    __asan_unpoison_memory_region(start, bytes);
}
#else
void forbid(const void*, size_t) {}
void allow(const void*, size_t) {}
#endif

size_t round_up(size_t value, size_t unit) {
    return (value + unit - 1) / unit * unit;
}
}  // namespace

HugeBuffer::HugeBuffer(size_t bytes) : bytes_(bytes) {
    if (bytes == 0) return;
    // One page more than needed, so that an aligned start exists inside the mapping. Untouched pages cost nothing.
    mapping_bytes_ = round_up(bytes, kHugePage) + kHugePage;
    mapping_ = mmap(nullptr, mapping_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) {
        mapping_ = nullptr;
        throw std::bad_alloc();
    }
    data_ = reinterpret_cast<char*>(round_up(reinterpret_cast<uintptr_t>(mapping_), kHugePage));
#ifdef MADV_HUGEPAGE
    // Whole huge pages only: the tail of a small buffer should not occupy 2 MiB. A refusal is no error.
    if (const size_t whole = bytes / kHugePage * kHugePage) madvise(data_, whole, MADV_HUGEPAGE);
#endif
    forbid(mapping_, mapping_bytes_);
    allow(data_, bytes);
}

HugeBuffer::~HugeBuffer() {
    if (!mapping_) return;
    allow(mapping_, mapping_bytes_);  // the next mapping there is another's
    munmap(mapping_, mapping_bytes_);
}

Arena::Arena(size_t bytes) : buffer_(bytes) {
    forbid(buffer_.data(), bytes);
}

char* Arena::take(size_t bytes) {
    const size_t start = round_up(used_, kAlignment);
    if (start + bytes > buffer_.bytes()) {
        throw std::length_error("weight arena of " + std::to_string(buffer_.bytes()) + " bytes cannot take " +
                                std::to_string(bytes) + " more");
    }
    used_ = start + bytes;
    allow(buffer_.data() + start, bytes);
    return buffer_.data() + start;
}

}  // namespace forerun
