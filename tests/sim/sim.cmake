# The simulator of membership and commit (world.h), and the same with bugs planted into the cores.
set(SIM ${CMAKE_CURRENT_LIST_DIR})
file(GLOB sim_sources CONFIGURE_DEPENDS ${SIM}/*.cpp)
file(GLOB membership_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/membership/*.cpp)

add_executable(pccl_sim ${sim_sources})
target_link_libraries(pccl_sim PRIVATE pccl_membership)
target_include_directories(pccl_sim PRIVATE ${SIM})

# A copy of the cores with the bugs planted (planted.patch) goes before the cores themselves.
set(SIM_PLANTED ${CMAKE_BINARY_DIR}/sim_planted)
file(GLOB membership_headers CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/membership/*.h)
set(planted_sources ${membership_sources})
set(planted_headers ${membership_headers})
foreach(files planted_sources planted_headers)
  list(TRANSFORM ${files} REPLACE "^.*/" "${SIM_PLANTED}/membership/")
endforeach()
add_custom_command(
  OUTPUT ${SIM_PLANTED}/stamp
  BYPRODUCTS ${planted_sources} ${planted_headers}
  COMMAND ${SIM}/plant ${SIM_PLANTED}
  COMMAND ${CMAKE_COMMAND} -E touch ${SIM_PLANTED}/stamp
  DEPENDS ${membership_sources} ${membership_headers} ${SIM}/planted.patch ${SIM}/plant)
add_custom_target(sim_planted_sources DEPENDS ${SIM_PLANTED}/stamp)
set_source_files_properties(${planted_sources} PROPERTIES GENERATED TRUE)
add_executable(pccl_sim_planted ${sim_sources} ${planted_sources})
add_dependencies(pccl_sim_planted sim_planted_sources)
target_compile_definitions(pccl_sim_planted PRIVATE PCCL_PLANTED_BUGS)
# -iquote, here and below: before all folders of -I, also that which CMake adds where unity builds
# are relocatable.
target_compile_options(pccl_sim_planted PRIVATE -iquote ${SIM_PLANTED})
target_link_libraries(pccl_sim_planted PRIVATE pccl_wire Threads::Threads)
target_include_directories(pccl_sim_planted PRIVATE ${SIM})

set_target_properties(pccl_sim pccl_sim_planted PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})

add_test(NAME sim COMMAND pccl_sim 1 10000)
add_test(NAME sim_liars COMMAND pccl_sim --liars 1 3000)
add_test(NAME sim_seeds COMMAND pccl_sim --seeds ${SIM}/seeds.txt)
add_test(NAME sim_planted COMMAND pccl_sim_planted --all-planted 200001 12000)

include(${SIM}/engine/sources.cmake)
add_library(pccl_sim_product OBJECT ${sim_engine_product})
add_executable(pccl_sim_engine ${sim_engine_sources})
foreach(part pccl_sim_product pccl_sim_engine)
  target_include_directories(${part} PRIVATE ${SIM}/engine)
  target_compile_options(${part} PRIVATE -iquote ${SIM_LIMITS})
endforeach()
set_target_properties(pccl_sim_product PROPERTIES UNITY_BUILD_BATCH_SIZE 12)
target_link_libraries(pccl_sim_engine PRIVATE pccl_sim_product OpenSSL::SSL OpenSSL::Crypto ${UV_LIBRARY}
                      Threads::Threads)
set_target_properties(pccl_sim_engine PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
# Coroutines keep what is of a file alone, which the compiler takes for a header in a unity build.
target_compile_options(pccl_sim_engine PRIVATE $<$<CXX_COMPILER_ID:GNU>:-Wno-subobject-linkage>)
add_test(NAME sim_engine COMMAND pccl_sim_engine --jobs 2 1 1000)
set_tests_properties(sim_engine PROPERTIES TIMEOUT 1500 PROCESSORS 2)
add_test(NAME sim_engine_seeds COMMAND pccl_sim_engine --seeds ${SIM}/engine/seeds.txt)
add_test(NAME sim_engine_liars COMMAND pccl_sim_engine --liars --jobs 2 1 1000)
set_tests_properties(sim_engine_liars PROPERTIES TIMEOUT 1500 PROCESSORS 2)
add_test(NAME sim_engine_again COMMAND pccl_sim_engine --again 1 60)
add_test(NAME sim_fixed_again COMMAND pccl_sim_engine --fixed --again 1 60)
add_test(NAME sim_fixed COMMAND pccl_sim_engine --fixed --jobs 2 1 3000)
set_tests_properties(sim_fixed PROPERTIES TIMEOUT 1500 PROCESSORS 2)
add_test(NAME sim_fixed_liars COMMAND pccl_sim_engine --fixed --liars 1 3000)
add_test(NAME sim_fixed_liars_again COMMAND pccl_sim_engine --fixed --liars --again 1 60)
