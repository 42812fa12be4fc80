// One target as a program of libFuzzer; PCCL_FUZZ_TARGET names its function.
#include "base/log.h"
#include "targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  pccl::set_log_level(pccl::LogLevel::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  pccl::fuzz::PCCL_FUZZ_TARGET(std::as_bytes(std::span(data, size)));
  return 0;
}
