# What collectives take on networks that are computed: the model of docs/architecture/costs.md, and the
# choice of an algorithm, next to a simulation of the schedules.
add_executable(pccl_costs ${CMAKE_CURRENT_LIST_DIR}/costs.cpp)
target_link_libraries(pccl_costs PRIVATE pccl_collectives)
target_compile_options(pccl_costs PRIVATE -O2)
set_target_properties(pccl_costs PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
add_test(NAME many_costs COMMAND pccl_costs model 8 32 100)
add_test(NAME many_costs_choice COMMAND pccl_costs choice 2 3 4 8 16)

# What threads gain, measured on this machine.
add_executable(pccl_threads ${CMAKE_CURRENT_LIST_DIR}/threads.cpp)
target_link_libraries(pccl_threads PRIVATE pccl_transport pccl_kernels)
target_compile_options(pccl_threads PRIVATE -O2)
set_target_properties(pccl_threads PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
