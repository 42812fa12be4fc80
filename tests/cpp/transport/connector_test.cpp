#include "transport/connector.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>

#include "transport/address.h"

namespace pccl {
namespace {

SocketAddress numeric(const std::string& host) { return numeric_address(host, 22).value(); }

TEST(Connector, a_name_that_a_peer_has_chosen_leads_to_no_service_of_this_machine_or_its_link) {
  for (const char* local : {"127.0.0.1", "127.0.1.1", "::1", "169.254.169.254", "fe80::1%lo",
                            "::ffff:127.0.0.1", "0.0.0.0", "::"}) {
    EXPECT_TRUE(leads_astray("node7.example.org", numeric(local))) << local;
    EXPECT_FALSE(leads_astray("localhost", numeric(local))) << "the master decides about these";
    EXPECT_FALSE(leads_astray(local, numeric(local)));
  }
  for (const char* far : {"10.0.0.7", "192.168.1.7", "2001:db8::7", "203.0.113.7"}) {
    EXPECT_FALSE(leads_astray("node7.example.org", numeric(far))) << far;
  }
}

TEST(Connector, the_name_of_this_machine_may_lead_to_it) {
  char text[HOST_NAME_MAX + 1] = "";
  ASSERT_EQ(::gethostname(text, sizeof text), 0);
  const std::string own = text;
  ASSERT_FALSE(own.empty());
  const SocketAddress here = numeric("127.0.1.1");
  EXPECT_FALSE(leads_astray(own, here));
  EXPECT_FALSE(leads_astray(own + ".", here));
  EXPECT_FALSE(leads_astray(own + ".example.org", here));
  EXPECT_TRUE(leads_astray(own + "x", here));
}

}  // namespace
}  // namespace pccl
