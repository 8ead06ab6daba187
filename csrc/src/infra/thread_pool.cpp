// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/infra/thread_pool.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define DPFTRL_HAS_FORK 1
#endif

namespace dpftrl {
namespace {

constexpr std::chrono::milliseconds kWaitingPeriod{20};

class Pool {
 public:
  // The caller holds the pool's turn (see run_workers).
  void run(std::size_t workers, const std::function<void(std::size_t)>& body, const std::function<void()>& waiting) {
    std::size_t at_once = workers;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      start_threads(workers - 1);
      at_once = std::min(workers, threads_.size() + 1);
      body_ = &body;
      workers_ = at_once;
      pending_ = at_once - 1;
      ++generation_;
    }
    wake_.notify_all();
    guarded([&] { body(0); });
    for (std::size_t i = at_once; i < workers; ++i) guarded([&] { body(i); });
    std::unique_lock<std::mutex> lock(mutex_);
    while (!done_.wait_for(lock, kWaitingPeriod, [this] { return pending_ == 0; })) {
      if (!waiting) continue;
      lock.unlock();
      guarded(waiting);
      lock.lock();
    }
    body_ = nullptr;
    // Not kept past this call: an exception may hold on to much.
    const std::exception_ptr failure = std::exchange(failure_, nullptr);
    lock.unlock();
    if (failure != nullptr) std::rethrow_exception(failure);
  }

  ~Pool() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& t : threads_) t.join();
  }

 private:
  // As many as the system allows; the calling thread does the work of those that it does not.
  void start_threads(std::size_t count) {
    try {
      while (threads_.size() < count) {
        const std::size_t number = threads_.size() + 1;
        threads_.emplace_back([this, number, seen = generation_] { loop(number, seen); });
      }
    } catch (const std::system_error&) {
    }
  }

  template <class Call>
  void guarded(const Call& call) {
    try {
      call();
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (failure_ == nullptr) failure_ = std::current_exception();
    }
  }

  void loop(std::size_t number, std::size_t seen) {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
      if (stop_) return;
      seen = generation_;
      if (number >= workers_) continue;
      const auto* body = body_;
      lock.unlock();
      guarded([&] { (*body)(number); });
      lock.lock();
      if (--pending_ == 0) done_.notify_one();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_, done_;
  std::vector<std::thread> threads_;
  const std::function<void(std::size_t)>* body_ = nullptr;
  std::size_t workers_ = 0, pending_ = 0, generation_ = 0;
  std::exception_ptr failure_;
  bool stop_ = false;
};

// One owner at a time. Heap-allocated and never freed in a forked child, whose copy has no threads to join.
std::atomic<bool> turn_taken{false};
Pool* pool = nullptr;

#ifdef DPFTRL_HAS_FORK
void forget_pool_in_child() {
  pool = nullptr;
  turn_taken.store(false);
}
#endif

class Turn {
 public:
  Turn() noexcept : held_(!turn_taken.exchange(true, std::memory_order_acquire)) {}
  ~Turn() {
    if (held_) turn_taken.store(false, std::memory_order_release);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  bool held() const noexcept { return held_; }

 private:
  bool held_;
};

}  // namespace

void run_workers(std::size_t workers, const std::function<void(std::size_t)>& body,
                 const std::function<void()>& waiting) {
  const Turn turn;
  if (workers > 1 && turn.held()) {
    if (pool == nullptr) {
#ifdef DPFTRL_HAS_FORK
      static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
      static_cast<void>(registered);
#endif
      pool = new Pool;
    }
    pool->run(workers, body, waiting);
    return;
  }
  for (std::size_t i = 0; i < workers; ++i) body(i);
}

}  // namespace dpftrl
