// Threads that work through phases together: all of them finish one before any begins the next.
#pragma once
#include <atomic>
#include <cstdint>
#include <sched.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

constexpr int MOST_THREADS = 256;

struct alignas(64) Counter {
    std::atomic<int64_t> value{0};
};

struct Shared {
    Counter arrived, round;
    Counter next[3][MOST_THREADS];
};

class Team {
  public:
    Team(Shared& shared, int threads, int id) : threads(threads), id(id), shared_(shared) {}

    // The first of `tasks` that are this thread's own.
    int64_t first(int64_t tasks) const { return tasks * id / threads; }

    // run(task, next) for each of `tasks`, by some thread, once. next: the task that this thread is likely to run then, -1 if none is
    // left of its own. Who has finished takes from the others, since a core may be slow or busy elsewhere. Ends when all are done.
    template <class F> void share(int64_t tasks, F run) {
        Counter* next = shared_.next[phase_];
        shared_.next[(phase_ + 1) % 3][id].value.store(0, std::memory_order_relaxed);  // nobody looks at it in this phase
        for (int i = 0; i < threads; i++) {
            const int owner = (id + i) % threads;
            const int64_t begin = tasks * owner / threads, end = tasks * (owner + 1) / threads;
            for (;;) {
                const int64_t task = begin + next[owner].value.fetch_add(1, std::memory_order_relaxed);
                if (task >= end) break;
                run(task, i == 0 && task + 1 < end ? task + 1 : -1);
            }
        }
        phase_ = (phase_ + 1) % 3;
        wait();
    }

    const int threads, id;

  private:
    void wait() {
        if (threads == 1) return;
        const int64_t round = shared_.round.value.load(std::memory_order_relaxed);
        if (shared_.arrived.value.fetch_add(1, std::memory_order_acq_rel) == threads - 1) {
            shared_.arrived.value.store(0, std::memory_order_relaxed);
            shared_.round.value.store(round + 1, std::memory_order_release);
            return;
        }
        for (int spins = 0; shared_.round.value.load(std::memory_order_acquire) == round; spins++) {
#if defined(__x86_64__)
            _mm_pause();
#endif
            if (spins >= 2000) sched_yield();  // the one waited for may need this very core
        }
    }

    Shared& shared_;
    int phase_ = 0;
};
