// Asks a master who is in the run: `pccl-master --status`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/error.h"
#include "trust/token.h"
#include "wire/messages.h"

namespace pccl {

/// The status of the run that the master at "host:port" serves. `run`: its name, or empty; then a
/// master of several runs answers with their names (`runs`). Blocks
/// the calling thread for `timeout_ms` at most. `tokens`: null where the master takes none.
[[nodiscard]] Result<Status> ask_status(const std::string& address, const std::string& run,
                                        std::uint64_t timeout_ms,
                                        std::shared_ptr<const Tokens> tokens = nullptr);

}  // namespace pccl
