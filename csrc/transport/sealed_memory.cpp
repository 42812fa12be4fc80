#include "transport/sealed_memory.h"

#include <sys/stat.h>

#include <cerrno>
#include <string>

#include "transport/sys.h"

namespace pccl {

bool is_sealed_memory(int descriptor, std::size_t bytes) {
  struct stat seen{};
  const int seals = ::fcntl(descriptor, F_GET_SEALS);
  return seals >= 0 && (seals & kMemorySeals) == kMemorySeals && ::fstat(descriptor, &seen) == 0 &&
         seen.st_size == static_cast<off_t>(bytes);
}

bool allocate_memory(int descriptor, std::size_t offset, std::size_t bytes) {
  const int error =
      ::posix_fallocate(descriptor, static_cast<off_t>(offset), static_cast<off_t>(bytes));
  if (error != 0) errno = error;
  return error == 0;
}

Error memory_error(const char* what) {
  return {ErrorCode::unreachable, std::string(what) + ": " + errno_text(errno)};
}

}  // namespace pccl
