# SPDX-License-Identifier: Apache-2.0

# Cross-compilation with `zig c++`, which carries the headers and libraries of many systems:
#
#   cmake -B build/x -DCMAKE_TOOLCHAIN_FILE=cmake/zig.cmake -DDPFTRL_ZIG_TARGET=x86_64-windows-gnu
#
# DPFTRL_PYTHON is an interpreter with the ziglang package (python3 by default).

if(NOT DPFTRL_ZIG_TARGET MATCHES "^([a-z0-9_]+)-([a-z]+)([-.]|$)")
  message(FATAL_ERROR "DPFTRL_ZIG_TARGET: expected PROCESSOR-SYSTEM[-LIBC], got '${DPFTRL_ZIG_TARGET}'")
endif()
set(CMAKE_SYSTEM_PROCESSOR "${CMAKE_MATCH_1}")
set(CMAKE_SYSTEM_NAME "${CMAKE_MATCH_2}")
if(CMAKE_SYSTEM_NAME STREQUAL "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
  set(CMAKE_OSX_SYSROOT "")
  set(CMAKE_OSX_DEPLOYMENT_TARGET "")
elseif(CMAKE_SYSTEM_NAME STREQUAL "windows")
  set(CMAKE_SYSTEM_NAME Windows)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES DPFTRL_ZIG_TARGET DPFTRL_PYTHON DPFTRL_ZIG_TOOLS)
# Linking without optimisation would compile the C++ library a second time.
set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)

if(NOT DPFTRL_PYTHON)
  set(DPFTRL_PYTHON python3)
endif()

# CMake wants one program each for the compiler, ar and ranlib. They belong to one build folder, and to the trials of
# compilation in it: several builds are configured at once.
if(NOT DPFTRL_ZIG_TOOLS)
  set(DPFTRL_ZIG_TOOLS "${CMAKE_BINARY_DIR}/zig")
  foreach(tool IN ITEMS c++ ar ranlib)
    file(WRITE "${DPFTRL_ZIG_TOOLS}/zig-${tool}" "#!/bin/sh\nexec \"${DPFTRL_PYTHON}\" -m ziglang ${tool} \"$@\"\n")
    file(CHMOD "${DPFTRL_ZIG_TOOLS}/zig-${tool}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
  endforeach()
endif()
set(CMAKE_CXX_COMPILER "${DPFTRL_ZIG_TOOLS}/zig-c++")
set(CMAKE_CXX_COMPILER_TARGET "${DPFTRL_ZIG_TARGET}")
set(CMAKE_AR "${DPFTRL_ZIG_TOOLS}/zig-ar")
set(CMAKE_RANLIB "${DPFTRL_ZIG_TOOLS}/zig-ranlib")
# GNU's tools read the formats of this system only. Without LLVM's there is no test of the object code.
find_program(DPFTRL_LLVM_NM NAMES llvm-nm llvm-nm-19 llvm-nm-14)
find_program(DPFTRL_LLVM_OBJDUMP NAMES llvm-objdump llvm-objdump-19 llvm-objdump-14)
if(DPFTRL_LLVM_NM AND DPFTRL_LLVM_OBJDUMP)
  set(CMAKE_NM "${DPFTRL_LLVM_NM}")
  set(CMAKE_OBJDUMP "${DPFTRL_LLVM_OBJDUMP}")
else()
  set(CMAKE_NM "")
  set(CMAKE_OBJDUMP "")
endif()

set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
