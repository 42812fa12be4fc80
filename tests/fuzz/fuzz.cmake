# Fuzzers: one seeded program per parser; `fuzz_NAME [SEED] [COUNT]`. A short run of each is a test.
foreach(name codec framing)
  add_executable(fuzz_${name} ${TESTS}/fuzz/fuzz_${name}.cpp)
  target_link_libraries(fuzz_${name} PRIVATE pccl_transport pccl_wire)
  add_test(NAME fuzz_${name} COMMAND fuzz_${name})
endforeach()
