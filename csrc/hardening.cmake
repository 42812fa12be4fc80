# For what the Python package loads: a fault of memory ends the process where it can be seen. Copies are checked
# against the size of their target, returns against a canary, and no table of addresses can be written once a
# library is loaded.
include(CheckCXXSourceCompiles)
set(CMAKE_REQUIRED_FLAGS "-O2 -Werror -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3")  # older ones warn that it is 2
check_cxx_source_compiles("#include <cstring>\nint main() { return 0; }" PCCL_FORTIFY_3)
unset(CMAKE_REQUIRED_FLAGS)
if(PCCL_FORTIFY_3)
  set(fortify 3)
else()
  set(fortify 2)
endif()
add_compile_options(-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${fortify} -fstack-protector-strong)
add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
