// Sites for tests of what goes in two levels.
#pragma once

#include <vector>

#include "base/sites.h"

namespace pccl::test {

/// Of one to five ranks, in a row and mixed, and two to five of them.
inline const std::vector<Sites> kMixedSites{{0, 0, 1},
                                            {0, 1, 1},
                                            {0, 0, 1, 1},
                                            {0, 1, 0, 1},
                                            {0, 0, 0, 1, 1},
                                            {0, 1, 1, 1, 1},
                                            {0, 0, 0, 0, 0, 1},
                                            {0, 0, 0, 0, 1, 1, 1},
                                            {0, 0, 1, 1, 2, 2},
                                            {0, 1, 1, 2, 2, 2},
                                            {0, 0, 1, 2, 1, 0},
                                            {0, 0, 1, 2, 3, 4},
                                            {0, 0, 0, 1, 1, 2, 3, 3}};

}  // namespace pccl::test
