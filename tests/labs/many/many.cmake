# Many engines in one process under one master: that they join, work, are lost and leave, and what a
# commit and a change of members cost.
add_executable(pccl_many ${CMAKE_CURRENT_LIST_DIR}/many.cpp)
target_link_libraries(pccl_many PRIVATE pccl_engine pccl_master)
target_compile_options(pccl_many PRIVATE -O2)
set_target_properties(pccl_many PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_test(NAME many COMMAND pccl_many 64)

# A thousand peers, as cores over queues in memory.
add_executable(pccl_fleet ${CMAKE_CURRENT_LIST_DIR}/fleet.cpp)
target_link_libraries(pccl_fleet PRIVATE pccl_membership)
target_compile_options(pccl_fleet PRIVATE -O2)
if(NOT PCCL_SANITIZE)  # it says what cores a master and a peer take
  target_compile_options(pccl_membership PRIVATE -O2)
endif()
set_target_properties(pccl_fleet PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_test(NAME many_fleet COMMAND pccl_fleet 1 4 16 64 16x4)
