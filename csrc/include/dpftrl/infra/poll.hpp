// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>

namespace dpftrl {

// Called now and then on the calling thread in long work; what it throws ends the call.
using Poll = std::function<void()>;

}  // namespace dpftrl
