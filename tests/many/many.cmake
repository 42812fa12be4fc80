# Many engines in one process under one master: that they join, work, are lost and leave, and what a
# commit and a change of members cost.
add_executable(pccl_many ${CMAKE_CURRENT_LIST_DIR}/many.cpp)
target_link_libraries(pccl_many PRIVATE pccl_engine pccl_master)
target_compile_options(pccl_many PRIVATE -O2)
set_target_properties(pccl_many PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_test(NAME many COMMAND pccl_many 64)
