# SPDX-License-Identifier: Apache-2.0

# `target_python`: what an extension module is compiled and linked with where no Python of the target system is at hand,
# made of the interpreter DPFTRL_PYTHON, which also runs Cython. The modules cannot be imported: they ask for the stub.

set(Python_EXECUTABLE "${DPFTRL_PYTHON}")
set(folder "${CMAKE_CURRENT_BINARY_DIR}/target_python")
execute_process(
  COMMAND "${Python_EXECUTABLE}" "${CMAKE_CURRENT_LIST_DIR}/prepare.py" "${folder}"
  OUTPUT_VARIABLE python_name
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)

add_library(target_python_stub SHARED "${folder}/stub.cpp")
set_target_properties(target_python_stub PROPERTIES OUTPUT_NAME "${python_name}")
if(WIN32)
  set_target_properties(target_python_stub PROPERTIES PREFIX "")
endif()

add_library(target_python INTERFACE)
target_include_directories(
  target_python SYSTEM INTERFACE "${folder}/python" "${folder}/numpy" "${folder}/pybind11")
target_link_libraries(target_python INTERFACE target_python_stub)
# A name that nothing defines is an error, as it is on the other systems.
if(CMAKE_SYSTEM_NAME STREQUAL "Linux")
  target_link_options(target_python INTERFACE "LINKER:-z,defs")
endif()

# To zig's linker a bundle is a program, with a main function.
set(CMAKE_SHARED_MODULE_CREATE_CXX_FLAGS "${CMAKE_SHARED_LIBRARY_CREATE_CXX_FLAGS}")
set(CMAKE_SHARED_MODULE_PREFIX "")
if(WIN32)
  set(CMAKE_SHARED_MODULE_SUFFIX ".pyd")
endif()
