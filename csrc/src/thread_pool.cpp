// SPDX-License-Identifier: Apache-2.0

#include "dpftrl/thread_pool.hpp"

#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#define DPFTRL_HAS_FORK 1
#endif

namespace dpftrl {
namespace {

class Pool {
 public:
  // The caller holds the pool's turn (see run_workers).
  void run(std::size_t workers, const std::function<void(std::size_t)>& body) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      while (threads_.size() + 1 < workers) {
        const std::size_t number = threads_.size() + 1;
        threads_.emplace_back([this, number, seen = generation_] { loop(number, seen); });
      }
      body_ = &body;
      workers_ = workers;
      pending_ = workers - 1;
      failure_ = nullptr;
      ++generation_;
    }
    wake_.notify_all();
    guarded(body, 0);
    std::unique_lock<std::mutex> lock(mutex_);
    done_.wait(lock, [this] { return pending_ == 0; });
    body_ = nullptr;
    if (failure_ != nullptr) std::rethrow_exception(failure_);
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
  void guarded(const std::function<void(std::size_t)>& body, std::size_t number) {
    try {
      body(number);
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
      guarded(*body, number);
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

void run_workers(std::size_t workers, const std::function<void(std::size_t)>& body) {
  const Turn turn;
  if (workers > 1 && turn.held()) {
    if (pool == nullptr) {
#ifdef DPFTRL_HAS_FORK
      static const int registered = pthread_atfork(nullptr, nullptr, forget_pool_in_child);
      static_cast<void>(registered);
#endif
      pool = new Pool;
    }
    pool->run(workers, body);
    return;
  }
  for (std::size_t i = 0; i < workers; ++i) body(i);
}

}  // namespace dpftrl
