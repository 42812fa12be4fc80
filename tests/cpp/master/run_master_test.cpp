// How the process of a master ends.
#include <gtest/gtest.h>

#include <memory>
#include <new>
#include <vector>

#include "base/log.h"
#include "master/register_file.h"
#include "master/server.h"

namespace pccl::master {
namespace {

class NoMemory final : public RegisterStore {
 public:
  Result<Register> read() override { throw std::bad_alloc(); }
  Result<bool> compare_and_write(const Register&, const Register&) override { return false; }
};

TEST(RunMaster, any_exception_ends_it_with_a_line_and_a_status) {
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view text) { lines.emplace_back(text); });
  MasterOptions options;
  options.host = "127.0.0.1";
  options.port = 0;
  const int status = run_master(options, {ServedRun{RunOptions{}, std::make_shared<NoMemory>()}});
  set_log_sink({});
  EXPECT_EQ(status, 3);
  ASSERT_FALSE(lines.empty());
  EXPECT_NE(lines.back().find("the master stops: std::bad_alloc"), std::string::npos)
      << lines.back();
}

}  // namespace
}  // namespace pccl::master
