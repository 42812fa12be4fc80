# What the Python package loads, into lib/ of the build folder:
#
#   libpccl_engine.so  the engine and the master, of which engine.exports is visible
#   _core              csrc/python over it, without torch: what `pccl-master` loads
#   _torch_2_13, …     csrc/torch over it, a layer for each torch of PCCL_TORCH
#
# PCCL_TORCH           folders of the package torch
# PCCL_PYTHON_INCLUDE  folder of Python.h
# PCCL_SUFFIX          ending of an extension's file: .cpython-311-x86_64-linux-gnu.so
# PCCL_STATIC          libuv and OpenSSL go into libpccl_engine.so, and nothing else sees them; their archives
#                      hold position-independent code (Debian's libuv_a.a does not)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
set(CMAKE_BUILD_RPATH_USE_ORIGIN ON)  # they lie beside each other; torch's libraries are there before them
add_link_options(-Wl,-s)
list(GET PCCL_TORCH 0 first_torch)  # its pybind11 serves _core too: headers only

# What is exported is engine.exports' choice, at the link. No call inside goes by way of the loader.
set(objects "")
foreach(name base wire membership collectives kernels state trust transport engine master)
  set_target_properties(pccl_${name} PROPERTIES POSITION_INDEPENDENT_CODE ON)
  target_compile_options(pccl_${name} PRIVATE -fno-semantic-interposition)
  list(APPEND objects $<TARGET_OBJECTS:pccl_${name}>)
endforeach()
target_compile_options(pccl_kernels PRIVATE -O3)
add_library(pccl_shared SHARED ${objects})
set_target_properties(pccl_shared PROPERTIES
  OUTPUT_NAME pccl_engine
  LINKER_LANGUAGE CXX
  LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/engine.exports)
target_link_libraries(pccl_shared PRIVATE ${UV_LIBRARY} OpenSSL::SSL OpenSSL::Crypto Threads::Threads ${CMAKE_DL_LIBS})
target_link_options(pccl_shared PRIVATE
  -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/engine.exports
  -Wl,--exclude-libs,ALL -Wl,-Bsymbolic-functions -Wl,-z,defs)

# An extension. What the engine does not export fails when the extension is loaded (-z now, above), not at a call.
function(pccl_extension name)
  add_library(${name} MODULE ${ARGN})
  set_target_properties(${name} PROPERTIES PREFIX "" SUFFIX ${PCCL_SUFFIX})
  target_link_libraries(${name} PRIVATE pccl_shared)
endfunction()

file(GLOB python_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/python/*.cpp)
set(core_module ${CMAKE_CURRENT_SOURCE_DIR}/python/core_module.cpp)
list(REMOVE_ITEM python_sources ${core_module})
pccl_extension(_core ${core_module})
add_library(pccl_python STATIC ${python_sources})
foreach(name _core pccl_python)
  set_target_properties(${name} PROPERTIES
    POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
  # `/.`: so ccache, which gives what lies below the checkout a relative name, leaves torch its own in each folder.
  target_include_directories(${name} SYSTEM PRIVATE ${PCCL_PYTHON_INCLUDE} /.${first_torch}/include)
endforeach()

file(GLOB torch_sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/torch/*.cpp)
foreach(torch IN LISTS PCCL_TORCH)
  file(STRINGS ${torch}/version.py line REGEX "^__version__ = '")
  if(NOT line MATCHES "'(([0-9]+)\\.([0-9]+)[^']*)'")
    message(FATAL_ERROR "pccl: ${torch}/version.py names no version")
  endif()
  set(version ${CMAKE_MATCH_1})
  set(layer _torch_${CMAKE_MATCH_2}_${CMAKE_MATCH_3})
  pccl_extension(${layer} ${torch_sources})
  # torch's headers are most of it, and a source takes long.
  set_target_properties(${layer} PROPERTIES UNITY_BUILD_BATCH_SIZE 3)
  target_include_directories(${layer} SYSTEM PRIVATE
    ${PCCL_PYTHON_INCLUDE} /.${torch}/include /.${torch}/include/torch/csrc/api/include)
  # The version stands in the command, so another torch in the same folder compiles all again.
  target_compile_definitions(${layer} PRIVATE
    PCCL_TORCH_VERSION="${version}" TORCH_EXTENSION_NAME=${layer})
  target_link_libraries(${layer} PRIVATE pccl_python)
  if(NOT PCCL_STATIC)
    # Before torch: libtorch_cpu exports uv_* symbols of its own, and the first library in this order wins.
    target_link_libraries(${layer} PRIVATE -Wl,--no-as-needed ${UV_LIBRARY} -Wl,--as-needed)
  endif()
  target_link_options(${layer} PRIVATE -L${torch}/lib)  # an option: a directory would become an rpath
  target_link_libraries(${layer} PRIVATE -Wl,--no-as-needed c10 torch_cpu torch torch_python)
endforeach()
