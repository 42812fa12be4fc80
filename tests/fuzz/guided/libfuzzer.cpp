// One target as a program of libFuzzer; PCCL_FUZZ_TARGET names its function.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/log.h"

namespace pccl::fuzz {
void PCCL_FUZZ_TARGET(std::span<const std::byte> input);
}

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  pccl::set_log_level(pccl::LogLevel::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pccl::fuzz::PCCL_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
