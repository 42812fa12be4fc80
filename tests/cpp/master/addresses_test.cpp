#include "master/addresses.h"

#include <gtest/gtest.h>

namespace pccl::master {
namespace {

using Addresses = std::vector<std::string>;

TEST(Addresses, those_of_a_machine_alone_are_taken_only_from_a_peer_that_is_there) {
  const Addresses all = {"127.0.0.1:22",       "10.0.0.7:4000",  "[::1]:22", "localhost:22",
                         "169.254.169.254:80", "[fe80::1%lo]:1", "0.0.0.0:5"};
  EXPECT_EQ(may_be_dialled(all, "10.0.0.7", false), (Addresses{"10.0.0.7:4000"}));
  EXPECT_EQ(may_be_dialled(all, "2001:db8::7", false), (Addresses{"10.0.0.7:4000"}));
  for (const char* alias : {"[::ffff:127.0.0.1]:22", "[::ffff:169.254.169.254]:80", "[::]:5",
                            "127.1.2.3:22", "a.localhost:22", "localhost.:22", "LocalHost:22",
                            "ip6-localhost:22", "localhost.localdomain:22", "no address"}) {
    EXPECT_EQ(may_be_dialled({alias}, "10.0.0.7", false), Addresses{}) << alias;
  }
  EXPECT_EQ(may_be_dialled({"127.0.0.1:22"}, "127.0.0.1", false), (Addresses{"127.0.0.1:22"}));
  EXPECT_EQ(may_be_dialled({"127.0.0.1:22"}, "10.0.0.7", true), (Addresses{"127.0.0.1:22"}));
  EXPECT_EQ(may_be_dialled({"[fe80::2%eth0]:22"}, "fe80::2%eth0", false),
            (Addresses{"[fe80::2%eth0]:22"}));
}

TEST(Addresses, names_and_addresses_of_networks_stay_four_of_them) {
  const Addresses many = {"node7:1", "10.0.0.7:1", "[2001:db8::7]:1", "192.168.1.7:1",
                          "203.0.113.7:1"};
  EXPECT_EQ(may_be_dialled(many, "10.0.0.7", false), Addresses(many.begin(), many.begin() + 4));
}

}  // namespace
}  // namespace pccl::master
