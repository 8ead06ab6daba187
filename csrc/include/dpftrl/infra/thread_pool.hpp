// SPDX-License-Identifier: Apache-2.0
#pragma once

// A few threads for loops over tiles. No OpenMP: it clashes with the copies that torch and numpy bring.

#include <cstddef>
#include <functional>

namespace dpftrl {

// Runs body(worker) once for each worker in [0, workers), worker 0 on the calling thread, and returns when all are
// done. The process-wide pool serves one call at a time: a call that finds it busy runs all workers on its own
// thread, one after the other, so body must take its share of work from a common counter or by its number. The
// first exception of a body is rethrown here, once all have ended. While the calling thread waits for the others it
// calls `waiting`, when there is one, some 50 times a second; what that throws counts as a body's. Safe after fork: a
// child starts its own threads.
void run_workers(std::size_t workers, const std::function<void(std::size_t)>& body,
                 const std::function<void()>& waiting = {});

}  // namespace dpftrl
