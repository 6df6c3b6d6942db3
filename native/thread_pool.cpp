#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <string>

namespace forerun {

namespace {

constexpr int kTaskBits = 20;
constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;
constexpr std::chrono::nanoseconds kLongestSpin{50'000};  // what waking a thread costs, roughly
constexpr int kShortest = 6;                              // halvings of the longest spin
constexpr int kRetryAfter = 64;                           // waits, until a long spin is tried again

void pause_briefly() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

uint64_t make_ticket(uint64_t job, uint64_t num_tasks) {
    return job << (2 * kTaskBits) | num_tasks << kTaskBits;
}
uint64_t next_task(uint64_t ticket) {
    return ticket & kTaskMask;
}
uint64_t task_count(uint64_t ticket) {
    return ticket >> kTaskBits & kTaskMask;
}
bool has_task(uint64_t ticket) {
    return next_task(ticket) < task_count(ticket);
}

#if defined(__x86_64__)
constexpr uint64_t kFloatControl = 0x1f80;
uint64_t read_control() {
    return __builtin_ia32_stmxcsr();
}
void write_control(uint64_t value) {
    __builtin_ia32_ldmxcsr(static_cast<unsigned>(value));
}
#elif defined(__aarch64__)
constexpr uint64_t kFloatControl = 0;
uint64_t read_control() {
    uint64_t value;
    __asm__ volatile("mrs %0, fpcr" : "=r"(value));
    return value;
}
void write_control(uint64_t value) {
    __asm__ volatile("msr fpcr, %0" : : "r"(value));
}
#else
constexpr uint64_t kFloatControl = 0;
uint64_t read_control() {
    return 0;
}
void write_control(uint64_t) {}
#endif

}  // namespace

FloatEnvironment::FloatEnvironment() : saved_(read_control()) {
    write_control(kFloatControl);
}
FloatEnvironment::~FloatEnvironment() {
    write_control(saved_);
}

template <class F>
bool Spin::until(const F& condition) {
    const int halvings = ++waits_ % kRetryAfter == 0 ? 0 : halvings_;
    const auto end = std::chrono::steady_clock::now() + kLongestSpin / (1 << halvings);
    do {
        for (int pauses = 0; pauses < 8; ++pauses) {
            if (condition()) {
                halvings_ = 0;
                return true;
            }
            pause_briefly();
        }
    } while (std::chrono::steady_clock::now() < end);
    halvings_ = std::min(halvings_ + 1, kShortest);
    return false;
}

ThreadPool::ThreadPool(int threads) {
    if (threads < 1 || threads > kMaxThreads) {
        throw std::invalid_argument("threads must be between 1 and " + std::to_string(kMaxThreads) + ", got " +
                                    std::to_string(threads));
    }
    for (int thread = 1; thread < threads; ++thread)
        workers_.emplace_back(&ThreadPool::work, this, thread);
}

ThreadPool::~ThreadPool() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& worker : workers_)
        worker.join();
}

void ThreadPool::run_job(Job job, int num_tasks) {
    if (num_tasks <= 0) return;
    if (workers_.empty() || num_tasks == 1) {
        for (int task = 0; task < num_tasks; ++task)
            job.call(job.context, task, 0);
        return;
    }
    job_ = job;
    finished_.store(0, std::memory_order_relaxed);
    // Sequentially consistent with the sleeper's check: either it sees this ticket or we see it asleep.
    ticket_.store(make_ticket(++job_number_, static_cast<uint64_t>(num_tasks)));
    if (sleepers_.load() > 0) {
        const std::lock_guard lock(mutex_);
        wake_.notify_all();
    }
    while (run_one(ticket_.load(std::memory_order_acquire), 0)) {
    }
    const auto is_done = [&] { return finished_.load() == num_tasks; };
    if (caller_spin_.until(is_done)) return;
    std::unique_lock lock(mutex_);
    caller_sleeps_.store(true);
    done_.wait(lock, is_done);
    caller_sleeps_.store(false);
}

// Claims and runs one task; false when the job has none left.
bool ThreadPool::run_one(uint64_t ticket, int thread) {
    while (has_task(ticket)) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
        job_.call(job_.context, static_cast<int>(next_task(ticket)), thread);
        const int finished = 1 + finished_.fetch_add(1);
        // From here on the job may be over and the next one begun: only what was read before counts.
        if (finished == static_cast<int>(task_count(ticket)) && caller_sleeps_.load()) {
            const std::lock_guard lock(mutex_);
            done_.notify_one();
        }
        return true;
    }
    return false;
}

void ThreadPool::work(int thread) {
    const FloatEnvironment environment;
    Spin spin;
    const auto is_needed = [this] { return stopping_.load() || has_task(ticket_.load()); };
    while (!stopping_.load(std::memory_order_relaxed)) {
        if (run_one(ticket_.load(std::memory_order_acquire), thread) || spin.until(is_needed)) continue;
        std::unique_lock lock(mutex_);
        ++sleepers_;
        wake_.wait(lock, is_needed);
        --sleepers_;
    }
}

}  // namespace forerun
