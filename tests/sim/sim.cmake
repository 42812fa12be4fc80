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

# Whole engines and masters on virtual time (engine/). The sources are compiled anew with small
# limits: a tensor of some KB is many segments then.
set(SIM_LIMITS ${CMAKE_BINARY_DIR}/sim_limits)
file(READ ${CMAKE_CURRENT_SOURCE_DIR}/base/limits.h limits)
string(REPLACE "kSegmentBytesMax = 1U << 20" "kSegmentBytesMax = 1U << 12" limits "${limits}")
string(REGEX REPLACE "kSmallSegmentBytesMax = 64U[ \n]*<< 10" "kSmallSegmentBytesMax = 512U"
       limits "${limits}")
string(REGEX REPLACE "kUngrantedBytesMax =[ \n]*64U << 20" "kUngrantedBytesMax = 32U << 10"
       limits "${limits}")
string(REGEX REPLACE "kRelayWindowBytes =[ \n]*16U << 20" "kRelayWindowBytes = 16U << 10"
       limits "${limits}")
file(CONFIGURE OUTPUT ${SIM_LIMITS}/base/limits.h CONTENT "${limits}" @ONLY)
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
             ${CMAKE_CURRENT_SOURCE_DIR}/base/limits.h)
file(GLOB sim_engine_sources CONFIGURE_DEPENDS ${SIM}/engine/*.cpp)
set(sim_engine_product)
foreach(folder base wire membership collectives kernels state transport engine master)
  file(GLOB sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${folder}/*.cpp)
  list(APPEND sim_engine_product ${sources})
endforeach()
add_library(pccl_sim_product OBJECT ${sim_engine_product})
add_executable(pccl_sim_engine ${sim_engine_sources})
foreach(part pccl_sim_product pccl_sim_engine)
  target_include_directories(${part} BEFORE PRIVATE ${SIM_LIMITS} ${SIM}/engine)
  target_compile_options(${part} PRIVATE -O2)
endforeach()
target_link_libraries(pccl_sim_engine PRIVATE pccl_sim_product OpenSSL::Crypto ${UV_LIBRARY}
                      Threads::Threads)
set_target_properties(pccl_sim_engine PROPERTIES UNITY_BUILD OFF
                      RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
# Messages between ranks are walked by scripts/sim --engine.
add_test(NAME sim_engine COMMAND pccl_sim_engine --no-messages --jobs 2 1 1000)
set_tests_properties(sim_engine PROPERTIES TIMEOUT 1500 PROCESSORS 2)
