#include "thread_pool.h"

#include <stdexcept>
#include <string>

namespace forerun {

namespace {

constexpr int kTaskBits = 20;
constexpr uint64_t kTaskMask = (uint64_t{1} << kTaskBits) - 1;
constexpr int kSpins = 1000;             // pauses before a worker sleeps: 50 to 100 microseconds
constexpr int kSpinsBeforeYield = 2000;  // pauses before the caller offers its core to a late worker

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
    for (int spins = 0; finished_.load(std::memory_order_acquire) < num_tasks; ++spins) {
        if (spins < kSpinsBeforeYield) {
            pause_briefly();
        } else {
            std::this_thread::yield();
        }
    }
}

// Claims and runs one task; false when the job has none left.
bool ThreadPool::run_one(uint64_t ticket, int thread) {
    while (has_task(ticket)) {
        if (!ticket_.compare_exchange_weak(ticket, ticket + 1, std::memory_order_acq_rel)) continue;
        job_.call(job_.context, static_cast<int>(next_task(ticket)), thread);
        finished_.fetch_add(1, std::memory_order_acq_rel);
        return true;
    }
    return false;
}

void ThreadPool::work(int thread) {
    const FloatEnvironment environment;
    for (int spins = 0; !stopping_.load(std::memory_order_relaxed);) {
        if (run_one(ticket_.load(std::memory_order_acquire), thread)) {
            spins = 0;
        } else if (++spins < kSpins) {
            pause_briefly();
        } else {
            std::unique_lock lock(mutex_);
            ++sleepers_;
            wake_.wait(lock, [this] { return stopping_.load() || has_task(ticket_.load()); });
            --sleepers_;
            spins = 0;
        }
    }
}

}  // namespace forerun
