// ThreadPool: one pool per backend; runs numbered tasks of one job at a time. The caller takes part.
//
// Which thread runs which task is left to chance, so a task's result must not depend on it: that is how results are
// independent of the number of threads.
//
// A worker that wakes late finds nothing to do and delays nobody: the job is over when its tasks are, not when all
// workers have reported. Only a worker that is suspended in the middle of a task is waited for, asleep, so that the
// caller's core and its share of time are free for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace forerun {

// Waits by looking again and again, as long as that pays. Between jobs it does: the next one comes within
// microseconds, and waking a sleeper takes many. Where cores are short it does not, since the spinner holds the very
// core or the share of time that the others need; after a few vain spins they are short, with a long one now and then
// to see whether it pays again.
class Spin {
  public:
    // True as soon as the condition holds, false when it is time to sleep.
    template <class F>
    bool until(const F& condition);

  private:
    int halvings_ = 0;  // of the longest spin
    unsigned waits_ = 0;
};

class ThreadPool {
  public:
    static constexpr int kMaxThreads = 1024;
    static constexpr int kMaxTasks = (1 << 20) - 1;

    // `threads` counts the caller: 1 starts no thread. Throws std::invalid_argument outside 1..kMaxThreads.
    explicit ThreadPool(int threads);
    ~ThreadPool();
    ThreadPool(const ThreadPool&) = delete;
    ThreadPool& operator=(const ThreadPool&) = delete;

    int size() const { return static_cast<int>(workers_.size()) + 1; }

    // Calls f(task, thread) for task = 0 .. num_tasks-1 and returns when all are done; thread < size() names the thread
    // that runs the task. f must not throw. Not re-entrant.
    template <class F>
    void run(int num_tasks, const F& f) {
        const auto call = [](const void* context, int task, int thread) {
            (*static_cast<const F*>(context))(task, thread);
        };
        run_job(Job{call, &f}, num_tasks);
    }

  private:
    struct Job {
        void (*call)(const void* context, int task, int thread) = nullptr;
        const void* context = nullptr;
    };

    void run_job(Job job, int num_tasks);
    bool run_one(uint64_t ticket, int thread);
    void work(int thread);

    // What is to be done, in one word so that a claim is one compare-and-swap: job number, number of tasks, next task.
    // A claim succeeds only while the job runs, and the job stays until the claimed task is done.
    std::atomic<uint64_t> ticket_{0};
    std::atomic<int> finished_{0};
    Job job_;
    uint64_t job_number_ = 0;

    std::atomic<int> sleepers_{0};
    std::atomic<bool> stopping_{false};
    std::mutex mutex_;
    std::condition_variable wake_, done_;
    std::atomic<bool> caller_sleeps_{false};
    Spin caller_spin_;
    std::vector<std::thread> workers_;
};

// Gives the calling thread the floating point environment of all kernels (round to nearest, no traps, denormals kept)
// and restores the caller's when it goes out of scope.
class FloatEnvironment {
  public:
    FloatEnvironment();
    ~FloatEnvironment();
    FloatEnvironment(const FloatEnvironment&) = delete;
    FloatEnvironment& operator=(const FloatEnvironment&) = delete;

  private:
    uint64_t saved_;
};

}  // namespace forerun
