# The simulator of membership and commit (world.h), and the same with bugs planted into the cores.
set(SIM ${CMAKE_CURRENT_LIST_DIR})
file(GLOB sim_sources CONFIGURE_DEPENDS ${SIM}/*.cpp)
file(GLOB membership_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/membership/*.cpp)

if(NOT PCCL_SANITIZE)
  target_compile_options(pccl_membership PRIVATE -O2)
endif()
add_executable(pccl_sim ${sim_sources})
target_link_libraries(pccl_sim PRIVATE pccl_membership)
target_include_directories(pccl_sim PRIVATE ${SIM})

add_executable(pccl_sim_planted ${sim_sources} ${membership_sources})
target_compile_definitions(pccl_sim_planted PRIVATE PCCL_PLANTED_BUGS)
target_link_libraries(pccl_sim_planted PRIVATE pccl_wire Threads::Threads)
target_include_directories(pccl_sim_planted PRIVATE ${SIM})

foreach(program pccl_sim pccl_sim_planted)
  target_compile_options(${program} PRIVATE -O2)
  set_target_properties(${program} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
endforeach()

add_test(NAME sim COMMAND pccl_sim 1 10000)
add_test(NAME sim_liars COMMAND pccl_sim --liars 1 3000)
add_test(NAME sim_seeds COMMAND pccl_sim --seeds ${SIM}/seeds.txt)
add_test(NAME sim_planted COMMAND pccl_sim_planted --all-planted 1 2000)
