// SPDX-License-Identifier: Apache-2.0

// Every worker runs once; exceptions, nested and concurrent calls; fork.

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "dpftrl/infra/thread_pool.hpp"

#if defined(__SANITIZE_THREAD__)
#define UNDER_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define UNDER_TSAN 1
#endif
#endif
// ThreadSanitizer does not allow new threads after a fork.
#if (defined(__unix__) || defined(__APPLE__)) && !defined(UNDER_TSAN)
#include <sys/wait.h>
#include <unistd.h>
#define CAN_FORK 1
#endif

using dpftrl::run_workers;

namespace {

bool each_runs_once(std::size_t workers) {
  std::vector<std::atomic<int>> runs(workers);
  run_workers(workers, [&](std::size_t worker) { ++runs[worker]; });
  for (const auto& count : runs) {
    if (count != 1) return false;
  }
  return true;
}

void every_worker_once() {
  for (int repeat = 0; repeat < 200; ++repeat) {
    for (const std::size_t workers : {1u, 2u, 3u, 8u, 2u, 1u}) CHECK(each_runs_once(workers));
  }
  run_workers(0, [](std::size_t) { CHECK(false); });
  std::thread::id first;
  run_workers(3, [&](std::size_t worker) {
    if (worker == 0) first = std::this_thread::get_id();
  });
  CHECK(first == std::this_thread::get_id());
}

void workers_run_at_the_same_time() {
  std::atomic<int> met{0};
  run_workers(3, [&](std::size_t) {
    ++met;
    while (met < 3) std::this_thread::yield();
  });
  CHECK_EQ(met.load(), 3);
}

void exceptions() {
  for (const std::size_t thrower : {0u, 1u, 2u}) {
    std::atomic<int> ended{0};
    const auto call = [&] {
      run_workers(3, [&](std::size_t worker) {
        if (worker == thrower) throw std::runtime_error("from " + std::to_string(worker));
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        ++ended;
      });
    };
    CHECK_THROWS(call(), std::runtime_error, "from " + std::to_string(thrower));
    CHECK_EQ(ended.load(), 2);  // rethrown when all have ended
    CHECK(each_runs_once(3));
  }
  CHECK_THROWS(run_workers(4, [](std::size_t) { throw std::logic_error("all"); }), std::logic_error, "all");

  // The exception is let go of when the call is over.
  const auto held = std::make_shared<int>(1);
  struct Error : std::runtime_error {
    explicit Error(std::shared_ptr<int> h) : std::runtime_error("held"), holds(std::move(h)) {}
    std::shared_ptr<int> holds;
  };
  CHECK_THROWS(run_workers(2,
                           [&](std::size_t worker) {
                             if (worker == 1) throw Error(held);
                           }),
               Error, "held");
  CHECK_EQ(held.use_count(), 1);
}

void waiting() {
  std::atomic<int> calls{0};
  const auto caller = std::this_thread::get_id();
  const auto until_called = [&](std::size_t worker) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (worker == 1 && calls == 0 && std::chrono::steady_clock::now() < end) std::this_thread::yield();
  };
  run_workers(2, until_called, [&] {
    ++calls;
    CHECK(std::this_thread::get_id() == caller);
  });
  CHECK(calls > 0);
  std::atomic<bool> stop{false}, stopped{false};
  const auto until_stopped = [&](std::size_t worker) {
    while (worker == 1 && !stop) std::this_thread::yield();
    if (worker == 1) stopped = true;
  };
  const auto interrupt = [&] {
    stop = true;
    throw std::runtime_error("interrupted");
  };
  CHECK_THROWS(run_workers(2, until_stopped, interrupt), std::runtime_error, "interrupted");
  CHECK(stopped.load());
}

void nested() {
  std::atomic<int> inner{0};
  run_workers(3, [&](std::size_t) { run_workers(4, [&](std::size_t) { ++inner; }); });
  CHECK_EQ(inner.load(), 12);
}

void concurrent_callers() {
  std::atomic<int> good{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      for (int repeat = 0; repeat < 100; ++repeat) good += each_runs_once(3) ? 1 : 0;
    });
  }
  for (auto& t : callers) t.join();
  CHECK_EQ(good.load(), 400);
}

#ifdef CAN_FORK
int status_of_child(bool (*work)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a child that hangs is a failure
    _exit(work() ? 0 : 1);
  }
  int status = -1;
  waitpid(child, &status, 0);
  return status;
}

bool all_meet() {
  std::atomic<int> met{0};
  run_workers(2, [&](std::size_t) {
    ++met;
    while (met < 2) std::this_thread::yield();
  });
  return each_runs_once(3);
}

void forks() {
  CHECK(each_runs_once(3));
  CHECK_EQ(status_of_child(all_meet), 0);
  CHECK_EQ(status_of_child([] { return all_meet() && status_of_child(all_meet) == 0; }), 0);
  // A fork while another thread's call holds the pool.
  std::atomic<bool> started{false}, stop{false};
  std::thread busy([&] {
    run_workers(2, [&](std::size_t) {
      started = true;
      while (!stop) std::this_thread::yield();
    });
  });
  while (!started) std::this_thread::yield();
  CHECK_EQ(status_of_child(all_meet), 0);
  stop = true;
  busy.join();
  CHECK(each_runs_once(3));
}
#endif

}  // namespace

int main() {
#ifdef CAN_FORK
  // qemu-user itself fails an assertion when a process that has had threads forks (CMakeLists.txt sets this).
  const bool forks_work = std::getenv("DPFTRL_UNDER_QEMU_USER") == nullptr;
  if (forks_work) CHECK_EQ(status_of_child(all_meet), 0);  // before the parent has a pool
#endif
  every_worker_once();
  workers_run_at_the_same_time();
  exceptions();
  waiting();
  nested();
  concurrent_callers();
#ifdef CAN_FORK
  if (forks_work) forks();
#endif
  return check::report();
}
